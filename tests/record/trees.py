"""A small tree by hand, with everything that a record has to say of one."""

import numpy as np

from rllib_arpo.core.tree import (
    ForkDecision,
    QuestionTree,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
    Turn,
    TurnTimes,
)
from tests.helpers.models import byte_tokenizer

TOKENIZER = byte_tokenizer()


def ids(text: str) -> np.ndarray:
    return np.array(TOKENIZER.encode(text, add_special_tokens=False), np.int32)


def turn(text: str, response: str = "", entropies: tuple[float, ...] = (1.0,), version: int = 3, **more) -> Turn:
    tokens = ids(text)
    return Turn(
        token_ids=tokens,
        log_probs=np.full(len(tokens), -1.0, np.float32),
        entropies=np.array(entropies, np.float32),
        observation=ids(response),
        weight_versions=np.full(len(tokens), version, np.int32),
        **more,
    )


SEARCH = ToolCall("search", ToolStatus.OK, 0.5, "lamp")
#: "0" searches and answers; "0.0" was forked after the search and is cut off; "1" broke down before its first turn.
TREE = QuestionTree(
    "lamps",
    ids("Q?"),
    (
        Trajectory(
            "0",
            (
                turn("<s>é", "12", (0.5, 1.0), tool_call=SEARCH, times=TurnTimes(0.0, 1.0, 1.5), reward=0.25),
                turn(
                    "A",
                    entropies=(2.0,),
                    decision=ForkDecision(1.25, 0.25, 0.55, eligible=True, children=1, budget=2),
                    times=TurnTimes(1.5, 2.0, 2.0),
                    reward=0.75,
                ),
            ),
            StopReason.ANSWER,
            accuracy=1.0,
            format_valid=True,
        ),
        Trajectory("1", (turn("B", times=TurnTimes(0.0, 0.25, 0.25), reward=-1.0),), StopReason.NO_ANSWER),
        Trajectory("2", (), StopReason.ENGINE_FAILURE, topped_up=True),
        Trajectory(
            "0.0",
            (turn("C", version=4, times=TurnTimes(1.75, 2.5)),),
            StopReason.DEADLINE,
            parent="0",
            num_inherited_turns=1,
        ),
    ),
)

#: An agent asks a helper, whose prompt begins as its own does, and goes on; "0.0" was forked at the helper's answer.
HELPED = QuestionTree(
    "helped",
    ids("Q?"),
    (
        Trajectory(
            "0",
            (
                turn("A", "QH!", tool_call=SEARCH, new_context=True),
                turn("B", "Q?A3", tool_call=SEARCH, new_context=True),
                turn("C", reward=1.0),
            ),
            StopReason.WORLD_ENDED,
        ),
        Trajectory("0.0", (turn("D", reward=-1.0),), StopReason.WORLD_ENDED, parent="0", num_inherited_turns=2),
    ),
)
