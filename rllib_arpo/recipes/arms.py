"""Recipes that run with several algorithms, fork rules and seeds: their arguments, and the configuration."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ray.tune.registry import get_trainable_cls

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import rules_with
from rllib_arpo.options.tables import ADAPTIVE_ROLLOUT, OPTIONS

#: Share of the longest response over which the overlong penalty falls, as in DAPO's paper (4,096 of 20,480).
OVERLONG_SHARE = 5


def _or_name(number: Callable[[str], float]) -> Callable[[str], float | str]:
    def number_or_name(text: str) -> float | str:
        try:
            return number(text)
        except ValueError:
            return text

    return number_or_name


def _budget(text: str) -> dict[str, float]:
    unit, _, amount = text.partition("=")
    return {unit: float(amount)}


#: Settings of `adaptive_rollout` that the command line has under the same names, and their types.
FORK_OPTIONS: dict[str, Callable[[str], Any]] = {
    "num_initial_rollouts": int, "branching": str, "branch_width": _or_name(int),
    "branch_threshold": _or_name(float), "branch_share": float,
    "branch_base_probability": float, "branch_entropy_weight": float, "random_fork_probability": float,
    "consecutive_fork_penalty": float, "pre_monitoring_sensitivity": float, "entropy_window": int,
    "entropy_estimator": str, "entropy_normalization": str, "entropy_baseline": str,
    "entropy_baseline_quantile": float, "entropy_baseline_questions": int, "budget_allocation": str,
}  # fmt: skip


def add_arm_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the arguments of recipes that are run with several algorithms (RLlib's `--algo`), fork rules and seeds."""
    parser.add_argument("--seed", type=int, default=0, help="of the order of the questions and of the forks")
    parser.add_argument("--num-rollouts", type=int, help="M, trajectories per question; default: the recipe's")
    parser.add_argument(
        "--rollout-budget",
        type=_budget,
        metavar="UNIT=NUMBER",
        help="what a question may spend, e.g. tool_calls=96; --num-rollouts is then the most trajectories",
    )
    parser.add_argument("--attribution", help="'soft' or 'hard' advantages of tokens that trajectories share")
    parser.add_argument("--baseline", help="what a reward is compared with, e.g. 'node_values'")
    for name, kind in FORK_OPTIONS.items():
        doc = ADAPTIVE_ROLLOUT[name].doc.replace("%", "%%")
        parser.add_argument(_flag(name), type=kind, help=f"{doc} Default: the recipe's, or the algorithm's")
    parser.add_argument("--questions-per-batch", type=int, help="questions an update; default: the recipe's")
    parser.add_argument(
        "--questions-per-minibatch",
        type=int,
        help="default: the recipe's (all of a batch in one step, if it has none), and at most half of a batch with an "
        "algorithm that needs several steps",
    )
    parser.add_argument("--num-epochs", type=int, help="how often an update passes over its batch; default: once")
    parser.add_argument(
        "--record-share", type=float, help="share of the training questions whose trees are kept for `show`"
    )
    return parser


def arm_config(
    args: argparse.Namespace,
    *,
    num_rollouts: int,
    num_initial_rollouts: int,
    branch_threshold: float,
    max_response_tokens: int,
    questions_per_batch: int,
    questions_per_minibatch: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ARPOConfig:
    """The configuration of the algorithm and the fork rule that the command line names.

    It fits an algorithm's own settings to the recipe's sizes: an overlong penalty (DAPO) begins a fifth of the longest
    response before its end, and a minibatch is at most half a batch if an update must have several steps (AEPO).

    Args:
        args: of a parser that `add_arm_args` has seen.
        num_rollouts, num_initial_rollouts: M, and N of algorithms that fork, where the command line does not say.
        branch_threshold: tau, of the rule "threshold", where the command line does not say.
        max_response_tokens: as in `ARPOConfig`.
        questions_per_batch, questions_per_minibatch: where the command line does not say; None: a whole batch.
        settings: further settings of the recipe. An algorithm's own, in which it differs from ARPO, come first.

    Raises:
        ValueError: an option belongs to forks, but the algorithm does not fork, or belongs to another rule.
    """
    if args.questions_per_batch is not None:
        questions_per_batch = args.questions_per_batch
    config = _algorithm_config(args.algo, settings or {})
    if args.rollout_budget is not None and args.num_rollouts is None:
        raise ValueError("--rollout-budget: say with --num-rollouts how many trajectories a question may have at most.")
    config.adaptive_rollout(
        num_rollouts=args.num_rollouts or num_rollouts,
        rollout_budget=args.rollout_budget,
        max_response_tokens=max_response_tokens,
    )
    _set_fork_rule(config, args)
    if config.branching != "never" and args.num_initial_rollouts is None:
        config.adaptive_rollout(num_initial_rollouts=num_initial_rollouts)
    if args.branch_threshold is None and config.branching in rules_with("branch_threshold"):
        config.adaptive_rollout(branch_threshold=branch_threshold)
    if args.baseline is not None:
        config.training(baseline=args.baseline)
    if args.record_share is not None:
        config.reporting(record_share=args.record_share)
    if args.num_epochs is not None:
        config.training(num_epochs=args.num_epochs)
    if config.overlong_buffer_tokens is not None:
        config.training(overlong_buffer_tokens=max_response_tokens // OVERLONG_SHARE)
    most = questions_per_batch // 2 if config.keep_clipped_gradient else questions_per_batch
    usual = min(questions_per_minibatch or questions_per_batch, most)
    return config.training(
        questions_per_batch=questions_per_batch, questions_per_minibatch=args.questions_per_minibatch or usual
    )


def _algorithm_config(name: str, settings: Mapping[str, Any]) -> ARPOConfig:
    """The configuration of an algorithm with these settings, except where it differs from ARPO by itself."""
    import rllib_arpo

    rllib_arpo.register()  # Tune forgets the names at `ray.shutdown()`.
    config: ARPOConfig = get_trainable_cls(name).get_default_config()
    arpo = ARPOConfig()
    own = {option for option in OPTIONS if getattr(config, option) != getattr(arpo, option)}
    taken = {key: value for key, value in settings.items() if key not in own}
    config.adaptive_rollout(**{key: value for key, value in taken.items() if key in ADAPTIVE_ROLLOUT})
    return config.training(**{key: value for key, value in taken.items() if key not in ADAPTIVE_ROLLOUT})


def _set_fork_rule(config: ARPOConfig, args: argparse.Namespace) -> None:
    given = {name: getattr(args, name) for name in FORK_OPTIONS if getattr(args, name) is not None}
    config.adaptive_rollout(**given)
    if args.attribution is not None:
        config.training(attribution=args.attribution)
        given["attribution"] = args.attribution
    unread = [name for name in given if name != "branching"]
    if config.branching == "never" and unread:
        option = f"{_flag(unread[0])} {given[unread[0]]}"
        raise ValueError(f"{option}: --algo {args.algo} with branching='never' forks nothing.")
    rules = rules_with("branch_threshold")
    if args.branch_threshold is not None and config.branching not in rules:
        option = f"--branch-threshold {args.branch_threshold}"
        raise ValueError(f"{option}: belongs to --branching {' or '.join(rules)}, not to {config.branching!r}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
