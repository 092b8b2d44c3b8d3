"""pass@k: which samples are correct, and the probability that k samples include a correct one."""

import math


def is_correct(accuracy: float) -> bool:
    """Whether a sample counts for pass@k: its answer is entirely right, with accuracy 1 by the task's own measure.

    A token F1 (questions of knowledge) between 0 and 1 does not count as correct.
    """
    return accuracy >= 1.0


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The probability that k samples, drawn without replacement, include a correct one (Chen et al. 2021, eq. 1).

    With k = `num_samples` it is 1 if any sample is correct, otherwise 0. k is at least 1, and not above `num_samples`.
    """
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)
