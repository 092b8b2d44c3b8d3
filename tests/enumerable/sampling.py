"""Every tree that `TreeSampler` can sample of a tabular problem, with its probability.

The sampler runs as it does in training, on an `EngineLoop` with the scripted engine and an environment. Only chance is
taken from it: the engine's tokens and the sampler's own random numbers are the choices of a script, and every script is
a question of its own. Questions do not touch one another, so many of them are in flight at once.
"""

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.rollout_history import NO_HISTORY
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.engine.engine import EngineConfig, GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedEngine, ScriptedReply
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.fork_schedule import make_schedule
from rllib_arpo.rollout.messages import QuestionRef
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.rollout.tree_sampler import TreeSampler
from tests.enumerable.choices import Choices, ChosenDraws
from tests.enumerable.distribution import Distribution
from tests.enumerable.env import TabularEnv, history_of
from tests.enumerable.problem import History, TabularProblem

#: `num_rollouts` of a budget that never binds, for samplings without top-ups.
UNLIMITED = 100

OUTCOMES_IN_FLIGHT = 500
MAX_OUTCOMES = 20_000


def rollout_settings(config: ARPOConfig | None = None, **keywords) -> RolloutSettings:
    """The settings of a config (`ARPOConfig`) with k = 1, N = 2, tau = 0.5 and one child a fork.

    Args:
        keywords: of `adaptive_rollout`, and `rollout_reference`.
    """
    config = config or ARPOConfig()
    defaults = {"num_rollouts": UNLIMITED, "num_initial_rollouts": 2, "entropy_window": 1, "branch_threshold": 0.5}
    # On a busy machine a deadline would be an outcome; "wide" would divide the unlimited budget.
    keywords = defaults | {"question_deadline_s": 1e6, "branch_width": 1} | keywords
    reference = keywords.pop("rollout_reference", NO_HISTORY)
    return RolloutSettings.from_config(config.adaptive_rollout(**keywords), explore=True, rollout_reference=reference)


def tree_distribution(problem: TabularProblem, settings: RolloutSettings, *, top_up: bool = False) -> Distribution:
    """Runs the sampler once for every outcome that it can have.

    Args:
        top_up: whether the budget that forks leave becomes fresh roots, as in training.

    Raises:
        AssertionError: the probabilities do not add up to 1, an outcome came twice, or the outcomes never end.
    """
    with _young_garbage_only():
        return asyncio.run(_Enumeration(problem, settings, top_up).run())


@contextmanager
def _young_garbage_only() -> Iterator[None]:
    """Collects no garbage but on demand: a full collection walks over all of Ray and Torch, and half the time goes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _InlineExecutor(Executor):
    """Calls at once, in the caller's thread: the scripted engine computes nothing that is worth a thread."""

    def submit(self, function, /, *args, **kwargs) -> Future:
        future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _WithoutTopUps(TreeSampler):
    async def _top_up(self):
        pass


@dataclass
class _Enumeration:
    problem: TabularProblem
    settings: RolloutSettings
    top_up: bool

    def __post_init__(self):
        self._choices: dict[int, Choices] = {}  # Of every question in flight, by its number.
        self._num_questions = 0
        self._turns: dict[History, tuple[list[float], list[ScriptedReply]]] = {}
        kwargs = {"script": self._reply, "vocab_size": self.problem.vocab_size}
        self._engine = ScriptedEngine(EngineConfig("none", engine_kwargs=kwargs))

    async def run(self) -> Distribution:
        distribution = Distribution()
        scripts: list[list[int]] = [[]]
        async with EngineLoop(self._engine, _InlineExecutor()) as loop:
            while scripts:
                assert self._num_questions < MAX_OUTCOMES, f"there are more than {MAX_OUTCOMES} outcomes"
                scripts, now = scripts[:-OUTCOMES_IN_FLIGHT], scripts[-OUTCOMES_IN_FLIGHT:]
                for choices, tree in await asyncio.gather(*(self._sample(loop, script) for script in now)):
                    scripts += choices.alternatives
                    distribution.add(choices, tree)
                self._engine.submitted.clear()
                gc.collect(1)
        distribution.check()
        return distribution

    async def _sample(self, loop: EngineLoop, script: list[int]) -> tuple[Choices, QuestionTree]:
        self._num_questions += 1
        question, choices = self._num_questions, Choices(script)
        self._choices[question] = choices
        make = TreeSampler if self.top_up else _WithoutTopUps
        env = TabularEnv(self.problem)
        sampler = make(env, loop, self.settings, self.problem.vocab_size, QuestionRef(question))
        draws, settings = ChosenDraws(choices), self.settings
        sampler._rng = draws
        sampler._schedule = make_schedule(settings.budget_allocation, draws, deterministic=settings.deterministic)
        sampled = await sampler.sample()
        del self._choices[question]
        return choices, sampled.tree

    def _reply(self, request: GenerationRequest, _times_asked: int) -> ScriptedReply:
        """One turn by the policy of the problem; which question asks, the request's id tells."""
        choices = self._choices[int(request.request_id.split("/")[1])]
        probabilities, replies = self._turns_from(history_of(request.prompt_token_ids, self.problem))
        return replies[choices.choose(probabilities)]

    def _turns_from(self, history: History) -> tuple[list[float], list[ScriptedReply]]:
        """The probability of every turn that may follow, and the reply that it is."""
        if history not in self._turns:
            turns = self.problem.turns_from(history)
            replies = [_reply_of(self.problem, history, tokens) for tokens, _ in turns]
            self._turns[history] = [probability for _, probability in turns], replies
        return self._turns[history]


def _reply_of(problem: TabularProblem, history: History, tokens: History) -> ScriptedReply:
    rows = [problem.rows[history + tokens[:i]] for i in range(len(tokens))]
    probabilities = [problem.probabilities[row][token] for row, token in zip(rows, tokens, strict=True)]
    entropies = np.array([problem.entropies[row] for row in rows], dtype=np.float32)
    return ScriptedReply(tokens, entropies, np.log(probabilities).astype(np.float32))
