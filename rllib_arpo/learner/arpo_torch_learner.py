"""Updates the policy: the clipped objective on packed trees, accumulated over passes and learners."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ALL_MODULES,
    NUM_ENV_STEPS_TRAINED,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_MODULE_STEPS_TRAINED,
    NUM_MODULE_STEPS_TRAINED_LIFETIME,
    WEIGHTS_SEQ_NO,
)
from torch import Tensor

from rllib_arpo.connectors import LeafAdvantages
from rllib_arpo.core.columns import (
    A_NEG,
    A_POS,
    BEHAVIOR_LOG_PROBS,
    DENOMINATOR,
    ENTROPY,
    ENTROPY_STATISTICS,
    LEAF_ADVANTAGES,
    LOG_PROBS,
    OLD_LOG_PROBS,
    PACKED_TREES,
    REFERENCE_LOG_PROBS,
    REWARD_SCALE,
    REWARD_STATISTICS,
    WEIGHT,
)
from rllib_arpo.core.loss import (
    advantage_mass,
    clipped_mass,
    importance_weight,
    kl_k1,
    kl_k3,
    policy_ratio,
    tree_policy_objective,
)
from rllib_arpo.files import check_files, write_checksums
from rllib_arpo.learner.memory_budget import AUTO
from rllib_arpo.learner.metrics import Total, Totals, add_questions, update_metrics
from rllib_arpo.learner.offload import OffloadedAdamW
from rllib_arpo.learner.passes import (
    Piece,
    check_one_context,
    cut_into_pieces,
    group_into_passes,
    idle_pass,
    multiply_by_entropy,
    pass_to_tensors,
    subtract_kl_to_go,
)
from rllib_arpo.learner.run_shapes import decide_here
from rllib_arpo.learner.sharding import SHARDINGS, NonFiniteLossError, gather_names, refuse_shared_gpus
from rllib_arpo.learner.training_data import Minibatch, QuestionBatch
from rllib_arpo.policy.llm_rl_module import COMPUTE_DTYPES, WEIGHTS_WILL_COME, BaseModel
from rllib_arpo.policy.module_checkpoint import read_state, resolve
from rllib_arpo.policy.sharded_state import load_optimizer_state, optimizer_state, read_by_first, returns_whole
from rllib_arpo.weights.snapshot import WeightSnapshot, probe_tokens

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

    from rllib_arpo.core.packing import PackedTree
    from rllib_arpo.engine.vllm.weight_transfer import EngineGroup
    from rllib_arpo.policy.llm_rl_module import LLMRLModule

logger = logging.getLogger("rllib_arpo")


def _clipping(config: AlgorithmConfig) -> tuple[float, float, float | None, bool]:
    """The last arguments of `tree_policy_objective` and `clipped_mass`."""
    return config.clip_low, config.clip_high, config.dual_clip, config.keep_clipped_gradient


class ARPOTorchLearner(TorchLearner):
    """Trains one `LLMRLModule`; `update(training_data=QuestionBatch)` trains it on one batch of questions.

    `sharding` says how several learners hold the model, and how they sum their gradients (`learner/sharding.py`).
    """

    @override(TorchLearner)
    def build(self) -> None:
        """Builds module, optimizer and, with `kl_coeff` > 0, the frozen reference model.

        The reference is the model that `model_name_or_path` names: it is made before a checkpoint is restored, and the
        learner's state does not contain it.
        """
        if self.config.learner_num_threads is not None:
            torch.set_num_threads(self.config.learner_num_threads)
        #: The engines that are connected with this learner by vLLM's weight transfer, by their env runners' actors.
        self.engine_groups: dict[frozenset[ActorHandle], EngineGroup] = {}
        super().build()
        self._weight_version = 0
        self._num_changes = self.module[DEFAULT_MODULE_ID].num_changes()
        self._totals = Totals(self._device)  # `compute_losses` may also be called outside an update.
        self._reference = None
        if self.config.kl_coeff > 0:
            reference = self.module[DEFAULT_MODULE_ID].make_reference()
            # The reference of a LoRA is the module itself, without its adapter.
            self._reference = reference if isinstance(reference, BaseModel) else self._place(reference)

    @override(TorchLearner)
    def _make_module(self) -> MultiRLModule:
        """Distributes the parameters before the optimizer is made, since the optimizer must hold the final tensors."""
        if self.distributed and (gpu := self._gpu()):
            store = dist.distributed_c10d._get_default_store()
            refuse_shared_gpus(gpu, store, self._rank, dist.get_world_size())
        self._sharding = SHARDINGS[self.config.sharding](self._device, self.distributed)
        if self._rank > 0:
            for spec in self._module_spec.rl_module_specs.values():
                spec.model_config = {**spec.model_config, WEIGHTS_WILL_COME: True}
        module = Learner._make_module(self)
        module[DEFAULT_MODULE_ID].check_parameters()
        self._place(module[DEFAULT_MODULE_ID])
        if self.config.gradient_checkpointing == AUTO:
            decision = decide_here(self.config, self._device, module[DEFAULT_MODULE_ID].scorer.compiles_layers)
            logger.info("%s", decision)
            # All do as the learner with the least memory: under FSDP2 they compute each layer together.
            layers = max(map(int, gather_names([str(decision.layers)], self.distributed)))
            if layers:
                module[DEFAULT_MODULE_ID].checkpoint_layers(layers)
        return module

    def _gpu(self) -> str:
        """The name of this learner's GPU, the same in every process and container; empty without one."""
        return str(torch.cuda.get_device_properties(self._device).uuid) if self._device.type == "cuda" else ""

    def _place(self, module: LLMRLModule) -> LLMRLModule:
        """Moves the module to the device; a learner that holds only a part must never have the whole there."""
        if not self._sharding.holds_part:
            module.to(self._device)
        names = ", ".join(name for name, _ in module.named_parameters())
        if len({*gather_names([names], self.distributed)}) > 1:
            raise ValueError(
                f"model_name_or_path={self.config.model_name_or_path!r}: its files have other weights than its "
                "configuration says, such as a head of its own beside tie_word_embeddings, so several learners cannot "
                "hold it."
            )
        module.scorer.compile_parts(self.config.learner_compile, self._device.type)
        self._sharding.distribute(module)
        return module

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """Does nothing: `_place` has prepared the module for several learners."""

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config: AlgorithmConfig = None) -> None:
        parameters = [p for p in self.get_parameters(self._module[module_id]) if p.requires_grad]
        # On a GPU one kernel updates all parameters; by default torch would loop over DTensors (FSDP2).
        fused = True if self._device.type == "cuda" else None
        settings = {"betas": tuple(config.adam_betas), "weight_decay": config.weight_decay, "fused": fused}
        optimizer = (OffloadedAdamW if config.optimizer_offload else torch.optim.AdamW)(parameters, **settings)
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=config.lr
        )

    @override(Learner)
    def update(
        self,
        training_data: QuestionBatch,
        *,
        timesteps: dict[str, Any] | None = None,
        return_state: bool = False,
    ) -> dict[str, Any]:
        """Makes one update: every minibatch of the plan is one optimizer step.

        Args:
            training_data: all questions and the plan of the update. Each learner trains on its share of the tokens.
            timesteps: for learning rate schedules, as in RLlib.
            return_state: part of RLlib's interface; the method returns only the metrics.

        Raises:
            NonFiniteLossError: the loss or gradient of a minibatch is NaN or infinite, on any learner.
            ValueError: a trajectory is longer than `max_tokens_per_pass`, or, with `kl_in_reward`, has several
                conversations.
        """
        self._check_is_built()
        self.before_gradient_based_update(timesteps=timesteps or {})
        self._weights_seq_no += 1

        # RLlib made the connector with `ARPOConfig.build_learner_connector`.
        columns = self._learner_connector(
            rl_module=self.module,
            batch={},
            episodes=training_data.episodes,
            shared_data={REWARD_STATISTICS: training_data.statistics},
            metrics=self.metrics,
        )
        if self.config.kl_in_reward:
            check_one_context([computed.tree for computed in columns[LEAF_ADVANTAGES]])
        self._totals = Totals(self._device)
        if self._rank == 0:  # All learners have all questions.
            add_questions(self._totals, columns)
        pieces = self._score(
            self._own_pieces(columns[PACKED_TREES], training_data.minibatches),
            is_single_step=len(training_data.minibatches) == 1,
        )
        gradient_norms = [
            self._update_minibatch(minibatch, [p for p in pieces if p.question in minibatch.questions], columns)
            for minibatch in training_data.minibatches
            # If no trajectory counts, there is no loss.
            if minibatch.denominator > 0
        ]
        self._count_update()
        self._log_update(gradient_norms)
        self.after_gradient_based_update(timesteps=timesteps or {})
        return self.metrics.reduce()

    def _own_pieces(self, packed_trees: Sequence[PackedTree], minibatches: Sequence[Minibatch]) -> list[Piece]:
        """This learner's share of the work of each minibatch.

        A piece stays with its learner in all epochs, since its old log-probs are there. With a KL or an entropy bonus
        every token adds to the gradient, otherwise only those with an advantage.
        """
        config = self.config
        skip = config.skip_groups_without_signal and not (config.kl_coeff or config.entropy_coeff)
        pieces: list[Piece] = []
        shared_out: set[int] = set()
        for minibatch in minibatches:
            new = [question for question in minibatch.questions if question not in shared_out]
            shared_out.update(new)
            pieces += cut_into_pieces(
                {question: packed_trees[question] for question in new},
                config.max_tokens_per_pass,
                rank=self._rank,
                num_learners=dist.get_world_size() if self.distributed else 1,
                only_with_advantage=skip,
            )
        return pieces

    @property
    def _rank(self) -> int:
        return dist.get_rank() if self.distributed else 0

    def _score(self, pieces: list[Piece], is_single_step: bool) -> list[Piece]:
        """Adds the log-probs that stay fixed during the update: the policy's at its start and the reference's.

        In an update of a single step the training pass itself gives the policy's log-probs, which saves one forward
        pass.
        """
        if not is_single_step:
            old = self._log_probs(self.module[DEFAULT_MODULE_ID], pieces)
            pieces = [replace(piece, old_log_probs=found) for piece, found in zip(pieces, old, strict=True)]
        if self._reference is not None:
            reference = self._log_probs(self._reference, pieces)
            pieces = [replace(piece, reference_log_probs=found) for piece, found in zip(pieces, reference, strict=True)]
        return pieces

    @torch.no_grad()
    def _log_probs(self, module: LLMRLModule | BaseModel, pieces: list[Piece]) -> list[Tensor]:
        """The log-probs of each piece's loss tokens under `module`, [K] each."""
        found: dict[int, Tensor] = {}
        for group in self._passes(pieces):
            out = module.forward_train(pass_to_tensors(group, self._device), with_entropy=False)
            parts = out[LOG_PROBS].split([piece.packed.num_loss_tokens for piece in group])
            found |= {id(piece): part for piece, part in zip(group, parts, strict=True)}
        return [found[id(piece)] for piece in pieces]

    def _passes(self, pieces: Sequence[Piece]) -> list[list[Piece]]:
        """The passes of this learner, followed by idle ones if other learners have more."""
        passes = group_into_passes(pieces, self.config.max_tokens_per_pass)
        num_idle = self._sharding.num_passes(len(passes)) - len(passes)
        return passes + [idle_pass() for _ in range(num_idle)]

    def _update_minibatch(self, minibatch: Minibatch, pieces: list[Piece], columns: dict[str, Any]) -> float:
        """Makes one optimizer step; returns the norm of the gradient before clipping."""
        computed: list[LeafAdvantages] = columns[LEAF_ADVANTAGES]
        question_ids = [computed[question].tree.question_id for question in minibatch.questions]
        self._zero_gradients()
        constants = {
            DENOMINATOR: minibatch.denominator,
            REWARD_SCALE: columns[REWARD_SCALE],
            ENTROPY_STATISTICS: minibatch.entropies,
        }
        passes = self._passes(pieces)
        losses = [self._accumulate_gradients(group, constants) for group in passes]
        gradients = self._sharding.reduce_gradients(list(self._params.values()))
        # Here, once a step, the CPU waits for the device.
        norm, *losses = torch.stack([self._sharding.norm(gradients), *losses]).tolist()
        failed = {
            p.question for group, loss in zip(passes, losses, strict=True) if not math.isfinite(loss) for p in group
        }
        of_learners = gather_names([computed[q].tree.question_id for q in sorted(failed)], self.distributed)
        if failed_ids := list(dict.fromkeys(of_learners)):
            message = f"The loss is not finite in the pass of the questions {failed_ids}."
            raise NonFiniteLossError(message, failed_ids)
        if not math.isfinite(norm):
            message = f"The gradient is not finite in the minibatch of the questions {question_ids}."
            raise NonFiniteLossError(message, question_ids)
        gradients = self.postprocess_gradients(dict(zip(self._params, gradients, strict=True)))
        if norm > 0:  # Otherwise Adam would move on its momentum alone.
            self.apply_gradients(gradients)
        self._zero_gradients()
        if self._rank == 0:
            self._totals.add(Total.QUESTIONS_TRAINED, len(question_ids))
            self._log_steps_trained(sum(len(computed[question].layout.nodes) for question in minibatch.questions))
        return norm

    @staticmethod
    @override(TorchLearner)
    def _get_clip_function() -> Callable[..., Tensor | None]:
        return returns_whole(TorchLearner._get_clip_function())

    @staticmethod
    @override(TorchLearner)
    def _get_global_norm_function() -> Callable[..., Tensor]:
        return returns_whole(TorchLearner._get_global_norm_function())

    def _zero_gradients(self) -> None:
        for optimizer in self._optimizer_parameters:
            optimizer.zero_grad(set_to_none=True)

    def _accumulate_gradients(self, pieces: Sequence[Piece], constants: dict[str, Any]) -> Tensor:
        """Runs one pass forward and backward, and frees its activations; returns the loss, a float64 scalar.

        The CPU does not wait: it prepares the next pass while the device computes this one.
        """
        batch = pass_to_tensors(pieces, self._device) | constants
        self._totals.add(Total.TOKENS_COMPUTED, sum(p.packed.num_tokens for p in pieces if p.question >= 0))
        fwd_out = self.module[DEFAULT_MODULE_ID].forward_train(batch)
        # RLlib's method calls `compute_loss_for_module`.
        [loss] = self.compute_losses(fwd_out={DEFAULT_MODULE_ID: fwd_out}, batch={DEFAULT_MODULE_ID: batch}).values()
        # A backward pass even if the loss is not finite: other learners may wait for this one there.
        loss.backward()
        return loss.detach().double()

    @override(Learner)
    def compute_loss_for_module(
        self, *, module_id: str, config: AlgorithmConfig, batch: dict[str, Any], fwd_out: dict[str, Tensor]
    ) -> Tensor:
        """Minus one pass's share of the minibatch's objective J (docs/design.md).

        Args:
            module_id, config: as in RLlib.
            batch: the columns of `pass_to_tensors`, DENOMINATOR, REWARD_SCALE and ENTROPY_STATISTICS.
            fwd_out: LOG_PROBS and ENTROPY, [K].
        """
        log_probs, entropy = fwd_out[LOG_PROBS], fwd_out[ENTROPY]
        old_log_probs = batch.get(OLD_LOG_PROBS, log_probs.detach())
        reference_log_probs = batch.get(REFERENCE_LOG_PROBS)
        if config.kl_in_reward and reference_log_probs is not None:
            batch = subtract_kl_to_go(batch, kl_k1(old_log_probs, reference_log_probs), config.kl_coeff)
        if config.entropy_advantage_coeff > 0:
            batch = multiply_by_entropy(batch, config.entropy_advantage_coeff)
        # They are float64 up to here, for the sums over leaves.
        a_pos, a_neg, weight = (batch[name].to(log_probs.dtype) for name in (A_POS, A_NEG, WEIGHT))

        policy_objective = tree_policy_objective(log_probs, old_log_probs, a_pos, a_neg, *_clipping(config))
        if config.importance_cap is not None:
            behavior = batch[BEHAVIOR_LOG_PROBS].to(log_probs.dtype)
            policy_objective = policy_objective * importance_weight(old_log_probs, behavior, config.importance_cap)
        objective = policy_objective.sum()
        if config.entropy_coeff != 0:
            objective = objective + config.entropy_coeff * (weight * entropy).sum()
        if reference_log_probs is not None and not config.kl_in_reward:
            objective = objective - config.kl_coeff * (weight * kl_k3(log_probs, reference_log_probs)).sum()

        self._add_totals(batch, log_probs, old_log_probs, entropy, policy_objective)
        loss = -objective / batch[DENOMINATOR]
        self._totals.add(Total.LOSS, loss)
        return loss

    @torch.no_grad()
    def _add_totals(
        self, batch: dict[str, Any], log_probs: Tensor, old_log_probs: Tensor, entropy: Tensor, policy_objective: Tensor
    ) -> None:
        a_pos, a_neg = batch[A_POS], batch[A_NEG]
        clipped = clipped_mass(log_probs, old_log_probs, a_pos, a_neg, *_clipping(self.config))
        self._totals.add(Total.POLICY_LOSS, -policy_objective.sum() / batch[DENOMINATOR])
        self._totals.add(Total.ENTROPY, entropy.sum())
        self._totals.add(Total.RATIO, policy_ratio(log_probs, old_log_probs).sum())
        self._totals.add(Total.LOSS_TOKENS, len(log_probs))
        self._totals.add(Total.ENGINE_GAP, (old_log_probs - batch[BEHAVIOR_LOG_PROBS]).abs().sum())
        self._totals.add(Total.ADVANTAGE_MASS, advantage_mass(a_pos, a_neg).sum())
        self._totals.add(Total.CLIPPED_MASS, clipped.sum())
        if REFERENCE_LOG_PROBS in batch:
            self._totals.add(Total.KL, kl_k3(log_probs, batch[REFERENCE_LOG_PROBS]).sum())
            self._totals.add(Total.KL_TOKENS, len(log_probs))

    def _log_update(self, gradient_norms: Sequence[float]) -> None:
        for name, value in update_metrics(self._totals.over_learners(self.distributed), gradient_norms).items():
            self.metrics.log_value((DEFAULT_MODULE_ID, name), value, reduce="mean")
        self.metrics.log_value((DEFAULT_MODULE_ID, WEIGHTS_SEQ_NO), self._weights_seq_no, window=1)

    def _log_steps_trained(self, num_turns: int) -> None:
        """RLlib's counters, which it sums over learners: unique turns of the minibatch, counted in every epoch."""
        for module_id, name in (
            (DEFAULT_MODULE_ID, NUM_MODULE_STEPS_TRAINED),
            (ALL_MODULES, NUM_MODULE_STEPS_TRAINED),
            (ALL_MODULES, NUM_ENV_STEPS_TRAINED),
        ):
            self.metrics.log_value((module_id, name), num_turns, reduce="sum")
        for module_id, name in (
            (DEFAULT_MODULE_ID, NUM_MODULE_STEPS_TRAINED_LIFETIME),
            (ALL_MODULES, NUM_MODULE_STEPS_TRAINED_LIFETIME),
            (ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME),
        ):
            self.metrics.log_value((module_id, name), num_turns, reduce="lifetime_sum", with_throughput=True)

    @property
    def weight_version(self) -> int:
        """The number of changes of the weights in this process: updates, restored states, and changes by a user.

        No two states of this learner share a version, whatever checkpoints they come from. Changes between two calls
        count as one. torch does not count changes through a tensor's `data`.
        """
        if self.module[DEFAULT_MODULE_ID].num_changes() != self._num_changes:
            self._count_update()
        return self._weight_version

    def _count_update(self) -> None:
        self._weight_version += 1
        self._num_changes = self.module[DEFAULT_MODULE_ID].num_changes()

    @property
    def engine_dtype(self) -> torch.dtype | None:
        """The type to which the learner casts weights for an engine; None: it does not cast.

        It casts on its own device: with a 16-bit type half as much travels, and the engine casts nothing. An adapter
        keeps its type, since the env runner merges it into the base before the cast.
        """
        return COMPUTE_DTYPES[self.config.dtype] if self.config.lora is None else None

    @property
    def engine_bytes(self) -> int:
        """The size of all weights in the engine's type."""
        size = COMPUTE_DTYPES[self.config.dtype].itemsize
        return size * sum(parameter.numel() for parameter in self.module[DEFAULT_MODULE_ID].parameters())

    @override(TorchLearner)
    def shutdown(self) -> None:
        """Closes the engines' connections. Ray calls it for a learner in the driver; it kills the remote ones."""
        super().shutdown()
        for group in self.engine_groups.values():
            group.close()

    def weight_snapshot(self, *, with_weights: bool = True) -> WeightSnapshot:
        """The trained weights for an engine, with a probe; valid until the next update (`LLMRLModule.weight_views`)."""
        module = self.module[DEFAULT_MODULE_ID]
        probe = probe_tokens(module.vocab_size, self.config.max_context_tokens)
        weights = module.weight_views(self.engine_dtype) if with_weights else None
        return WeightSnapshot(self.weight_version, weights, probe, module.score(probe))

    @override(TorchLearner)
    def _get_optimizer_state(self) -> dict[str, Any]:
        return {
            name: {"module_id": DEFAULT_MODULE_ID, "state": optimizer_state(optimizer)}
            for name, optimizer in self._named_optimizers.items()
        }

    @override(TorchLearner)
    def _set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Does not use RLlib's method, which would round fp64 to fp32."""
        for name, of_optimizer in state.items():
            optimizer, saved = self._named_optimizers[name], of_optimizer["state"]
            load_optimizer_state(optimizer, saved)
            if self._optimizer_lr_schedules[optimizer].use_schedule:
                # Each update sets the rate of the next one.
                self._set_optimizer_lr(optimizer, saved["param_groups"][0]["lr"])

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restores weights and optimizer, also from an earlier checkpoint; all learners must call this method.

        RLlib's own method would restore the optimizer and silently keep the newer weights.
        """
        if WEIGHTS_SEQ_NO in state:
            self._weights_seq_no = -1
        super().set_state(state)
        if WEIGHTS_SEQ_NO in state:
            self._weights_seq_no = state[WEIGHTS_SEQ_NO]

    @override(Learner)
    def save_to_path(self, path: Any = None, *, filesystem: Any = None, **kwargs: Any) -> str:
        """Saves like RLlib's method, and adds checksums of the files."""
        if path is not None:
            path, filesystem = resolve(path, filesystem)
        saved: str = super().save_to_path(path, filesystem=filesystem, **kwargs)
        write_checksums(*resolve(saved, filesystem))
        return saved

    @override(Learner)
    def restore_from_path(self, path: Any, *, component: str | None = None, filesystem: Any = None, **kw: Any) -> None:
        """Restores like RLlib's method, but only the first of several learners reads the large files.

        Raises:
            ValueError: a file is not the one that was saved.
        """
        path, filesystem = resolve(path, filesystem)
        if component is not None:
            super().restore_from_path(path, component=component, filesystem=filesystem, **kw)
            return
        read_by_first(partial(check_files, path, filesystem))
        self.module.restore_from_path(f"{path}/{COMPONENT_RL_MODULE}", filesystem=filesystem, **kw)
        self.set_state(read_by_first(partial(read_state, path, filesystem)))
