"""Checks each key of a configuration, and raises an error for RLlib settings that ARPO does not use.

The tables below list the keys that ARPO uses, with their rules, and harmless ones. Users may not change any other key,
so a key that a new RLlib adds is refused until it is listed here.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.core.branching import AUTO, looks_back, reads_p, rules_with
from rllib_arpo.options.option import Reader
from rllib_arpo.options.rules import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SWITCH,
    Rule,
    a_dict,
    at_least,
    did_you_mean,
    one_of,
    optional,
    or_name,
    shown,
    takes,
)
from rllib_arpo.options.tables import OPTIONS


def _is_learning_rate(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return isinstance(value, int | float) and POSITIVE.test(value)  # RLlib takes any other type for a schedule.
    if len(value) < 2 or not all(isinstance(point, list | tuple) and len(point) == 2 for point in value):
        return False
    times, rates = zip(*value, strict=True)
    if not all(map(NOT_NEGATIVE.test, times)) or not all(map(NOT_NEGATIVE.test, rates)):
        return False
    return times[0] == 0 and all(a < b for a, b in pairwise(times)) and any(rates)


def _are_resources(value: Any) -> bool:
    return a_dict(of=NOT_NEGATIVE).test(value) and not value.keys() & {"CPU", "GPU", "memory", "object_store_memory"}


def _is_learner_class(value: Any) -> bool:
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

    return value is None or (isinstance(value, type) and issubclass(value, ARPOTorchLearner))


def _is_env_runner_class(value: Any) -> bool:
    from rllib_arpo.rollout.env_runner import ARPOEnvRunner

    return isinstance(value, type) and issubclass(value, ARPOEnvRunner)


def _is_callback(value: Any) -> bool:
    return value is None or callable(value) or (isinstance(value, list | tuple) and all(map(callable, value)))


def _is_only_policy(value: Any) -> bool:
    """Whether these names, or this dict of specifications, are just "default_policy" without settings of its own."""
    if not isinstance(value, dict | list | tuple | set | frozenset) or set(value) != {"default_policy"}:
        return False
    spec = value["default_policy"] if isinstance(value, dict) else None
    parts = spec if isinstance(spec, list | tuple) else list(vars(spec).values()) if spec is not None else []
    return not any(parts)


_RESOURCES = Rule("a dict from resource names, except CPU, GPU and memory, to numbers >= 0", _are_resources)
_CALLBACK = Rule("a function, or a list of functions", _is_callback)
_CONNECTOR = Rule(
    "a function that takes an observation space and an action space and returns a ConnectorV2 or a list of them",
    lambda value: callable(value) and not isinstance(value, ConnectorV2) and takes(value, 2),
)
_LEARNING_RATE = Rule(
    "a finite int or float > 0, or a schedule [[0, lr], [timestep, lr], ...] with growing timesteps and numbers >= 0",
    _is_learning_rate,
)

#: Keys that training and evaluation use, and their rules; None: RLlib or another check tests the value.
USED: dict[str, Rule | None] = {
    "env": None,
    "env_config": a_dict(),
    # Tune's placement group and Ray's actors.
    "num_cpus_per_env_runner": NOT_NEGATIVE,
    "num_gpus_per_env_runner": NOT_NEGATIVE,
    "custom_resources_per_env_runner": _RESOURCES,
    "env_runner_cls": Rule("a subclass of ARPOEnvRunner", _is_env_runner_class),
    "num_envs_per_env_runner": at_least(1),
    "validate_env_runners_after_construction": SWITCH,
    "restart_failed_env_runners": SWITCH,
    "max_num_env_runner_restarts": Rule("an integer >= 0, or -1 for no limit", at_least(-1).test),
    "delay_between_env_runner_restarts_s": NOT_NEGATIVE,
    "env_runner_health_probe_timeout_s": POSITIVE,
    "env_runner_restore_timeout_s": POSITIVE,
    "callbacks_class": _CALLBACK,
    "callbacks_on_env_runners_recreated": _CALLBACK,
    "callbacks_on_environment_created": _CALLBACK,
    "callbacks_on_episode_end": _CALLBACK,
    "callbacks_on_sample_end": _CALLBACK,
    "stats_cls_lookup": None,
    "seed": optional(SEED),
    "_validate_config": None,
}
#: Keys that evaluation does not read: `evaluation_config` may not change them.
USED_IN_TRAINING: dict[str, Rule | None] = {
    "algo_class": None,
    # Tune's placement group and Ray's actors.
    "placement_strategy": one_of("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
    "num_cpus_for_main_process": NOT_NEGATIVE,
    "custom_resources_for_main_process": _RESOURCES,
    "num_env_runners": COUNT,
    "evaluation_num_env_runners": COUNT,
    "num_learners": COUNT,
    "num_cpus_per_learner": or_name(NOT_NEGATIVE, "auto"),
    "num_gpus_per_learner": NOT_NEGATIVE,
    "custom_resources_per_learner": optional(_RESOURCES),
    "local_gpu_idx": COUNT,
    # The learner.
    "lr": _LEARNING_RATE,
    "grad_clip": optional(POSITIVE),
    "grad_clip_by": one_of("value", "norm", "global_norm"),
    "num_epochs": at_least(1),
    "shuffle_batch_per_epoch": SWITCH,
    "log_gradients": SWITCH,
    "_learner_class": Rule("a subclass of ARPOTorchLearner", _is_learner_class),
    "_learner_connector": optional(_CONNECTOR),
    "_model_config": None,
    "_rl_module_spec": None,
    # The driver.
    "evaluation_interval": optional(COUNT),
    "evaluation_duration": at_least(1),
    "evaluation_config": optional(
        a_dict("a dict of the keys that differ in evaluation, such as ARPOConfig.overrides() makes")
    ),
    "log_level": optional(one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")),
    "log_sys_usage": SWITCH,
    "callbacks_on_algorithm_init": _CALLBACK,
    "callbacks_on_checkpoint_loaded": _CALLBACK,
    "callbacks_on_evaluate_start": _CALLBACK,
    "callbacks_on_evaluate_end": _CALLBACK,
    "callbacks_on_train_result": _CALLBACK,
}
#: Keys without effect here, whatever their value: RLlib sets them itself, or they refine a key that is refused.
HARMLESS = {
    "_is_atari", "_is_frozen", "in_evaluation", "simple_optimizer",
    "eager_tracing", "eager_max_retraces", "tf_session_args", "local_tf_session_args",
    "torch_compile_learner_what_to_compile", "torch_compile_learner_dynamo_backend",
    "torch_compile_learner_dynamo_mode", "torch_compile_worker_dynamo_backend", "torch_compile_worker_dynamo_mode",
    "normalize_actions", "clip_actions", "disable_env_checking", "episode_lookback_horizon", "learner_config_dict",
    "merge_env_runner_states", "broadcast_env_runner_states", "sync_filters_on_rollout_workers_timeout_s",
    "env_runner_state_server_max_concurrency", "max_requests_in_flight_per_aggregator_actor",
    "max_requests_in_flight_per_learner", "evaluation_auto_duration_min_env_steps_per_sample",
    "evaluation_auto_duration_max_env_steps_per_sample",
}  # fmt: skip

_QUESTIONS = "does nothing in ARPO; use questions_per_batch"
_ONE_BATCH = "does nothing in ARPO; use questions_per_batch: one iteration is one batch"
_DEADLINE = "does nothing in ARPO; use question_deadline_s, which bounds every question"
_ONE_POLICY = "ARPO has one policy, which plays every trajectory: the model that language_model() names"
_NO_MODULE = "an engine samples, not an RLModule; use learner_connector or the environment"
#: Callbacks that ARPO never calls.
NEVER_CALLED = ("on_episode_created", "on_episode_start", "on_episode_step")
NOT_CALLED = "is never called, since ARPO makes an episode only when its question has ended; use on_episode_end"
_NEW_STACK = "ARPO runs only on RLlib's new API stack"
#: For some refused keys, words that complete the sentence "key=value: ...".
HINTS = {
    "framework_str": "only 'torch' is supported",
    "torch_compile_learner": "does nothing in ARPO; use learner_compile",
    "torch_skip_nan_gradients": "ARPO ends the run at a gradient that is not finite, before it changes the weights",
    "num_gpus": "does nothing in ARPO; use num_gpus_per_learner",
    "create_local_env_runner": "a local env runner beside remote ones would start an engine that has nothing to do",
    **dict.fromkeys(("sample_timeout_s", "evaluation_sample_timeout_s"), _DEADLINE),
    **dict.fromkeys(("_env_to_module_connector", "_module_to_env_connector"), _NO_MODULE),
    "batch_mode": "ARPO samples whole questions",
    "explore": "training always samples; only evaluation_config can set explore=False",
    **dict.fromkeys(("rollout_fragment_length", "train_batch_size", "_train_batch_size_per_learner"), _QUESTIONS),
    "minibatch_size": "does nothing in ARPO; use questions_per_minibatch",
    "gamma": "does nothing in ARPO: a trajectory's reward is not discounted",
    "model": "does nothing in ARPO; use language_model()",
    "optimizer": "does nothing in ARPO; use lr, adam_betas and weight_decay",
    "_torch_lr_scheduler_classes": "a restored run would begin it again; use lr=[[0, lr], [timestep, lr], ...]",
    **dict.fromkeys((f"callbacks_{name}" for name in NEVER_CALLED), NOT_CALLED),
    **dict.fromkeys(("policies", "policies_to_train", "policy_mapping_fn"), _ONE_POLICY),
    "evaluation_duration_unit": "ARPO counts evaluation_duration in questions; leave it at 'episodes'",
    "evaluation_parallel_to_training": "evaluation needs the weights of the iteration that has just ended",
    "custom_evaluation_function": "does nothing in ARPO; override ARPO.evaluate() or use a callback",
    **{f"min_{name}_per_iteration": _ONE_BATCH for name in ("time_s", "train_timesteps", "sample_timesteps")},
    "ignore_env_runner_failures": "ARPO always gives the questions of a failed env runner to the others",
    **dict.fromkeys(("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2"), _NEW_STACK),
}
#: For some refused keys, a test of (configuration, value): True if the value says what ARPO does anyway.
ALLOWED: dict[str, Callable[[AlgorithmConfig, Any], bool]] = {
    "create_local_env_runner": lambda config, _value: config.num_env_runners == 0,
    "rollout_fragment_length": lambda config, _value: config.in_evaluation,
    "explore": lambda config, _value: config.in_evaluation,
    "batch_mode": lambda _config, value: value in ("truncate_episodes", "complete_episodes"),
    "policies": lambda _config, value: _is_only_policy(value),
    "policies_to_train": lambda _config, value: value is None or _is_only_policy(value),
}
#: Keys whose underscore RLlib's setters leave out.
_PRIVATE = {
    "_train_batch_size_per_learner", "_env_to_module_connector", "_module_to_env_connector", "_learner_connector",
    "_learner_class", "_model_config", "_rl_module_spec",
}  # fmt: skip
#: Key -> who reads it, of the options and of RLlib's keys that ARPO uses.
READERS = (
    {name: option.reader for name, option in OPTIONS.items()}
    | dict.fromkeys(USED, Reader.ENV_RUNNER)
    | dict.fromkeys(("env", "env_config", "num_envs_per_env_runner", "seed"), Reader.ROLLOUT)
    | dict.fromkeys(USED_IN_TRAINING, Reader.TRAINING)
)
#: The values that describe greedy decoding.
GREEDY = {"num_rollouts": 1, "num_initial_rollouts": 1, "branching": "never"}


def keyword(key: str) -> str:
    """The keyword of RLlib's setters for the attribute `key`."""
    if key == "framework_str":
        return "framework"
    if key.startswith("callbacks_on_"):
        return key.removeprefix("callbacks_")
    return key.removeprefix("_") if key in _PRIVATE else key


#: Keys that RLlib itself puts into a configuration's dict.
RLLIB_KEYS = {"class"}
#: The words before a key of `evaluation_config` in an error message.
OF_EVALUATION = "evaluation_config: "


def check_keys(config: AlgorithmConfig) -> None:
    """Checks all keys, each by itself.

    Raises:
        ValueError: one sentence that names the first key that is unknown, is refused or breaks its rule.
    """
    defaults = type(config)()
    _check_names(vars(config), defaults)
    _check_values(config, vars(config), defaults)
    if config.evaluation_config is not None:
        _check_names(config.evaluation_config, defaults, OF_EVALUATION)
        _check_read_in_evaluation(config)
        _check_values(config.get_evaluation_config_object(), config.evaluation_config, defaults, OF_EVALUATION)


def _check_names(keys: Iterable[str], defaults: AlgorithmConfig, where: str = "") -> None:
    """Finds typing errors, since `update_from_dict` sets any key."""
    kind = type(defaults)
    known = [key for key in vars(defaults) if not key.startswith("_")]
    for key in keys:
        if callable(getattr(kind, key, None)):
            raise ValueError(f"{where}{key!r} is a method of {kind.__name__}: write its keywords as keys.")
        if not key.startswith("_") and key not in RLLIB_KEYS and not hasattr(defaults, key):
            raise ValueError(f"{where}{key!r} is not a key of {kind.__name__}.{did_you_mean(key, known)}")


def _check_values(
    config: AlgorithmConfig, values: Mapping[str, Any], defaults: AlgorithmConfig, where: str = ""
) -> None:
    rules = {key: option.rule for key, option in OPTIONS.items()} | USED | USED_IN_TRAINING
    for key, default in vars(defaults).items():
        if key not in values or key in HARMLESS:
            continue
        name, value = where + keyword(key), values[key]
        if key not in rules:
            _check_unchanged(config, key, name, value, default)
        elif (rule := rules[key]) is not None:
            rule.check(name, value)


def _check_unchanged(config: AlgorithmConfig, key: str, name: str, value: Any, default: Any) -> None:
    # In this order: a stored configuration has a policy as a tuple, and RLlib's default cannot be compared with that.
    if not (key in ALLOWED and ALLOWED[key](config, value)) and value != default:
        usual = f"ARPO does not use this key of RLlib; leave it at {shown(default)}"
        raise ValueError(f"{name}={shown(value)}: {HINTS.get(key, usual)}.")


def _check_read_in_evaluation(config: AlgorithmConfig) -> None:
    """A key of `evaluation_config` that evaluation does not read may only repeat training's value."""
    SWITCH.check(f"{OF_EVALUATION}explore", config.evaluation_config.get("explore", False))
    for key, value in config.evaluation_config.items():
        if value != getattr(config, key) and (reason := _why_unread(config, key, value)):
            raise ValueError(f"{OF_EVALUATION}{keyword(key)}={shown(value)}: {reason}.")


#: These decide what a rise of 0.1 means.
_UNITS_OF_RISES = ("entropy_estimator", "entropy_normalization", "entropy_window")


def _why_unread(config: AlgorithmConfig, key: str, value: Any) -> str | None:
    """The reason why evaluation does not use this value, which differs from training's; None if it does."""
    reader, given = READERS.get(key), getattr(config, key)
    samples = config.evaluation_config.get("explore", False)
    rule = config.evaluation_config.get("branching", "never")
    reads_tau = samples and rule in rules_with("branch_threshold")
    # These follow earlier questions, which training's configuration asks for.
    follows = (key, value) == ("branch_threshold", AUTO) and reads_tau
    follows |= key == "branching" and isinstance(value, str) and looks_back(value)
    threshold = config.evaluation_config.get("branch_threshold", config.branch_threshold)
    if samples and isinstance(rule, str) and key in _UNITS_OF_RISES:
        if reads_tau and threshold == AUTO:
            return "tau follows training's rises, which have another unit; give evaluation a number as branch_threshold"
        if looks_back(rule):
            return "the rule takes training's rises, which have another unit; take another branching"
        if reads_p(rule) and config.evaluation_config.get("entropy_baseline", config.entropy_baseline) == "running":
            return "the baseline is training's mean, which has another unit; take another entropy_baseline"
    if reader is Reader.SHARED or (samples and follows):
        return "evaluation takes it from training; set it outside evaluation_config"
    if reader is Reader.TRAINING:
        return "evaluation does not read it; set it outside evaluation_config"
    if reader is Reader.ENV_RUNNER and not config.evaluation_num_env_runners:
        is_shorter = key == "max_context_tokens" and isinstance(value, int) and value < given
        of_training = f"evaluation uses the env runners of training, with {keyword(key)}={shown(given)}"
        return None if is_shorter else f"{of_training}; set evaluation_num_env_runners >= 1"
    if reader in (Reader.SAMPLING, Reader.FORKS) and not samples and value != GREEDY.get(key):
        return "greedy decoding does not read it; also set explore=True"
    if reader is Reader.FORKS and rule == "never" and value is not None:
        return "evaluation does not fork; also set branching"
    return None
