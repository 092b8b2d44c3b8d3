"""Until tests/gpu has the new name."""

from release.benchmarks.common.endless_models import byte_tokenizer as byte_tokenizer
