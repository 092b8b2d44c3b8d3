"""Simulates the fork rules on the trails: the calls and the signal-to-noise of a gradient by the shape of the tree.

python -m release.evidence.fork_shapes --form main --shapes 16:4:1 16:4:3 16:2:wide 32:4:7

A shape is M:N:Z. The first table has the arms of the first study, the second one the shapes that were asked for, each
with the threshold's forks and with random ones; "measured" are the calls of a study's runs, where it has the shape.
Signal-to-noise is |E g|^2 / tr Cov(g) of a question's gradient g by the logits of its decisions, with group-normalised
advantages, at the weights of the cold start (each decision is right with the probability of the demonstrations), with
its standard error by the bootstrap over questions. Everything but the decisions is taken for certain:
`gradient_variance` measures a model's gradient instead.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from release.evidence.study_figures import Run, finished_runs
from release.evidence.study_rows import fork_rate, read_table
from rllib_arpo.core.advantages import group_advantages
from rllib_arpo.core.branching import WIDE, children_per_fork
from rllib_arpo.envs.tasks.trail_forms import FORMS, TrailForm

RESULTS = Path(__file__).parent / "results"
#: Form -> the rows of its studies, the first one last, and the end of the arms' names.
STUDIES = {
    "main": (("shapes-small", ""), ("trails-small", "-two-steps")),
    "late": (("shapes-late-small", ""), ("trails-late-small", "")),
}
#: Questions of an update in these studies.
QUESTIONS = 8
ROLLOUTS = 16
#: Questions that are simulated for each shape.
SIMULATED = 4000
RESAMPLES = 200
#: The share of a threshold arm's responses that decide nothing and fork all the same.
STRAY_FORKS = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """M, N and Z, and the probabilities with which a response forks: `decisive` ones, and all `other` ones."""

    rollouts: int
    roots: int
    width: int
    decisive: float
    other: float


@dataclass(frozen=True, slots=True)
class Found:
    """Of a shape: calls a question, mean number of calls above a fork (NaN without forks), |E g|^2 / tr Cov(g)."""

    calls: float
    depth: float
    signal: float
    error: float


def sample_tree(
    form: TrailForm, shape: Shape, right: float, rng: np.random.Generator
) -> tuple[list[list[int]], list[int]]:
    """The choices [L][decisions] of a tree's leaves (0 is right), and the calls above each of its forks.

    As with `deterministic=True`, the nodes of a turn are decided together, in the order of agent ids.
    """
    pattern = form.patterns[rng.integers(len(form.patterns))]
    hits = [right, *[(1.0 - right) / (form.num_hits - 1)] * (form.num_hits - 1)]
    agents: dict[tuple[int, ...], list[int]] = {(i,): [] for i in range(shape.roots)}
    depths: list[int] = []
    for page in range(form.num_pages):
        rate = shape.decisive if page in pattern else shape.other
        for name in sorted(agents):
            left = shape.rollouts - shape.roots - len(depths)
            if left and rng.random() < rate:
                children = min(shape.width, left)
                depths += [page + 1] * children
                first = sum(other[:-1] == name for other in agents)
                agents |= {(*name, first + i): list(agents[name]) for i in range(children)}
        if page in pattern:
            for choices in agents.values():
                choices.append(int(rng.choice(form.num_hits, p=hits)))
    top_ups = shape.rollouts - shape.roots - len(depths)
    fresh = rng.choice(form.num_hits, p=hits, size=(top_ups, form.num_decisions)).tolist()
    return [*agents.values(), *fresh], depths


def gradient(leaves: Sequence[Sequence[int]], num_hits: int, right: float) -> np.ndarray:
    """The gradient by the logits of all decisions, one row of `num_hits` for each history of choices, flat."""
    policy = np.array([right, *[(1.0 - right) / (num_hits - 1)] * (num_hits - 1)])
    rewards = np.array([float(not any(choices)) for choices in leaves])
    rows = sum(num_hits**i for i in range(len(leaves[0])))
    g = np.zeros((rows, num_hits))
    for choices, advantage in zip(leaves, group_advantages(rewards) / len(leaves), strict=True):
        row = 0
        for choice in choices:
            g[row] -= advantage * policy
            g[row, choice] += advantage
            row = row * num_hits + choice + 1
    return g.ravel()


def simulate(form: TrailForm, shape: Shape, questions: int) -> Found:
    """Samples `questions` trees of a shape."""
    rng = np.random.default_rng(0)
    right = form.demonstrated_right + (1.0 - form.demonstrated_right) / form.num_hits
    trees = [sample_tree(form, shape, right, rng) for _ in range(questions)]
    depths = [depth for _, forks in trees for depth in forks]
    calls = shape.rollouts * form.num_pages - sum(depths) / questions
    gradients = np.array([gradient(leaves, form.num_hits, right) for leaves, _ in trees])
    counts = rng.multinomial(questions, np.full(questions, 1.0 / questions), size=RESAMPLES)
    error = float(np.std([signal_to_noise(gradients, weights) for weights in counts], ddof=1))
    signal = signal_to_noise(gradients, np.ones(questions))
    return Found(calls, float(np.mean(depths)) if depths else float("nan"), signal, error)


def signal_to_noise(gradients: np.ndarray, weights: np.ndarray) -> float:
    """|E g|^2 / tr Cov(g), both without bias. Args: gradients [n, d]; weights [n], whole, n in all."""
    n = len(gradients)
    mean = weights @ gradients / n
    noise = float(weights @ (gradients**2).sum(axis=1) / n - (mean**2).sum()) * n / (n - 1)
    return (float((mean**2).sum()) - noise / n) / noise


def measured_runs(form: str) -> dict[str, list[Run]]:
    """Arm -> its runs, one a seed; an arm that both studies have is that of the first."""
    found: dict[str, list[Run]] = {}
    for study, end in STUDIES[form]:
        arms: dict[str, list[Run]] = {}
        for run in finished_runs(read_table(RESULTS / f"{study}.parquet"))[0]:
            if run.arm.endswith(end):
                arms.setdefault(run.arm.removesuffix(end), []).append(run)
        found |= arms
    return found


def calls_of(runs: Sequence[Run]) -> str:
    """Calls a question, as a cell; empty without a run."""
    calls = [run.rows[-1]["tool_calls"] / run.rows[-1]["iteration"] / QUESTIONS for run in runs]
    return f"{np.mean(calls):.1f}" if calls else ""


def fork_rate_of(runs: Sequence[Run]) -> float:
    """The share of decided responses that forked."""
    return float(np.mean([fork_rate(run.rows) for run in runs]))


def shape(text: str) -> tuple[int, int, int]:
    """M, N and Z of "M:N:Z".

    Raises:
        ValueError: it is not 1 <= N <= M with M >= 2, and 1 <= Z or "wide".
    """
    *sizes, width = text.split(":")
    rollouts, roots = map(int, sizes)
    if rollouts < 2 or not 1 <= roots <= rollouts or (width != WIDE and int(width) < 1):
        raise ValueError(text)
    return rollouts, roots, children_per_fork(width if width == WIDE else int(width), rollouts, roots)


def _table(form: TrailForm, shapes: dict[str, tuple[Shape, str]]) -> str:
    base = simulate(form, Shape(ROLLOUTS, ROLLOUTS, 1, 0.0, 0.0), SIMULATED)
    lines = ["| shape | calls | measured | of GRPO's calls | fork depth | signal-to-noise / GRPO |", "|---" * 6 + "|"]
    for name, (shape, measured) in shapes.items():
        found = simulate(form, shape, SIMULATED)
        cells = f"{found.calls:.1f} | {measured} | {found.calls / base.calls:.2f} | {found.depth:.1f}"
        error = math.hypot(found.error / found.signal, base.error / base.signal) * found.signal / base.signal
        lines.append(f"| {name} | {cells} | {found.signal / base.signal:.2f} +- {error:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=STUDIES, default="main")
    shapes = [*map(shape, ("16:4:1", "16:4:3", "16:2:wide", "32:4:7"))]
    parser.add_argument("--shapes", nargs="*", type=shape, default=shapes, metavar="M:N:Z")
    args = parser.parse_args()
    form, measured = FORMS[args.form], measured_runs(args.form)
    arms = {"grpo": (ROLLOUTS, 0.0, 0.0)}
    for arm, roots in (("", 8), ("-n4", 4)):
        rate = fork_rate_of(measured[f"random{arm}"])
        arms |= {f"threshold{arm}": (roots, 1.0, STRAY_FORKS), f"random{arm}": (roots, rate, rate)}
    rows = {n: (Shape(ROLLOUTS, roots, 1, *rates), calls_of(measured[n])) for n, (roots, *rates) in arms.items()}
    print(_table(form, rows), end="\n\n")
    asked = {}
    for rollouts, roots, width in args.shapes:
        arm = f"{'' if rollouts == ROLLOUTS else f'm{rollouts}-'}n{roots}-z{width}"
        rate = fork_rate_of(measured.get(f"random-{arm}", measured["random-n4"]))
        for rule, name, rates in (("threshold", arm, (1.0, STRAY_FORKS)), ("random", f"random-{arm}", (rate, rate))):
            cell = calls_of(measured.get(name, []))
            asked[f"{rollouts}:{roots}:{width} {rule}"] = Shape(rollouts, roots, width, *rates), cell
    print(_table(form, asked))


if __name__ == "__main__":
    main()
