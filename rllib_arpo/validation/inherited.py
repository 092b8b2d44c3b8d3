"""The verdict on every key that `ARPOConfig` inherits: used, refused, or harmless; in the order of RLlib's setters.

A test fails when RLlib adds a key or drops one: a new key needs a verdict here, before anybody sets it in vain.
"""

from __future__ import annotations

from rllib_arpo.options.rules import (
    NOT_NEGATIVE,
    POSITIVE,
    SWITCH,
    a_dict,
    at_least,
    one_of,
    optional,
)
from rllib_arpo.validation.verdicts import (
    CALLBACK,
    CPUS_OR_AUTO,
    ENV_RUNNER_CLASS,
    LEARNER_CLASS,
    LEARNING_RATE,
    ONLY_POLICY,
    RESTARTS,
    Harmless,
    Refused,
    Used,
    Verdict,
    has_no_remote_env_runner,
    is_evaluation,
)

COUNT = at_least(0)
RESOURCES = a_dict("a dict of numbers >= 0 by the resource's name", of=NOT_NEGATIVE)
PLACEMENT = "Tune's placement group and Ray's actors"

OLD_STACK = Refused("is read only by RLlib's old API stack, on which ARPO does not run")
REMOVED = Refused("RLlib has removed this key and reads it nowhere")
NO_REPLAY = Refused("there is no replay buffer, every question is trained once")
NO_OFFLINE_DATA = Refused("episodes are neither recorded nor read, and there is no offline evaluation")
ONE_BATCH = Refused("has no meaning here; use questions_per_batch: one iteration is one batch")
ONE_POLICY = Refused("one model, that of language_model(), plays every trajectory and is trained", ONLY_POLICY)
ONE_CONNECTOR_PIPELINE = Refused("RLlib's pieces pad and batch single steps, where ARPO samples and trains whole trees")
NO_MODULE = Refused("an engine samples, not an RLModule; use learner_connector or the environment")
OWN_TIMEOUT = Refused("has no meaning here; use question_deadline_s, which bounds every question")
CALLED_BY_DRIVER = Used("Algorithm, which calls it", CALLBACK, in_evaluation=False)
CALLED = Used("Algorithm or ARPOEnvRunner, with the configuration of the env runners", CALLBACK)
NOT_CALLED = Refused("is never called, since an episode is made when its question has ended; use on_episode_end")

FRAMEWORK: dict[str, Verdict] = {
    "algo_class": Used("build_algo()", in_evaluation=False),
    "framework_str": Refused("only 'torch' is supported"),
    **dict.fromkeys(
        ("eager_tracing", "eager_max_retraces", "tf_session_args", "local_tf_session_args"), Harmless("TensorFlow's")
    ),
    "torch_compile_learner": Refused("the forward pass changes its shape with every tree and is not compiled"),
    **dict.fromkeys(
        (
            "torch_compile_learner_what_to_compile",
            "torch_compile_learner_dynamo_backend",
            "torch_compile_learner_dynamo_mode",
        ),
        Harmless("of torch_compile_learner, which is refused"),
    ),
    "torch_compile_worker": Refused("an engine samples, which compiles by itself; use engine_kwargs"),
    **dict.fromkeys(
        ("torch_compile_worker_dynamo_backend", "torch_compile_worker_dynamo_mode"),
        Harmless("of torch_compile_worker, which is refused"),
    ),
    "torch_ddp_kwargs": Refused("gradients are summed over learners without DistributedDataParallel"),
    "torch_skip_nan_gradients": Refused("a gradient that is not finite ends the run, before it changes the weights"),
}

RESOURCE_KEYS: dict[str, Verdict] = {
    "placement_strategy": Used(
        PLACEMENT, one_of("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"), in_evaluation=False
    ),
    "num_cpus_for_main_process": Used(PLACEMENT, NOT_NEGATIVE, in_evaluation=False),
    "custom_resources_for_main_process": Used(PLACEMENT, RESOURCES, in_evaluation=False),
    "num_gpus": Refused("has no meaning here; use num_gpus_per_learner"),
    **dict.fromkeys(("_fake_gpus", "extra_python_environs_for_driver", "extra_python_environs_for_worker"), OLD_STACK),
}

ENVIRONMENT: dict[str, Verdict] = {
    "env": Used("make_env(); validation/__init__.py checks it"),
    "env_config": Used("make_env(), which hands it to the environment", a_dict()),
    **dict.fromkeys(("observation_space", "action_space"), Refused("environments state their spaces themselves")),
    "clip_rewards": Refused("rewards count as the task gives them"),
    **dict.fromkeys(
        ("normalize_actions", "clip_actions"), Harmless("actions are token ids, which stay as they were sampled")
    ),
    "_is_atari": Harmless("RLlib's memory of what the environment is"),
    "disable_env_checking": Harmless("RLlib's check of environments is not run"),
    "render_env": Refused("there is nothing to see but texts; use the callback EvaluationTranscripts"),
    "action_mask_key": Refused("tokens are not masked"),
}

ENV_RUNNERS: dict[str, Verdict] = {
    "env_runner_cls": Used("EnvRunnerGroup", ENV_RUNNER_CLASS),
    "num_env_runners": Used(PLACEMENT, COUNT, in_evaluation=False),
    "create_local_env_runner": Refused(
        "beside remote env runners a local one would start an engine that has nothing to do",
        unless=has_no_remote_env_runner,
    ),
    "create_env_on_local_worker": Refused("has no meaning here: an env runner without environments has no engine"),
    "num_envs_per_env_runner": Used("ARPOEnvRunner: questions in flight", at_least(1)),
    "gym_env_vectorize_mode": Refused("environments share one event loop and are not vectorised"),
    "num_cpus_per_env_runner": Used(PLACEMENT, NOT_NEGATIVE),
    "num_gpus_per_env_runner": Used(PLACEMENT, NOT_NEGATIVE),
    "custom_resources_per_env_runner": Used(PLACEMENT, RESOURCES),
    "validate_env_runners_after_construction": Used("EnvRunnerGroup", SWITCH),
    "episodes_to_numpy": Refused("the learner reads episodes as lists of tokens"),
    "max_requests_in_flight_per_env_runner": Refused(
        "an env runner answers one call at a time; max_weight_lag samples ahead"
    ),
    "sample_timeout_s": OWN_TIMEOUT,
    **dict.fromkeys(("_env_to_module_connector", "_module_to_env_connector"), NO_MODULE),
    **dict.fromkeys(
        (
            "add_default_connectors_to_env_to_module_pipeline",
            "add_default_connectors_to_module_to_env_pipeline",
            "add_default_connectors_to_learner_pipeline",
        ),
        ONE_CONNECTOR_PIPELINE,
    ),
    **dict.fromkeys(
        ("merge_env_runner_states", "broadcast_env_runner_states", "sync_filters_on_rollout_workers_timeout_s"),
        Harmless("env runners have no connectors whose state could be merged"),
    ),
    "use_env_runner_state_server": Refused("weights are handed to the engines, which are awaited and verified"),
    "env_runner_state_server_max_concurrency": Harmless("of use_env_runner_state_server, which is refused"),
    "episode_lookback_horizon": Harmless("an episode is never cut"),
    "rollout_fragment_length": Refused(
        "has no meaning here; use questions_per_batch: whole questions are sampled", unless=is_evaluation
    ),
    "batch_mode": Refused("whole questions are sampled", allowed=one_of("truncate_episodes", "complete_episodes")),
    "explore": Refused("training samples, and greedy decoding is for evaluation_config", unless=is_evaluation),
    "exploration_config": Refused("has no meaning here; use temperature"),
    **dict.fromkeys(
        (
            "_prior_exploration_config",
            "compress_observations",
            "remote_worker_envs",
            "remote_env_batch_wait_ms",
            "enable_tf1_exec_eagerly",
            "sample_collector",
            "preprocessor_pref",
            "observation_filter",
            "update_worker_filter_stats",
            "use_worker_filter_stats",
            "sampler_perf_stats_ema_coef",
        ),
        OLD_STACK,
    ),
}

LEARNERS: dict[str, Verdict] = {
    "num_learners": Used(PLACEMENT, COUNT, in_evaluation=False),
    "num_cpus_per_learner": Used(PLACEMENT, CPUS_OR_AUTO, in_evaluation=False),
    "num_gpus_per_learner": Used(PLACEMENT, NOT_NEGATIVE, in_evaluation=False),
    "custom_resources_per_learner": Used(PLACEMENT, optional(RESOURCES), in_evaluation=False),
    "num_aggregator_actors_per_learner": Refused("learners read episodes as they were sampled, nothing is aggregated"),
    "max_requests_in_flight_per_aggregator_actor": Harmless("of num_aggregator_actors_per_learner, which is refused"),
    "local_gpu_idx": Used("RLlib's get_device(), for a learner in the driver's process", COUNT, in_evaluation=False),
    "max_requests_in_flight_per_learner": Harmless("every update is awaited"),
    "_learner_connector": Used("build_learner_pipeline()", in_evaluation=False),
}

TRAINING_KEYS: dict[str, Verdict] = {
    "lr": Used("ARPOTorchLearner's optimizer", LEARNING_RATE, in_evaluation=False),
    "grad_clip": Used("Learner.postprocess_gradients()", optional(POSITIVE), in_evaluation=False),
    "grad_clip_by": Used(
        "Learner.postprocess_gradients()", one_of("value", "norm", "global_norm"), in_evaluation=False
    ),
    "num_epochs": Used("QuestionBatch", at_least(1), in_evaluation=False),
    "shuffle_batch_per_epoch": Used("QuestionBatch", SWITCH, in_evaluation=False),
    "_learner_class": Used("LearnerGroup", LEARNER_CLASS, in_evaluation=False),
    "learner_config_dict": Harmless("only a user's own learner_class reads it"),
    "gamma": Refused("has no meaning here: a trajectory's reward is not discounted"),
    "train_batch_size": Refused("has no meaning here; use questions_per_batch"),
    "_train_batch_size_per_learner": Refused("has no meaning here; use questions_per_batch"),
    "minibatch_size": Refused("has no meaning here; use questions_per_minibatch"),
    "model": Refused("has no meaning here; use language_model()"),
    "optimizer": Refused("has no meaning here; use lr, adam_betas and weight_decay"),
}

CALLBACKS: dict[str, Verdict] = {
    "callbacks_class": Used("Algorithm and ARPOEnvRunner", CALLBACK),
    **dict.fromkeys(
        (
            "callbacks_on_algorithm_init",
            "callbacks_on_checkpoint_loaded",
            "callbacks_on_evaluate_start",
            "callbacks_on_evaluate_end",
            "callbacks_on_train_result",
        ),
        CALLED_BY_DRIVER,
    ),
    **dict.fromkeys(
        (
            "callbacks_on_env_runners_recreated",
            "callbacks_on_environment_created",
            "callbacks_on_episode_end",
            "callbacks_on_sample_end",
        ),
        CALLED,
    ),
    **dict.fromkeys(
        ("callbacks_on_episode_created", "callbacks_on_episode_start", "callbacks_on_episode_step"), NOT_CALLED
    ),
}

MULTI_AGENT: dict[str, Verdict] = {
    "policies": ONE_POLICY,
    "policies_to_train": Refused(ONE_POLICY.reason, optional(ONLY_POLICY)),
    "policy_mapping_fn": Refused("one model plays every trajectory"),
    "count_steps_by": Refused("steps are counted by turns"),
    **dict.fromkeys(("policy_map_capacity", "policy_states_are_swappable", "observation_fn"), OLD_STACK),
}

OFFLINE: dict[str, Verdict] = dict.fromkeys(
    (
        "_is_online", "input_", "offline_data_class", "input_read_method", "input_read_method_kwargs",
        "input_read_schema", "input_read_episodes", "input_read_sample_batches", "input_read_batch_size",
        "input_filesystem", "input_filesystem_kwargs", "input_compress_columns", "input_spaces_jsonable",
        "materialize_data", "materialize_mapped_data", "map_batches_kwargs", "iter_batches_kwargs",
        "ignore_final_observation", "prelearner_class", "prelearner_buffer_class", "prelearner_buffer_kwargs",
        "prelearner_module_synch_period", "prelearner_use_recorded_module_states", "dataset_num_iters_per_learner",
        "input_config", "actions_in_input_normalized", "postprocess_inputs", "shuffle_buffer_size", "output",
        "output_config", "output_compress_columns", "output_max_file_size", "output_max_rows_per_file",
        "output_write_remaining_data", "output_write_method", "output_write_method_kwargs", "output_filesystem",
        "output_filesystem_kwargs", "output_write_episodes", "offline_sampling", "off_policy_estimation_methods",
        "ope_split_batch_by_episode", "offline_evaluation_interval", "num_offline_eval_runners",
        "offline_evaluation_type", "offline_eval_runner_class", "offline_loss_for_module_fn",
        "offline_evaluation_duration", "offline_evaluation_parallel_to_training", "offline_evaluation_timeout_s",
        "num_cpus_per_offline_eval_runner", "num_gpus_per_offline_eval_runner",
        "custom_resources_per_offline_eval_runner", "restart_failed_offline_eval_runners",
        "ignore_offline_eval_runner_failures", "max_num_offline_eval_runner_restarts",
        "offline_eval_runner_restore_timeout_s", "max_requests_in_flight_per_offline_eval_runner",
        "validate_offline_eval_runners_after_construction", "offline_eval_runner_health_probe_timeout_s",
        "offline_eval_rl_module_inference_only", "broadcast_offline_eval_runner_states",
        "offline_eval_batch_size_per_runner", "dataset_num_iters_per_eval_runner",
        "callbacks_on_offline_eval_runners_recreated", "callbacks_on_evaluate_offline_start",
        "callbacks_on_evaluate_offline_end",
    ),
    NO_OFFLINE_DATA,
)  # fmt: skip

EVALUATION: dict[str, Verdict] = {
    "evaluation_interval": Used("Algorithm.step()", optional(COUNT), in_evaluation=False),
    "evaluation_duration": Used("ARPO.evaluate(): questions", at_least(1), in_evaluation=False),
    "evaluation_duration_unit": Refused("evaluation_duration counts questions, which are 'episodes'"),
    "evaluation_num_env_runners": Used(PLACEMENT, COUNT, in_evaluation=False),
    "evaluation_config": Used(
        "get_evaluation_config_object()",
        optional(a_dict("a dict of the keys that differ in evaluation, such as ARPOConfig.overrides() makes")),
        in_evaluation=False,
    ),
    "evaluation_parallel_to_training": Refused("evaluation needs the weights of the iteration that has just ended"),
    "evaluation_sample_timeout_s": OWN_TIMEOUT,
    **dict.fromkeys(
        ("evaluation_auto_duration_min_env_steps_per_sample", "evaluation_auto_duration_max_env_steps_per_sample"),
        Harmless("of evaluation_duration='auto', which is refused"),
    ),
    "evaluation_unhealthy_workers_timeout_s": Refused("has no meaning here; use env_runner_restore_timeout_s"),
    "evaluation_error_after_n_consecutive_skips": Refused("an evaluation is never skipped; without answers it raises"),
    "evaluation_force_reset_envs_before_iteration": Refused("every question resets its environment"),
    "custom_evaluation_function": Refused("has no meaning here; override ARPO.evaluate() or use a callback"),
    "in_evaluation": Harmless("RLlib sets it in the configuration of evaluation"),
}

REPORTING: dict[str, Verdict] = {
    "log_gradients": Used("Learner.postprocess_gradients()", SWITCH, in_evaluation=False),
    "stats_cls_lookup": Used("MetricsLogger"),
    "metrics_num_episodes_for_smoothing": Refused("metrics are means over the questions of one iteration"),
    **dict.fromkeys(("keep_per_episode_custom_metrics", "metrics_episode_collection_timeout_s"), OLD_STACK),
    **dict.fromkeys(
        ("min_time_s_per_iteration", "min_train_timesteps_per_iteration", "min_sample_timesteps_per_iteration"),
        ONE_BATCH,
    ),
}

CHECKPOINTS_AND_DEBUGGING: dict[str, Verdict] = {
    "export_native_model_files": Refused("has no meaning here; use `rllib-arpo export`"),
    "checkpoint_trainable_policies_only": Refused("the one policy is trained, so that every checkpoint has it"),
    "log_level": Used(
        "Algorithm", optional(one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL")), in_evaluation=False
    ),
    "log_sys_usage": Used("Trainable, which adds perf/ to the result", SWITCH, in_evaluation=False),
    "fake_sampler": OLD_STACK,
    "seed": Used("environments, engines, the sampler; None: ARPO.setup() draws one", optional(COUNT)),
}

FAULT_TOLERANCE: dict[str, Verdict] = {
    "restart_failed_env_runners": Used("Ray: max_restarts of the env runners' actors", SWITCH),
    "max_num_env_runner_restarts": Used("Ray: max_restarts of the env runners' actors", RESTARTS),
    "delay_between_env_runner_restarts_s": Used("FaultAwareApply", NOT_NEGATIVE),
    "env_runner_health_probe_timeout_s": Used("EnvRunnerGroup.probe_unhealthy_env_runners()", POSITIVE),
    "env_runner_restore_timeout_s": Used("QuestionDispatcher", POSITIVE),
    "ignore_env_runner_failures": Refused("the questions of a failed env runner go to the others in any case"),
    "restart_failed_sub_environments": Refused("what an environment raises costs a trajectory or a question"),
    "num_consecutive_env_runner_failures_tolerance": Refused("failures are counted for each env runner by itself"),
}

RL_MODULE_AND_EXPERIMENTAL: dict[str, Verdict] = {
    **dict.fromkeys(
        ("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2"),
        Refused("ARPO runs on RLlib's new API stack alone"),
    ),
    **dict.fromkeys(
        ("_model_config", "_rl_module_spec"), Used("the learner, for a subclass of LLMRLModule", in_evaluation=False)
    ),
    **dict.fromkeys(
        ("algorithm_config_overrides_per_module", "_per_module_overrides"),
        Refused("there is one module; set the keys themselves"),
    ),
    "_validate_config": Used("validate()"),
    "_torch_grad_scaler_class": Refused("the loss is not scaled: bfloat16 does not need it, and float16 is refused"),
    "_torch_lr_scheduler_classes": Used("TorchLearner", in_evaluation=False),
    "_dont_auto_sync_env_runner_states": Refused("ARPO hands the weights to the engines and awaits them"),
    "_is_frozen": Harmless("RLlib sets it when the algorithm is built"),
    **dict.fromkeys(
        (
            "_use_msgpack_checkpoints",
            "_tf_policy_handles_more_than_one_loss",
            "_disable_preprocessor_api",
            "_disable_action_flattening",
            "_disable_initialize_loss_from_dummy_batch",
        ),
        OLD_STACK,
    ),
}

NO_LONGER_RLLIBS: dict[str, Verdict] = {
    "simple_optimizer": Harmless("RLlib sets it when it validates"),
    **dict.fromkeys(
        (
            "env_task_fn", "enable_connectors", "monitor", "evaluation_num_episodes", "metrics_smoothing_episodes",
            "timesteps_per_iteration", "min_iter_time_s", "collect_metrics_timeout", "min_time_s_per_reporting",
            "min_train_timesteps_per_reporting", "min_sample_timesteps_per_reporting", "input_evaluation",
            "policy_map_cache", "worker_cls", "synchronize_filters", "enable_async_evaluation",
            "custom_async_evaluation_function", "_enable_rl_module_api", "auto_wrap_old_gym_envs",
            "always_attach_evaluation_results", "_disable_execution_plan_api",
        ),
        REMOVED,
    ),
    **dict.fromkeys(
        (
            "buffer_size", "prioritized_replay", "learning_starts", "replay_batch_size", "replay_sequence_length",
            "replay_mode", "prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps",
        ),
        NO_REPLAY,
    ),
}  # fmt: skip

#: Every attribute of RLlib's `AlgorithmConfig`.
INHERITED: dict[str, Verdict] = {
    **FRAMEWORK, **RESOURCE_KEYS, **ENVIRONMENT, **ENV_RUNNERS, **LEARNERS, **TRAINING_KEYS, **CALLBACKS,
    **MULTI_AGENT, **OFFLINE, **EVALUATION, **REPORTING, **CHECKPOINTS_AND_DEBUGGING, **FAULT_TOLERANCE,
    **RL_MODULE_AND_EXPERIMENTAL, **NO_LONGER_RLLIBS,
}  # fmt: skip
#: Attribute -> its name for users, if RLlib's setters use another one.
KEYWORDS = {
    "framework_str": "framework",
    **{name: name.removeprefix("callbacks_") for name in INHERITED if name.startswith("callbacks_on_")},
    **{
        f"_{name}": name
        for name in (
            "train_batch_size_per_learner", "env_to_module_connector", "module_to_env_connector", "learner_connector",
            "learner_class", "model_config", "rl_module_spec",
        )
    },
}  # fmt: skip
