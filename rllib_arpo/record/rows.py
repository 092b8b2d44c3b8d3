"""From a question's tree to the rows of the record."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.core.advantages import NodeAttribution
from rllib_arpo.core.tree import QuestionTree, Trajectory, TreeLayout
from rllib_arpo.record.schema import ADVANTAGES, ANSWER, CALL, NODE, TURN


def token_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> tuple[str | None, list[int] | None]:
    """The text of sampled tokens, special tokens included, and where each token ends in it.

    A token that holds only a part of a character ends where the token before it does; the token that completes the
    character has it. The tokens are decoded one by one, since their texts depend on those before.

    Returns:
        (text, ends): `text[ends[i - 1]:ends[i]]` is token i's; `text` is None without a tokenizer, `ends` also if the
        tokenizer is not one of the library `tokenizers`, or changes text that it has decoded already.
    """
    from tokenizers.decoders import DecodeStream

    ids = [int(token) for token in token_ids]
    text = plain_text(tokenizer, ids)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if text is None or backend is None:
        return text, None
    stream, pieces, ends, length = DecodeStream(skip_special_tokens=False), [], [], 0
    for token in ids:
        piece = stream.step(backend, token) or ""
        pieces.append(piece)
        length += len(piece)
        ends.append(length)
    if not text.startswith("".join(pieces)):
        return text, None
    if ends:
        # The last token may leave a character incomplete.
        ends[-1] = len(text)
    return text, ends


def plain_text(tokenizer: Any, token_ids: Sequence[int] | np.ndarray) -> str | None:
    """The text of tokens, special tokens included; None without a tokenizer."""
    if tokenizer is None:
        return None
    ids = [int(token) for token in token_ids]
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QuestionFacts:
    """The facts of a question beside its tree (`schema.QUESTION`)."""

    purpose: str
    iteration: int
    number: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TreeAdvantages:
    """The advantages of a tree that was trained.

    Attributes:
        layout: N nodes and L leaves.
        leaves: [L], A of each leaf.
        soft, hard: [N] each.
    """

    layout: TreeLayout
    leaves: np.ndarray
    soft: NodeAttribution
    hard: NodeAttribution


def question_rows(
    tree: QuestionTree,
    facts: QuestionFacts,
    tokenizer: Any,
    advantages: TreeAdvantages | None = None,
    answers: Mapping[str, Row] | None = None,
) -> list[Row]:
    """The rows of a question, trajectory by trajectory; one without a turn of its own has one row.

    Args:
        tokenizer: decodes; nothing is tokenized. None: the model has none.
        advantages: None if the question was not trained.
        answers: agent id -> the columns `schema.ANSWER`, of the questions of a benchmark.
    """
    of_question = {
        "purpose": facts.purpose,
        "iteration": facts.iteration,
        "number": facts.number,
        "question_id": tree.question_id,
        "question_seconds": facts.seconds,
        "trained": advantages is not None,
        "prompt": plain_text(tokenizer, tree.prompt),
        "prompt_tokens": len(tree.prompt),
    }
    by_leaf, by_turn = _by_place(advantages)
    rows = []
    for i, (trajectory, reward) in enumerate(zip(tree.trajectories, tree.returns().tolist(), strict=True)):
        answer = _NO_ANSWER if answers is None else answers[trajectory.agent_id]
        shared = (
            of_question | _columns(_TRAJECTORY, trajectory) | {"reward": reward, "advantage": by_leaf.get(i)} | answer
        )
        own = [turn | by_turn.get((i, turn["turn"]), _ABOVE_NO_LEAF) for turn in _turns(tree, trajectory, tokenizer)]
        rows += [shared | turn for turn in own or [_NO_TURN]]
    if advantages is None:
        rows = [row | _NO_ADVANTAGES for row in rows]
    return [row | {"prompt_ids": None if i else tree.prompt} for i, row in enumerate(rows)]


_NO_ADVANTAGES: Row = {column.name: None for column in ADVANTAGES}
_NO_ANSWER: Row = {column.name: None for column in ANSWER}
_NO_TURN: Row = {column.name: None for column in (*TURN, *CALL, *NODE, *ADVANTAGES)}
#: Of a trained question: only masked trajectories pass the turn.
_ABOVE_NO_LEAF: Row = {
    "leaves": 0, "weight": 0.0, "soft_positive": 0.0, "soft_negative": 0.0, "hard_advantage": None,
}  # fmt: skip


def _by_place(advantages: TreeAdvantages | None) -> tuple[dict[int, float], dict[tuple[int, int], Row]]:
    """Trajectory -> its advantage; (trajectory, its own turn) -> the columns of `schema.ADVANTAGES`."""
    if advantages is None:
        return {}, {}
    layout, soft, hard = advantages.layout, advantages.soft, advantages.hard
    by_turn = {
        (node.trajectory, node.turn): {
            "leaves": node.leaf_end - node.leaf_begin,
            "weight": float(soft.weight[n]),
            "soft_positive": float(soft.a_pos[n]),
            "soft_negative": float(soft.a_neg[n]),
            # One of both is 0, the other W mean(A).
            "hard_advantage": float((hard.a_pos[n] + hard.a_neg[n]) / hard.weight[n]),
        }
        for n, node in enumerate(layout.nodes)
    }
    return {leaf: float(a) for leaf, a in zip(layout.leaves, advantages.leaves, strict=True)}, by_turn


#: Columns of the record -> attributes of a trajectory, a turn's times, its tool call and the decision before it.
_TRAJECTORY = {
    "agent_id": "agent_id", "parent": "parent", "inherited_turns": "num_inherited_turns", "topped_up": "topped_up",
    "stop_reason": "stop_reason", "counts": "counts", "accuracy": "accuracy", "format_valid": "format_valid",
}  # fmt: skip
_TIMES = {"started_s": "started", "generated_s": "generated", "answered_s": "answered"}
_CALL = {"tool": "name", "tool_input": "argument", "tool_status": "status", "tool_seconds": "latency_s"}
_DECISION = {name: name for name in ("level", "delta", "probability", "eligible", "budget", "children")}


def _columns(attributes: Mapping[str, str], value: object) -> Row:
    """The columns that are attributes of a value; all None if there is no value."""
    return {column: value and getattr(value, attribute) for column, attribute in attributes.items()}


def _turns(tree: QuestionTree, trajectory: Trajectory, tokenizer: Any) -> Iterator[Row]:
    above = tree.path(trajectory.agent_id)[: trajectory.num_inherited_turns]
    before = above[-1] if above else None
    for own, turn in enumerate(trajectory.turns):
        text, ends = token_text(tokenizer, turn.token_ids)
        yield {
            "turn": own,
            "depth": trajectory.num_inherited_turns + own,
            "text": text,
            "token_ids": turn.token_ids,
            "token_ends": ends,
            "log_probs": turn.log_probs,
            "entropies": turn.entropies,
            "weight_versions": turn.weight_versions,
            "turn_reward": turn.reward,
            **_columns(_TIMES, turn.times),
            **_columns(_CALL, turn.tool_call),
            "tool_output": plain_text(tokenizer, turn.observation) if len(turn.observation) else None,
            "tool_output_tokens": len(turn.observation),
            "tool_output_ids": turn.observation if len(turn.observation) else None,
            "new_context": turn.new_context,
            "after_tool": None if before is None else before.tool,
            **_columns(_DECISION, turn.decision),
        }
        before = turn
