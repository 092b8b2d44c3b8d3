"""Checks that keys fit together: options, RLlib's keys and the engine's arguments."""

from collections.abc import Iterator
from itertools import chain

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.core.branching import BRANCHING_RULES, rules_with
from rllib_arpo.engine.vllm_versions import check_vllm_kwargs, check_vllm_version
from rllib_arpo.envs.tasks.task import TEST
from rllib_arpo.learner.placement import TWO_ENGINES, TWO_LEARNERS, why_not_placed
from rllib_arpo.options.option import Need
from rllib_arpo.options.tables import OPTIONS
from rllib_arpo.validation.resources import gpu_shares
from rllib_arpo.weights import transfer_backend
from rllib_arpo.weights.transports import transfer_refusals


def _test_is_held_out(config: AlgorithmConfig) -> bool:
    """Whether "test" in `evaluation_config` means what it says: a `hub_split` of training would take its place."""
    own = (config.evaluation_config or {}).get("env_config") or {}
    divided = "hub_split" in own or {**config.env_config, **own}.get("train_fraction")
    return bool(own.get("split") != TEST or divided or not config.env_config.get("hub_split"))


#: Keys of RLlib that only training reads -> their condition.
NEEDS_OF_RLLIB = {
    "grad_clip": Need(
        "with log_gradients=True and no grad_clip RLlib drops all gradients; set a grad_clip",
        lambda c: c.grad_clip is not None or not c.log_gradients,
        {"grad_clip": None, "log_gradients": True},
    ),
    "shuffle_batch_per_epoch": Need(
        "there is only one minibatch; set questions_per_minibatch below questions_per_batch",
        lambda c: not c.shuffle_batch_per_epoch or c.questions_per_minibatch < c.questions_per_batch,
        {"shuffle_batch_per_epoch": True, "questions_per_minibatch": 128},
    ),
    "evaluation_config": Need(
        "evaluation would also ask env_config['hub_split']={env_config[hub_split]!r}; give it a hub_split of its own",
        _test_is_held_out,
        {
            "env_config": {"task": "gsm8k", "hub_split": "train[:2000]"},
            "evaluation_config": {"env_config": {"split": "test"}},
        },
    ),
    "num_gpus_per_learner": Need(
        TWO_LEARNERS,
        lambda c: why_not_placed(gpu_shares(c), c.num_learners) != TWO_LEARNERS,
        {"num_learners": 2, "num_gpus_per_learner": 0.5},
    ),
    "num_gpus_per_env_runner": Need(
        TWO_ENGINES,
        lambda c: why_not_placed(gpu_shares(c), c.num_learners) != TWO_ENGINES,
        {"num_learners": 2, "num_gpus_per_learner": 0.55, "num_env_runners": 2, "num_gpus_per_env_runner": 0.45},
    ),
}


def check_combinations(config: AlgorithmConfig) -> None:
    """Checks the conditions between keys; `check_keys` has checked each key alone.

    Raises:
        ValueError: the first sentence that applies.
    """
    found = [_of_options(config), _of_engine(config)]
    if not config.in_evaluation:
        found.append(_of_rllib(config))
        if transfer_backend(config.weight_sync):
            found.append(transfer_refusals(config.weight_sync, config))
    for sentence in chain.from_iterable(found):
        raise ValueError(sentence)


def _of_options(config: AlgorithmConfig) -> Iterator[str]:
    for name, option in OPTIONS.items():
        if option.is_read(config):
            yield from (need.sentence(name, config) for need in option.needs if not need.holds(config))
    # With `branching="never"` options of other rules may stay, so a baseline differs in this key alone.
    if config.branching != "never":
        for name in dict.fromkeys(name for rule in BRANCHING_RULES.values() for name in rule.options):
            need = belongs_to_rules(name)
            if not need.holds(config):
                yield need.sentence(name, config)


def belongs_to_rules(name: str) -> Need:
    """The condition that a fork rule which reads this option is chosen, of the rules registered so far."""
    rules, default = rules_with(name), OPTIONS[name].default
    return Need(
        f"only branching={' or '.join(map(repr, rules))} reads it, not {{branching!r}}",
        lambda c: c.branching in rules or getattr(c, name) == default,
        {},
    )


def _of_rllib(config: AlgorithmConfig) -> Iterator[str]:
    return (need.sentence(key, config) for key, need in NEEDS_OF_RLLIB.items() if not need.holds(config))


def _of_engine(config: AlgorithmConfig) -> Iterator[str]:
    """Sentences about arguments that the engine cannot have here."""
    for key in ("top_p", "top_k", "min_p"):
        if key in config.engine_kwargs:
            yield f"engine_kwargs[{key!r}]: training must sample from the whole distribution; leave {key} out."
    if config.engine == "vllm":
        check_vllm_version()
        check_vllm_kwargs(config.engine_kwargs)
        size, num_gpus = config.engine_kwargs.get("tensor_parallel_size", 1), config.num_gpus_per_env_runner
        if 0 < num_gpus < size and size > 1:
            of_engine = f"engine_kwargs['tensor_parallel_size']={size}"
            yield f"{of_engine}: needs {size} GPUs in every env runner, but num_gpus_per_env_runner={num_gpus:g}."
