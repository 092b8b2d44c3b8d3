"""`ARPOConfig`: everything that can be set, and what RLlib must know of ARPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rllib_arpo import validation
from rllib_arpo.logging.console import ConsoleCallback
from rllib_arpo.logging.progress import progress_mode
from rllib_arpo.rollout.env_runner import ARPOEnvRunner

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm


class ARPOConfig(AlgorithmConfig):
    """Configuration of `ARPO`.

    .. code-block:: python

        config = (
            ARPOConfig()
            .environment("Catalogue-v0")
            .language_model(model_name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct")
            .adaptive_rollout(num_rollouts=8, num_initial_rollouts=4)
            .training(lr=3e-5, questions_per_batch=6, questions_per_minibatch=6)
            .env_runners(num_env_runners=1)
        )
        algo = config.build_algo()

    Setters never validate, since a value may be a `tune.grid_search`; `validate()` checks everything before any actor
    starts. Every keyword becomes an attribute of the same name.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        if algo_class is None:
            from rllib_arpo.arpo import ARPO as algo_class
        super().__init__(algo_class=algo_class)
        self._set_language_model_defaults()
        self._set_adaptive_rollout_defaults()
        self._set_training_defaults()
        self._set_rllib_defaults()

    def _set_language_model_defaults(self) -> None:
        self.model_name_or_path: str | None = None
        self.dtype = "bfloat16"
        self.max_context_tokens = 4096
        self.engine = "vllm"
        self.engine_kwargs: dict[str, Any] = {}
        self.engine_num_threads: int | None = None
        self.weight_sync = "auto"
        self.sleep_level = 0
        self.lora: dict[str, Any] | None = None

    def _set_adaptive_rollout_defaults(self) -> None:
        self.num_rollouts = 16
        self.num_initial_rollouts = 8
        self.branching = "threshold"
        self.branch_width = 1
        self.entropy_window = 16
        self.entropy_estimator = "exact"
        self.entropy_normalization = "log_vocab"
        self.branch_base_probability = 0.5
        self.branch_entropy_weight = 0.2
        self.branch_threshold = 0.5
        self.random_fork_probability: float | None = None
        self.budget_allocation = "first_come"
        self.max_tool_calls = 3
        self.max_response_tokens = 4096
        self.max_turn_tokens: int | None = None
        self.temperature = 1.0
        self.question_deadline_s = 600.0
        self.deadline_reward: float | None = None
        self.max_weight_lag = 0
        self.deterministic = False

    def _set_training_defaults(self) -> None:
        self.lr = 1e-6
        self.questions_per_batch = 128
        self.questions_per_minibatch = 16
        self.num_epochs = 1
        self.max_tokens_per_pass = 16384
        self.attribution = "soft"
        self.leaf_weighting = "uniform"
        self.loss_aggregation = "token_mean"
        self.clip_low = 0.2
        self.clip_high = 0.2
        self.dual_clip: float | None = None
        self.kl_coeff = 0.0
        self.kl_in_reward = False
        self.entropy_coeff = 0.0
        self.importance_cap: float | None = 2.0
        self.grad_clip = 1.0
        self.gradient_checkpointing: bool | None = None
        self.tree_attention = "auto"
        self.baseline = "group"
        self.normalize_std = True
        self.overlong_buffer_tokens: int | None = None
        self.max_resample_rounds = 0
        self.adam_betas = (0.9, 0.95)
        self.weight_decay = 0.0
        self.learner_num_threads: int | None = None
        self.skip_groups_without_signal = True
        self.guards: dict[str, float | None] = {}
        self.sharding = "none"
        self.optimizer_offload = False

    def _set_rllib_defaults(self) -> None:
        """What differs from RLlib's own defaults, and what `debugging()` sets."""
        # Decided here, where the terminal is: a remote env runner sees none.
        self.progress_bar: bool | str = progress_mode()
        self.env_runner_cls = ARPOEnvRunner
        self.callbacks_class = ConsoleCallback
        self.num_envs_per_env_runner = 16
        self.delay_between_env_runner_restarts_s = 5.0
        self.episodes_to_numpy = False
        self.add_default_connectors_to_learner_pipeline = False
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        # The weights are pushed, blocking and verified, by ARPO itself.
        self._dont_auto_sync_env_runner_states = True

    def language_model(
        self,
        *,
        model_name_or_path: str = NotProvided,
        dtype: str = NotProvided,
        max_context_tokens: int = NotProvided,
        engine: str = NotProvided,
        engine_kwargs: dict[str, Any] = NotProvided,
        engine_num_threads: int | None = NotProvided,
        weight_sync: str = NotProvided,
        sleep_level: int = NotProvided,
        lora: dict[str, Any] | None = NotProvided,
    ) -> ARPOConfig:
        """Sets the policy and the engine that samples it.

        Args:
            model_name_or_path: a Hugging Face id or folder of a causal language model. Required.
            dtype: compute dtype of engine and learner; the learner's master weights are fp32.
            max_context_tokens: prompt plus response, at most.
            engine: "vllm" or "scripted" (a toy for tests).
            engine_kwargs: what the engine gets beside this; for vLLM: its `EngineArgs`.
            engine_num_threads: CPU threads of the engine; None takes what Ray allots to the env runner.
            weight_sync: how the learner's weights reach the engines: "in_process_reload" (arrays, through Ray's object
                store where processes differ), vLLM's weight transfer "nccl" (between separate GPUs) or "ipc" (on a
                shared one), or "auto", which takes the first.
            sleep_level: for an engine that shares its GPU with the learner: during an update it gives up its memory,
                with the weights kept in the CPU's memory (1) or dropped, since new ones follow (2); 0: never.
            lora: None trains all weights. A dict of keywords of `peft.LoraConfig`, such as {"r": 8, "lora_alpha": 16,
                "target_modules": "all-linear"}, trains an adapter alone: it is what is synced and checkpointed, and
                the frozen base, which is held in `dtype`, is the reference of the KL.
        """
        return self._set_provided(locals())

    def adaptive_rollout(
        self,
        *,
        num_rollouts: int = NotProvided,
        num_initial_rollouts: int = NotProvided,
        branching: str = NotProvided,
        branch_width: int = NotProvided,
        entropy_window: int = NotProvided,
        entropy_estimator: str = NotProvided,
        entropy_normalization: str = NotProvided,
        branch_base_probability: float = NotProvided,
        branch_entropy_weight: float = NotProvided,
        branch_threshold: float = NotProvided,
        random_fork_probability: float | None = NotProvided,
        budget_allocation: str = NotProvided,
        max_tool_calls: int = NotProvided,
        max_response_tokens: int = NotProvided,
        max_turn_tokens: int | None = NotProvided,
        temperature: float = NotProvided,
        question_deadline_s: float = NotProvided,
        deadline_reward: float | None = NotProvided,
        max_weight_lag: int = NotProvided,
        deterministic: bool = NotProvided,
    ) -> ARPOConfig:
        """Sets how a question's tree of trajectories is sampled (paper, section 3.1).

        Args:
            num_rollouts: M, trajectories per question.
            num_initial_rollouts: N, how many of them start at the prompt; the other M - N are forks or top-ups.
            branching: "threshold" (fork iff P > tau), "probability", "random" (the control) or "never" (GRPO).
            branch_width: Z, children per fork.
            entropy_window: k, tokens after a tool response whose entropy is compared.
            entropy_estimator: "exact": over the whole vocabulary; "top_k": over the ten likeliest tokens, as in the
                authors' code.
            entropy_normalization: "log_vocab" (mean over the window / ln V) or "vocab" (sum / V, the paper's words).
            branch_base_probability, branch_entropy_weight: alpha and beta of P = alpha + beta * dH.
            branch_threshold: tau.
            random_fork_probability: of branching="random".
            budget_allocation: who gets the forks when the budget is short: "first_come", or "ranked": the largest rises
                among a question's nodes of the same turn, decided when all its live trajectories have passed the turn.
            max_tool_calls: per path.
            max_response_tokens: generated plus tool tokens of a path.
            max_turn_tokens: generated tokens of one turn; None: no limit of its own.
            temperature: of sampling; all log-probs are at this temperature.
            question_deadline_s: seconds after which a question's unfinished trajectories are cut off: their whole turns
                are kept, the running one is not.
            deadline_reward: None masks them: they are in neither the group mean nor the loss. With a number they count
                with this reward.
            max_weight_lag: how many updates the weights that sample may be behind those that are trained. 0: strictly
                on-policy. With L >= 1 the next L batches are sampled during the update, engines take new weights in
                the middle of a trajectory, every token keeps the version that sampled it, and `importance_cap`
                corrects; what exceeds the bound is asked again.
            deterministic: the same weights and questions give the same trees, whatever the timing: forks are decided
                turn by turn in the order of agent ids (or "ranked"), and every request has a seed of its own, made
                of the run's `debugging(seed=)`, question, agent id and turn. A deadline still depends on the clock.
        """
        return self._set_provided(locals())

    @override(AlgorithmConfig)
    def training(
        self,
        *,
        questions_per_batch: int = NotProvided,
        questions_per_minibatch: int = NotProvided,
        max_tokens_per_pass: int = NotProvided,
        attribution: str = NotProvided,
        leaf_weighting: str = NotProvided,
        loss_aggregation: str = NotProvided,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        kl_coeff: float = NotProvided,
        kl_in_reward: bool = NotProvided,
        entropy_coeff: float = NotProvided,
        importance_cap: float | None = NotProvided,
        gradient_checkpointing: bool | None = NotProvided,
        tree_attention: str = NotProvided,
        baseline: str = NotProvided,
        normalize_std: bool = NotProvided,
        overlong_buffer_tokens: int | None = NotProvided,
        max_resample_rounds: int = NotProvided,
        adam_betas: tuple[float, float] = NotProvided,
        weight_decay: float = NotProvided,
        learner_num_threads: int | None = NotProvided,
        skip_groups_without_signal: bool = NotProvided,
        guards: dict[str, float | None] = NotProvided,
        sharding: str = NotProvided,
        optimizer_offload: bool = NotProvided,
        **kwargs: Any,
    ) -> ARPOConfig:
        """Sets the update (docs/design.md, section 1, from "Group advantage" on); RLlib's own keywords go through.

        Args:
            questions_per_batch, questions_per_minibatch: questions per iteration, and per optimizer step.
            max_tokens_per_pass: unique tokens per forward pass; gradients accumulate over the passes of a minibatch.
            attribution: "soft" or "hard" advantages of shared tokens (paper, section 3.2).
            leaf_weighting: "uniform", or "branch" (unbiased under node-local fork decisions).
            loss_aggregation: "token_mean" (DAPO), "sequence_mean" (GRPO) or "constant" (Dr. GRPO).
            clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
            dual_clip: bound c > 1 on the ratio of tokens with negative advantage; None: off.
            kl_coeff, entropy_coeff: of the k3 KL to the initial model (0 keeps none), and of the entropy bonus.
            kl_in_reward: subtract a per-token k1 KL from the reward instead (REINFORCE++); needs branching="never".
            importance_cap: bound on the engine-to-learner importance weight; None: no correction.
            gradient_checkpointing: None: on CUDA only.
            tree_attention: the learner's kernel: "path_gather", "varlen", "flex" or "auto" (docs/design.md, section 2).
            baseline: "group" (GRPO, ARPO) or "batch" (REINFORCE++).
            normalize_std: divide group advantages by their standard deviation (Dr. GRPO does not).
            overlong_buffer_tokens: length of DAPO's soft overlong penalty; None: off.
            max_resample_rounds: how often groups without signal are replaced by new questions (DAPO).
            adam_betas, weight_decay: of AdamW.
            learner_num_threads: CPU threads of a learner; None takes what Ray allots to it.
            optimizer_offload: keep Adam's state in the CPU's memory but for the optimizer steps; for learners on GPUs.
            skip_groups_without_signal: compute nothing for trees without any advantage, whose gradient is zero.
            guards: limits of alarms on the learner's metrics, beside the defaults (`learner/guards.py`); None: off.
            sharding: what each of several learners holds: "none": all of the model, "fsdp2": a part, also of Adam.
        """
        own = {key: value for key, value in locals().items() if key not in ("kwargs", "__class__")}
        super().training(**kwargs)
        return self._set_provided(own)

    @override(AlgorithmConfig)
    def debugging(self, *, progress_bar: bool | str = NotProvided, **kwargs: Any) -> ARPOConfig:
        """Args: `progress_bar`: of the rollout, within an iteration: "bar", "lines" or "off". The rest is RLlib's."""
        super().debugging(**kwargs)
        return self._set_provided({"progress_bar": progress_bar})

    def _set_provided(self, values: dict[str, Any]) -> ARPOConfig:
        for key, value in values.items():
            if key != "self" and value is not NotProvided:
                setattr(self, key, value)
        return self

    @property
    @override(AlgorithmConfig)
    def is_multi_agent(self) -> bool:
        """True: every trajectory is an agent, although one policy serves them all."""
        return True

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from rllib_arpo.learner.llm_rl_module import LLMRLModule

        return RLModuleSpec(
            module_class=LLMRLModule,
            model_config={
                "model_name_or_path": self.model_name_or_path,
                "dtype": self.dtype,
                "temperature": self.temperature,
                "gradient_checkpointing": self.gradient_checkpointing,
                "tree_attention": self.tree_attention,
                "lora": self.lora,
            },
        )

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type:
        from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

        return ARPOTorchLearner

    @override(AlgorithmConfig)
    def build_learner_group(self, *, env=None, spaces=None, rl_module_spec=None, placement_group=None):
        from rllib_arpo.learner.learner_group import ARPOLearnerGroup

        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return ARPOLearnerGroup(config=self.copy(), module_spec=spec, placement_group=placement_group)

    @override(AlgorithmConfig)
    def build_learner_connector(self, input_observation_space, input_action_space, device=None):
        from rllib_arpo.connectors import build_learner_pipeline

        return build_learner_pipeline(self, input_observation_space, input_action_space)

    @override(AlgorithmConfig)
    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """Evaluation decodes one greedy trajectory per question unless `evaluation_config` says otherwise."""
        if not self.in_evaluation and not isinstance(self.evaluation_config, AlgorithmConfig):
            user = self.evaluation_config or {}
            defaults = {"explore": False, "branching": "never", "create_local_env_runner": False}
            config = self.copy(copy_frozen=False)
            config.evaluation_config = {**defaults, **user}
            return AlgorithmConfig.get_evaluation_config_object(config)
        return super().get_evaluation_config_object()

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Checks the whole configuration.

        Raises:
            ValueError: one sentence that names the key.
        """
        if not self.in_evaluation:
            # Remote env runners own the engines; a local one beside them would start an engine of its own.
            self.create_local_env_runner = self.num_env_runners == 0
        super().validate()
        validation.validate(self)
