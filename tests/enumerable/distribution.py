"""The distribution of trees, added up from the outcomes of a random process."""

from collections.abc import Iterator

from rllib_arpo.core.tree import QuestionTree
from tests.enumerable.choices import Choices


class Distribution:
    """Trees with their probabilities; those that differ only in the order of their roots teach the same and are one."""

    def __init__(self):
        self._trees: dict[tuple, tuple[float, QuestionTree]] = {}
        self._outcomes: set[tuple[int, ...]] = set()

    def add(self, choices: Choices, tree: QuestionTree) -> None:
        """Adds one outcome, to which `choices` led."""
        outcome = tuple(choices.taken)
        assert outcome[: len(choices.script)] == tuple(choices.script), "the process did not repeat itself"
        assert outcome not in self._outcomes, "an outcome came twice"
        self._outcomes.add(outcome)
        key = up_to_the_order_of_roots(tree)
        probability, first = self._trees.get(key, (0.0, tree))
        self._trees[key] = (probability + choices.probability, first)

    def check(self) -> None:
        """Raises: AssertionError: the probabilities of the outcomes do not add up to 1."""
        mass = sum(probability for probability, _ in self)
        assert abs(mass - 1.0) < 1e-9, f"the probabilities of all trees add up to {mass}"

    def __iter__(self) -> Iterator[tuple[float, QuestionTree]]:
        return iter(self._trees.values())

    def probabilities(self) -> dict[tuple, float]:
        """By tree, in a form that two distributions can be compared in."""
        return {key: probability for key, (probability, _) in self._trees.items()}


def up_to_the_order_of_roots(tree: QuestionTree) -> tuple:
    """Equal for two trees if one is the other with its roots permuted."""
    subtrees: dict[str, list[tuple]] = {}
    for t, reward in zip(tree.trajectories, tree.returns().tolist(), strict=True):
        root, _, rest = t.agent_id.partition(".")
        own_tokens = tuple(turn.token_ids.tobytes() for turn in t.turns)
        subtrees.setdefault(root, []).append((rest, t.num_inherited_turns, own_tokens, reward))
    return tuple(sorted(tuple(sorted(subtree)) for subtree in subtrees.values()))
