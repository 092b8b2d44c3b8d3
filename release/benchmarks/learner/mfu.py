"""Until tests/gpu has the new name."""

from release.benchmarks.learner.flops import matmul_peaks as matmul_peaks
