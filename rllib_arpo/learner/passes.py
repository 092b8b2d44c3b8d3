"""From packed trees to the tensors of one forward and backward pass.

A piece is what is never cut again: a packed tree, or a part of one that is too large for a pass. A pass is a few
pieces side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rllib_arpo.connectors.columns import (
    A_NEG,
    A_POS,
    BEHAVIOR_LOG_PROBS,
    END,
    LOSS_MASK,
    OLD_LOG_PROBS,
    PARENT,
    POSITION_IDS,
    REFERENCE_LOG_PROBS,
    TOKEN_IDS,
    WEIGHT,
)
from rllib_arpo.core.packing import PackedTree, concatenate, plan_passes, split_tree, untrained_chain


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a question that fits in one pass.

    Attributes:
        question: index of the question in the learner's shard.
        packed: T tokens, K of them in the loss.
        old_log_probs: [K], the policy's at the start of the update; None where the update is a single step, in which
            they are those of the forward pass itself.
        reference_log_probs: [K], the reference model's; None without one.
    """

    question: int
    packed: PackedTree
    old_log_probs: Tensor | None = None
    reference_log_probs: Tensor | None = None


def cut_into_pieces(packed_trees: Sequence[PackedTree], max_tokens: int) -> list[Piece]:
    """All the pieces of all questions, in order; parts without a token to train on are left out.

    Raises:
        ValueError: one trajectory alone is longer than `max_tokens`.
    """
    return [
        Piece(question, part)
        for question, packed in enumerate(packed_trees)
        for part in split_tree(packed, max_tokens)
        if part.num_loss_tokens > 0
    ]


def has_advantage(piece: Piece) -> bool:
    """Whether any token is driven anywhere: else the policy's term of the loss has no gradient in this piece."""
    return bool(piece.packed.a_pos.any() or piece.packed.a_neg.any())


def group_into_passes(pieces: Sequence[Piece], max_tokens: int) -> list[list[Piece]]:
    """Consecutive pieces side by side, at most `max_tokens` tokens together."""
    return [[pieces[i] for i in group] for group in plan_passes([p.packed.num_tokens for p in pieces], max_tokens)]


def idle_pass() -> list[Piece]:
    """The smallest pass, without loss. A learner makes it where others have more passes than it has.

    Two tokens, since compiled attention makes a kernel of its own for one.
    """
    return [Piece(question=-1, packed=untrained_chain(2))]


def pass_to_tensors(pieces: Sequence[Piece], device: torch.device | str) -> dict[str, Any]:
    """The columns of one pass: [T] what the module reads, [K] what the loss reads of each loss token."""
    packed = concatenate([piece.packed for piece in pieces])
    layout = {name: getattr(packed, name) for name in (TOKEN_IDS, POSITION_IDS, PARENT, END, LOSS_MASK)}
    targets = {name: getattr(packed, name)[packed.loss_mask] for name in (BEHAVIOR_LOG_PROBS, A_POS, A_NEG, WEIGHT)}
    columns = {name: torch.from_numpy(array).to(device) for name, array in {**layout, **targets}.items()}
    if pieces[0].old_log_probs is not None:
        columns[OLD_LOG_PROBS] = torch.cat([piece.old_log_probs for piece in pieces]).to(device)
    if pieces[0].reference_log_probs is not None:
        columns[REFERENCE_LOG_PROBS] = torch.cat([piece.reference_log_probs for piece in pieces]).to(device)
    return columns
