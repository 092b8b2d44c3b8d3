"""Checks that keys fit together: of the tree, of overlap, of the update, of learners and engines, of evaluation."""

from collections.abc import Iterator
from itertools import chain

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.connectors import BATCH
from rllib_arpo.core.branching import AUTO, BRANCHING_RULES, WIDE, decides_by_p, looks_back, reads_p, rules_with
from rllib_arpo.core.credit import CREDITS
from rllib_arpo.engine.vllm_versions import check_vllm_kwargs, check_vllm_version
from rllib_arpo.learner.placement import SHARES_OF_PAIRS
from rllib_arpo.options.option import shown
from rllib_arpo.options.tables import LANGUAGE_MODEL, OPTIONS
from rllib_arpo.rollout.fork_schedule import OVER_TREE, RANKED
from rllib_arpo.validation.keys import OF_EVALUATION, USED, keyword
from rllib_arpo.validation.resources import gpus_of_learners
from rllib_arpo.weights import transfer_backend
from rllib_arpo.weights.transports import transfer_refusals

#: Keys that env runners read for each purpose, evaluation or training.
_OF_PURPOSE = {"env", "env_config", "num_envs_per_env_runner", "seed"}
#: Other settings of env runners and their engines: evaluation on those of training cannot have its own (except a
#: shorter context).
_OF_ENV_RUNNER = {*LANGUAGE_MODEL, "progress_bar", *USED} - _OF_PURPOSE


def check_combinations(config: AlgorithmConfig) -> None:
    """Checks keys that each keep their own rule.

    Raises:
        ValueError: one sentence, the first that applies.
    """
    found = [_of_tree(config)]
    if not config.in_evaluation:
        found += [_of_overlap(config), _of_update(config), _of_advantages(config), _of_learners(config)]
    found += [_of_evaluation(config), _of_engine(config)]
    if transfer_backend(config.weight_sync) and not config.in_evaluation:
        found.append(transfer_refusals(config.weight_sync, config))
    for sentence in chain.from_iterable(found):
        raise ValueError(sentence)


def _of_tree(config: AlgorithmConfig) -> Iterator[str]:
    if config.branching != "never":
        initial = f"num_initial_rollouts={config.num_initial_rollouts}"
        if config.num_initial_rollouts > config.num_rollouts:
            yield f"{initial}: must not exceed num_rollouts={config.num_rollouts}."
        if config.num_initial_rollouts == config.num_rollouts and config.pre_monitoring_sensitivity is None:
            yield f"{initial}: leaves none of num_rollouts={config.num_rollouts} to fork; branching='never' says so."
        if not config.max_tool_calls:
            rule = f"branching={config.branching!r}"
            yield f"{rule}: max_tool_calls=0 leaves no response to fork at; branching='never' says so."
        if config.random_fork_probability is None and config.branching in rules_with("random_fork_probability"):
            needs = f"branching={config.branching!r} needs a probability; it has no default"
            yield f"random_fork_probability=None: {needs}."
        if config.branch_width == WIDE and config.pre_monitoring_sensitivity is not None:
            yield "branch_width='wide': not with pre_monitoring_sensitivity, whose N differs between questions."
        if config.branch_width != WIDE and config.branch_width >= config.num_rollouts:
            # "probability" would draw every child.
            yield f"branch_width={config.branch_width}: must be less than num_rollouts={config.num_rollouts}."
        # `branching="never"` may ignore all of these, for baselines.
        yield from _of_entropy(config)
        if config.consecutive_fork_penalty:
            yield from _of_penalty(config)
    if config.max_response_tokens > config.max_context_tokens:
        response = f"max_response_tokens={config.max_response_tokens}"
        yield f"{response}: must not exceed max_context_tokens={config.max_context_tokens}."


def _of_entropy(config: AlgorithmConfig) -> Iterator[str]:
    """Settings that the rule would ignore; those that evaluation cannot change are checked for training alone."""
    branching, baseline = config.branching, config.entropy_baseline
    automatic = config.branch_threshold == AUTO
    followers = {
        "entropy_baseline='running'": baseline == "running",
        "branching='permuted'": looks_back(branching),
        "branch_threshold='auto'": automatic,
        "a pre_monitoring_sensitivity": config.pre_monitoring_sensitivity is not None,
    }
    if config.entropy_baseline_questions is not None and not (any(followers.values()) or config.in_evaluation):
        questions = f"entropy_baseline_questions={config.entropy_baseline_questions}"
        yield f"{questions}: needs one of {', '.join(followers)}."
    if automatic and baseline == "running":
        yield "branch_threshold='auto': entropy_baseline='running' moves already; set a number."
    if config.branch_share is not None and not (automatic or config.in_evaluation):
        yield f"branch_share={config.branch_share}: belongs to branch_threshold='auto'."
    if baseline == "running" and not (reads_p(branching) or config.budget_allocation in RANKED):
        yield f"entropy_baseline='running': branching={branching!r} does not look at the entropy."
    chooses_without = BRANCHING_RULES[branching].is_choosy and not decides_by_p(branching)
    if chooses_without and config.budget_allocation in RANKED:
        yield f"budget_allocation={config.budget_allocation!r}: branching={branching!r} must ignore the entropy."
    for option in dict.fromkeys(name for rule in BRANCHING_RULES.values() for name in rule.options):
        value, rules = getattr(config, option), rules_with(option)
        if branching not in rules and value != OPTIONS[option].default:
            yield f"{option}={value!r}: belongs to branching={' or '.join(map(repr, rules))}, not to {branching!r}."


def _of_penalty(config: AlgorithmConfig) -> Iterator[str]:
    """The penalty multiplies P and needs the decisions above the node."""
    penalty = f"consecutive_fork_penalty={config.consecutive_fork_penalty}"
    if not reads_p(config.branching):
        yield f"{penalty}: branching={config.branching!r} has no P."
    if config.budget_allocation in OVER_TREE:
        allocation = f"budget_allocation={config.budget_allocation!r}"
        yield f"{penalty}: with {allocation} a node may be decided before those above it."


def _of_overlap(config: AlgorithmConfig) -> Iterator[str]:
    """Rollouts during the update need a separate process and a correction for the older weights."""
    if not config.max_weight_lag:
        return
    lag = f"max_weight_lag={config.max_weight_lag}"
    if not config.num_env_runners:
        yield f"{lag}: needs num_env_runners >= 1."
    if config.importance_cap is None:
        yield f"{lag}: needs an importance_cap, which corrects for the older weights."
    if config.deterministic:
        yield (
            f"deterministic=True: with {lag} new weights arrive in the middle of trajectories, so that trees depend on "
            f"timing."
        )


def _of_update(config: AlgorithmConfig) -> Iterator[str]:
    if config.dtype == "float16":
        yield "dtype='float16': gradients would underflow, since the loss is not scaled; use 'bfloat16'."
    if config.max_tokens_per_pass < config.max_context_tokens:
        yield (
            f"max_tokens_per_pass={config.max_tokens_per_pass}: must be at least "
            f"max_context_tokens={config.max_context_tokens}, so that one trajectory fits into a pass."
        )
    if config.kl_in_reward and not config.kl_coeff:
        yield "kl_in_reward=True: needs a kl_coeff > 0."
    if config.kl_in_reward and config.branching != "never":
        yield "kl_in_reward=True: needs branching='never', since a reward-to-go differs between siblings."
    if config.grad_clip is None and config.log_gradients:
        yield "grad_clip=None: RLlib drops all gradients when log_gradients=True has no grad_clip to log."
    buffer = config.overlong_buffer_tokens
    if buffer is not None and buffer > config.max_response_tokens:
        yield f"overlong_buffer_tokens={buffer}: must not exceed max_response_tokens={config.max_response_tokens}."


def _of_advantages(config: AlgorithmConfig) -> Iterator[str]:
    """Advantages must have their inputs, and must differ from the plainer ones."""
    credit = CREDITS.get(config.baseline)
    if credit is not None and config.num_rollouts == 1:
        yield f"num_rollouts=1: baseline='{config.baseline}' compares a question's trajectories; use 'batch'."
    if config.branching == "never":
        plainer = {("attribution", "hard"): "soft", ("leaf_weighting", "branch"): "uniform"}
        if credit is not None and credit.needs_forks:
            plainer["baseline", config.baseline] = "group"
        for (key, value), plain in plainer.items():
            if getattr(config, key) == value:
                same = f"with branching='never' a tree has one leaf; use '{plain}', which is the same"
                yield f"{key}='{value}': {same}."
    if config.max_resample_rounds and config.returns == "to_go":
        yield "returns='to_go': not with max_resample_rounds, which takes equal returns for a group without a signal."
    judges_equal = config.baseline == BATCH or (credit is not None and credit.judges_equal_returns)
    if config.max_resample_rounds and judges_equal:
        yield f"baseline='{config.baseline}': not with max_resample_rounds, which takes equal returns for no signal."
    if config.baseline == BATCH and not config.normalize_std:
        yield "normalize_std=False: baseline='batch' divides by the standard deviation of the whole batch."
    if config.baseline not in ("group", BATCH) and config.returns == "to_go":
        yield f"returns='to_go': not with baseline='{config.baseline}'; use 'group' or 'batch'."
    if config.entropy_advantage_coeff and config.record_entropies != "all":
        coefficient = f"entropy_advantage_coeff={config.entropy_advantage_coeff}"
        yield f"{coefficient}: needs record_entropies='all', the entropy of every token."
    if config.questions_per_minibatch >= config.questions_per_batch:
        yield from _of_whole_batches(config)


def _of_whole_batches(config: AlgorithmConfig) -> Iterator[str]:
    """A minibatch has all questions; the clip bounds that an algorithm has by itself may stay."""
    smaller = "set a questions_per_minibatch below questions_per_batch"
    if config.shuffle_batch_per_epoch:
        yield f"shuffle_batch_per_epoch=True: a single minibatch has all questions; {smaller}."
    if config.num_epochs == 1:
        algorithms_own = type(config)()
        for key in ("clip_low", "clip_high", "dual_clip", "keep_clipped_gradient"):
            value = getattr(config, key)
            if value is True or value != getattr(algorithms_own, key):
                yield f"{key}={value!r}: an update of a single step clips nothing; {smaller}, or num_epochs > 1."


def _of_learners(config: AlgorithmConfig) -> Iterator[str]:
    number, gpus, sharding = config.num_learners, config.num_gpus_per_learner, config.sharding
    if number > 1 and gpus and len(set(gpus_of_learners(config))) < number:
        yield (
            f"num_gpus_per_learner={gpus:g}: Ray would put several of the {number} learners on one GPU, which NCCL "
            f"refuses; {SHARES_OF_PAIRS}."
        )
    if sharding != "none" and number < 2:
        yield f"sharding={sharding!r}: needs learners to share the model, num_learners >= 2 and not {number}."
    if config.optimizer_offload and not gpus:
        yield "optimizer_offload=True: the learners have no GPU; set num_gpus_per_learner."
    if config.optimizer_offload and sharding != "none":
        yield f"optimizer_offload=True: not with sharding={sharding!r}, which cuts up Adam's state."


def _of_evaluation(config: AlgorithmConfig) -> Iterator[str]:
    """Without env runners of its own, evaluation uses those of training."""
    if config.evaluation_num_env_runners:
        return
    for key, wanted in (config.evaluation_config or {}).items():
        if key in _OF_ENV_RUNNER:
            name, given = keyword(key), getattr(config, key)
            if wanted > given if key == "max_context_tokens" else wanted != given:
                yield (
                    f"{OF_EVALUATION}{name}={shown(wanted)}: evaluation uses the env runners of training, with "
                    f"{name}={shown(given)}; set evaluation_num_env_runners >= 1."
                )


def _of_engine(config: AlgorithmConfig) -> Iterator[str]:
    """The engine can do what the configuration asks for; training samples from the whole distribution."""
    for key in ("top_p", "top_k", "min_p"):
        if key in config.engine_kwargs:
            yield f"engine_kwargs[{key!r}]: training samples from the whole distribution, without {key}."
    level, num_gpus = f"sleep_level={config.sleep_level}", config.num_gpus_per_env_runner
    if config.engine == "vllm":
        if config.dtype == "float64":
            yield "dtype='float64': vLLM computes in bfloat16, float16 or float32."
        check_vllm_version()
        check_vllm_kwargs(config.engine_kwargs)
        size = config.engine_kwargs.get("tensor_parallel_size", 1)
        if 0 < num_gpus < size and size > 1:
            of_engine = f"engine_kwargs['tensor_parallel_size']={size}"
            yield f"{of_engine}: needs as many GPUs in every env runner, and num_gpus_per_env_runner={num_gpus:g}."
        in_learner_process = config.num_env_runners == 0 and config.num_gpus_per_learner > 0
        if config.sleep_level and not (num_gpus > 0 or in_learner_process):
            yield f"{level}: the engines have no GPU to share; set num_gpus_per_env_runner."
    if config.sleep_level and config.max_weight_lag:
        yield f"{level}: with max_weight_lag the engines go on during the update."
