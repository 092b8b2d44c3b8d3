"""Turns packed trees into the tensors of one forward and backward pass, with advantages that only the learner knows.

A piece is a packed tree or a part of one (`core/shares.py`). A pass is a few pieces side by side. The KL and the
entropies of its tokens change its advantages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rllib_arpo.core.advantages import path_stops
from rllib_arpo.core.columns import (
    A_NEG,
    A_POS,
    BEHAVIOR_ENTROPIES,
    BEHAVIOR_LOG_PROBS,
    END,
    ENTROPY_STATISTICS,
    LOSS_MASK,
    OLD_LOG_PROBS,
    PARENT,
    POSITION_IDS,
    REFERENCE_LOG_PROBS,
    REWARD_SCALE,
    TOKEN_IDS,
    WEIGHT,
)
from rllib_arpo.core.entropy import entropy_factor
from rllib_arpo.core.packing import PackedTree, concatenate, plan_passes, untrained_chain
from rllib_arpo.core.shares import cut_by_tokens, share_out, take
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.policy.upload import upload

#: The layers' work on one token equals attention's work on about so many pairs of tokens: on 8,000 to 32,000 in dense
#: models of 0.5B to 8B parameters.
PAIRS_PER_TOKEN = 16_000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a question that fits in one pass.

    Attributes:
        question: index of the question in the batch; -1 for none.
        packed: T tokens, K of them in the loss.
        old_log_probs: [K], the policy's at the start of the update, on the device; None if the update is a single step,
            whose forward pass itself gives them.
        reference_log_probs: [K], the reference model's, on the device; None without one.
    """

    question: int
    packed: PackedTree
    old_log_probs: Tensor | None = None
    reference_log_probs: Tensor | None = None


def cut_into_pieces(
    packed_trees: Mapping[int, PackedTree],
    max_tokens: int,
    *,
    rank: int = 0,
    num_learners: int = 1,
    only_with_advantage: bool = False,
) -> list[Piece]:
    """Cuts questions into pieces that fit in a pass, and returns those of one learner.

    Every learner makes the same cuts, and takes its own share. Parts without a token to train on are left out before
    the work is shared.

    Args:
        packed_trees: by index of the question.
        only_with_advantage: also leave out parts in which no token has an advantage.

    Raises:
        ValueError: one trajectory alone is longer than `max_tokens`.
    """

    def trains(packed: PackedTree) -> bool:
        loss = packed.loss_mask
        return bool(packed.a_pos[loss].any() or packed.a_neg[loss].any()) if only_with_advantage else bool(loss.any())

    taken = {
        part: take(packed, part)
        for question, packed in packed_trees.items()
        for part in cut_by_tokens(packed, max_tokens, question)
    }
    parts = [part for part, packed in taken.items() if trains(packed)]
    own = share_out(packed_trees, parts, num_learners, PAIRS_PER_TOKEN)[rank]
    pieces = [Piece(part.tree, taken.get(part) or take(packed_trees[part.tree], part)) for part in own]
    return [piece for piece in pieces if trains(piece.packed)]


def group_into_passes(pieces: Sequence[Piece], max_tokens: int) -> list[list[Piece]]:
    """Groups pieces into few passes of at most `max_tokens` tokens."""
    return [[pieces[i] for i in group] for group in plan_passes([p.packed.num_tokens for p in pieces], max_tokens)]


def idle_pass() -> list[Piece]:
    """The smallest pass, without loss. A learner makes such passes if other learners have more passes.

    It has two tokens, since compiled attention would make a separate kernel for a single token.
    """
    return [Piece(question=-1, packed=untrained_chain(2))]


def pass_to_tensors(pieces: Sequence[Piece], device: torch.device | str) -> dict[str, Any]:
    """The columns of one pass: the module's input, [T] arrays, and the loss's input per loss token, [K] tensors.

    It does not wait for the device, which may still compute the pass before.
    """
    packed = concatenate([piece.packed for piece in pieces])
    columns: dict[str, Any] = {
        name: getattr(packed, name) for name in (TOKEN_IDS, POSITION_IDS, PARENT, END, LOSS_MASK)
    }
    for name in (BEHAVIOR_LOG_PROBS, BEHAVIOR_ENTROPIES, A_POS, A_NEG, WEIGHT):
        columns[name] = upload(getattr(packed, name)[packed.loss_mask], device)
    for name in (OLD_LOG_PROBS, REFERENCE_LOG_PROBS):
        if getattr(pieces[0], name) is not None:
            columns[name] = torch.cat([getattr(piece, name) for piece in pieces])
    return columns


def check_one_context(trees: Sequence[QuestionTree]) -> None:
    """Raises a ValueError if a trajectory has several contexts: `subtract_kl_to_go` sums within one."""
    for tree in trees:
        for trajectory in tree.trajectories:
            if any(turn.new_context for turn in trajectory.turns):
                raise ValueError(
                    "kl_in_reward=True needs trajectories of one conversation, but trajectory "
                    f"{trajectory.agent_id} of question {tree.question_id} has several."
                )


def subtract_kl_to_go(batch: dict[str, Any], kl: Tensor, kl_coeff: float) -> dict[str, Any]:
    """`A_t = A - kl_coeff * (sum of kl from t to the end of the path) / REWARD_SCALE`, without forks.

    This is REINFORCE++'s KL penalty, in the reward of each token instead of in the loss (arXiv 2501.03262, eq. 5). The
    advantage of token t is the normalised return `r - kl_coeff * sum of kl from t on`. The paper takes the mean and the
    standard deviation over the returns of all tokens of the batch; this function takes them over the rewards `r` alone
    and divides the KL by the same deviation. So reward and penalty keep the proportion that `kl_coeff` sets, and the
    deviation is known before the first forward pass. In an update of a single step, the KL is known only after it.

    Args:
        batch: the columns of a pass in which each loss token belongs to one leaf (hence `a_pos + a_neg = W A`), and
            REWARD_SCALE, the number by which the rewards were divided (with `baseline="batch"` the batch's std + 1e-6,
            otherwise 1).
        kl: [K], k1 KL of the policy at the start of the update to the reference, without gradient.
        kl_coeff: the coefficient of the penalty.

    Returns:
        the batch with new A_POS and A_NEG, [K].

    Raises:
        ValueError: several trajectories share a generated token.
    """
    stop = upload(path_stops(*(batch[name] for name in (PARENT, END, LOSS_MASK))), kl.device)
    sums = F.pad(kl.detach().double().cumsum(0), (1, 0))
    penalty = kl_coeff * (sums[stop] - sums[:-1]) / batch[REWARD_SCALE]
    net = batch[A_POS] + batch[A_NEG] - batch[WEIGHT] * penalty
    return {**batch, A_POS: net.clamp(min=0.0), A_NEG: net.clamp(max=0.0)}


def multiply_by_entropy(batch: dict[str, Any], coeff: float) -> dict[str, Any]:
    """AEPO's entropy-aware advantage: multiplies A_POS and A_NEG, [K], by each token's factor.

    Args:
        batch: the columns of a pass with BEHAVIOR_ENTROPIES, and ENTROPY_STATISTICS of the whole minibatch.
        coeff: the paper's a.
    """
    factor = entropy_factor(batch[BEHAVIOR_ENTROPIES].to(batch[A_POS].dtype), batch[ENTROPY_STATISTICS], coeff)
    return {**batch, A_POS: batch[A_POS] * factor, A_NEG: batch[A_NEG] * factor}
