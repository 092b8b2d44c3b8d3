"""Generated task with two tools: look up a price in a small catalogue, then compute with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rllib_arpo.envs.question import MATH, Question, Shot, ShotCall
from rllib_arpo.envs.tasks.task import TEST, Task, check_split

MATERIALS = ("brass", "oak", "glass", "wool")
TRAIN_NOUNS = (
    "lamp", "chair", "crate", "clock", "mirror", "bowl", "vase", "stool", "desk", "tray", "frame", "cup",
    "ring", "bell", "pipe", "hat", "coat", "rug", "door", "pillow",
)  # fmt: skip
TEST_NOUNS = (
    "table", "plate", "basket", "bottle", "ladder", "wheel", "fork", "spoon", "drum", "flute", "scarf", "glove",
    "blanket", "curtain", "button", "hammer",
)  # fmt: skip
#: The worked examples, shown to a model that has both tools: item, quantity, what search shows. No split has these
#: items.
SHOTS = (
    ("silver key", 5, {"iron key": 9, "silver key": 14, "tin key": 23}),
    ("paper fan", 12, {"linen fan": 21, "silk fan": 8, "paper fan": 6}),
)
SYSTEM = "Search the price, compute with python, then answer in \\boxed{}."
MIN_PRICE, MAX_PRICE = 3, 40
MIN_QUANTITY, MAX_QUANTITY = 2, 12


@dataclass(frozen=True, kw_only=True)
class CatalogueTask(Task):
    """The task "What do n items cost?" The catalogue has an item's price; search shows the item and two others.

    Search shows the best match last. The model does not expect this, and the examples in the prompt do not show it: an
    untrained model mostly takes the first price, and has to learn what this tool's results mean. The two splits share
    no item, and each searches only a catalogue of its own items, so that training never shows an item of the test
    split, not even as a distractor. Training asks every item with every quantity; the test split asks every one of its
    items once.

    Attributes:
        seed: of prices, quantities and the shuffling.
    """

    tools: ClassVar[tuple[str, ...]] = ("search", "python")
    split: str = "train"
    seed: int = 0

    def __post_init__(self) -> None:
        check_split(self.split)

    @property
    def num_questions(self) -> int:
        return len(items(self.split)) * (1 if self.split == TEST else MAX_QUANTITY - MIN_QUANTITY + 1)

    def question(self, number: int, tools: Sequence[str] = tools) -> Question:
        row, names, prices = self.row(number), items(self.split), self.prices()
        if self.split == TEST:
            quantity = int(np.random.default_rng((self.seed, 2, row)).integers(MIN_QUANTITY, MAX_QUANTITY + 1))
        else:
            quantity = MIN_QUANTITY + row // len(names)
        item = names[row % len(names)]
        name = f"catalogue/{self.split}/{quantity} {item}"
        system: tuple[tuple[str, str], ...] = ()
        shots: tuple[Shot, ...] = ()
        if set(self.tools) <= set(tools):
            system, shots = (("system", SYSTEM),), tuple(_shot(*shot) for shot in SHOTS)
        messages = (*system, ("user", _text(quantity, item)))
        return Question(name, messages, (str(quantity * prices[item]),), MATH, name, shots)

    def prices(self) -> dict[str, int]:
        """Item -> price in dollars, of this split."""
        names = items(self.split)
        rng = np.random.default_rng((self.seed, 1, int(self.split == TEST)))
        possible = np.arange(MIN_PRICE, MAX_PRICE + 1)
        # Prices differ within a noun: search shows these items together, and a wrong one must not be right by chance.
        prices = [rng.choice(possible, len(MATERIALS), replace=False) for _ in range(len(names) // len(MATERIALS))]
        return dict(zip(names, np.concatenate(prices).tolist(), strict=True))

    def tool_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        documents = [{"title": item, "text": str(price)} for item, price in self.prices().items()]
        return {"search": {"documents": documents, "top_k": 3, "order": "best_last"}}


def items(split: str) -> list[str]:
    """The items of a split: 80 for training, 64 others for the test."""
    nouns = TEST_NOUNS if split == TEST else TRAIN_NOUNS
    return [f"{material} {noun}" for noun in nouns for material in MATERIALS]


def _text(quantity: int, item: str) -> str:
    return f"What is the price of {quantity} {item}s?"


def _shot(item: str, quantity: int, shown: Mapping[str, int]) -> Shot:
    price = shown[item]
    found = "\n".join(f"{name}: {price}" for name, price in shown.items())
    value = str(quantity * price)
    calls = (ShotCall("search", item, found), ShotCall("python", f"print({quantity} * {price})", value))
    return Shot(_text(quantity, item), calls, value)
