"""Changes the sampling distribution by more than the temperature, for evaluation only."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Changes to the distribution `softmax(logits / T)`. Training never uses them: the learner cannot compute them.

    Attributes:
        top_p: sample from the smallest set of likeliest tokens whose probabilities add up to this; 1: from all.
        top_k: sample from this many of the likeliest tokens; 0: from all.
        repetition_penalty: logits of tokens that occur in the prefix are divided by this if they are positive, and
            otherwise multiplied by it; 1: no penalty.
    """

    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: must be above 0 and at most 1.")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k}: must be at least 0.")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty={self.repetition_penalty}: must be a number > 0.")


NO_RESHAPING = Reshaping()


def reshaped_log_probs(logits: np.ndarray, prefix: np.ndarray, temperature: float, reshaping: Reshaping) -> np.ndarray:
    """[V] log-probs of the distribution from which vLLM samples: penalty, temperature, top-k, top-p, in this order.

    -inf for tokens that cannot be sampled.

    Args:
        logits: [V], the model's.
        prefix: [n] token ids: the prompt and all generated so far.
        temperature: > 0.
    """
    scaled, penalty = logits / temperature, reshaping.repetition_penalty
    if penalty != 1:
        seen = np.unique(prefix)
        scaled[seen] = np.where(logits[seen] > 0, scaled[seen] / penalty, scaled[seen] * penalty)
    if 0 < reshaping.top_k < len(scaled):
        scaled = np.where(scaled < np.sort(scaled)[-reshaping.top_k], -np.inf, scaled)
    log_probs = scaled - np.logaddexp.reduce(scaled)
    if reshaping.top_p == 1:
        return log_probs
    order = np.argsort(-log_probs, kind="stable")
    probs = np.exp(log_probs[order])
    # A token stays if the likelier ones do not add up to top_p; so the likeliest token always stays.
    dropped = order[np.cumsum(probs) - probs >= reshaping.top_p]
    log_probs[dropped] = -np.inf
    return log_probs - np.logaddexp.reduce(log_probs)
