"""The policy as an RLModule: a Hugging Face causal LM that scores packed trees."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override

from rllib_arpo.core.columns import (
    END,
    ENTROPY,
    LOG_PROBS,
    LOSS_MASK,
    PARENT,
    POSITION_IDS,
    TOKEN_IDS,
)
from rllib_arpo.policy.attention.tree_operator import keep_attention
from rllib_arpo.policy.causal_lm import load_causal_lm, round_weights
from rllib_arpo.policy.checkpoint_names import check_shapes
from rllib_arpo.policy.lora import Adapter
from rllib_arpo.policy.module_checkpoint import load_weights, resolve, save_weights
from rllib_arpo.policy.sharded_state import read_by_first, scatter_from_first, whole_array
from rllib_arpo.policy.tree_scorer import TreeScorer

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: `model_config["dtype"]` -> the type of matrix products.
COMPUTE_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}

#: The key of `model_config` that the learners set, all but the first.
WEIGHTS_WILL_COME = "weights_will_come"

#: The placeholder for the weights in the pickled state of a checkpoint.
_NO_WEIGHTS = "weights_are_in_safetensors"


class LLMRLModule(TorchRLModule):
    """Computes log-probs and entropies of the loss tokens of a packed pass.

    Keys of `model_config`:
        model_name_or_path: a Hugging Face id or folder.
        dtype: "bfloat16", "float16", "float32" or "float64": the type of the matrix products. Trained weights are fp32
            (fp64 for "float64"), and autocast applies lower types; the frozen base of a LoRA has this type.
        temperature: the sampling temperature, > 0.
        gradient_checkpointing: computes each layer again in the backward pass; "auto": only as many as the learner
            passes to `checkpoint_layers`, since it lacks memory.
        tree_attention: the kernel, a key of `TREE_KERNELS`; "auto" (or missing): the fastest that runs.
        lora: None trains all weights; keywords of `peft.LoraConfig` train only a LoRA adapter.
        weights_will_come: True leaves the weights uninitialised, since another learner will send them.

    With `inference_only` it holds no weights: an engine with its own copy samples the trajectories.
    The spaces are ignored: observations and actions are token ids of any length.

    Attributes:
        causal_lm: the model; None with `inference_only`.
        scorer: the forward pass of training; all computation goes through it.
    """

    @override(TorchRLModule)
    def setup(self) -> None:
        self.causal_lm: Any = None
        if self.inference_only:
            return
        settings = self.model_config
        dtype = COMPUTE_DTYPES[settings["dtype"]]
        self._temperature = float(settings["temperature"])
        self._master_dtype = torch.promote_types(dtype, torch.float32)
        reads_weights = not settings.get(WEIGHTS_WILL_COME, False)
        self.causal_lm = load_causal_lm(settings["model_name_or_path"], self._master_dtype, reads_weights)
        self._adapter: Adapter | None = None
        if settings.get("lora") is not None:
            round_weights(self.causal_lm, dtype)
            self._adapter = Adapter(self.causal_lm, settings["lora"])
        self.scorer = TreeScorer(self.causal_lm, dtype, settings.get("tree_attention", "auto"))
        if settings.get("gradient_checkpointing") is True:
            self.checkpoint_layers()

    def checkpoint_layers(self, number: int | None = None) -> None:
        """Makes the backward pass compute the logits and the first layers again, but not the layers' attention.

        Args:
            number: of layers; None: all.
        """
        self.scorer.kept_logit_bytes = 0
        settings = {"use_reentrant": False, "context_fn": keep_attention, "preserve_rng_state": False}
        self.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
        layers = self.causal_lm.get_decoder().layers
        for layer in layers[len(layers) if number is None else number :]:
            layer.gradient_checkpointing = False

    @override(TorchRLModule)
    def _forward_train(
        self, batch: dict[str, Any], *, with_entropy: bool = True, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Scores one pass.

        Args:
            batch: `TOKEN_IDS`, `POSITION_IDS`, `PARENT`, `END`, `LOSS_MASK`, [T] each, of one or more packed trees, as
                arrays or tensors in the CPU's memory. No first token of a prompt is in the loss, since nothing precedes
                it (`pack_tree` ensures it).
            with_entropy: False leaves `ENTROPY` out.

        Returns:
            `LOG_PROBS` and `ENTROPY` (nats), [K] each, fp32 or fp64: one entry per loss token in packed order, at the
            sampling temperature, computed from the hidden state at the token's parent.
        """
        arrays = {name: np.asarray(batch[name]) for name in (TOKEN_IDS, POSITION_IDS, PARENT, END, LOSS_MASK)}
        rows = np.flatnonzero(arrays[LOSS_MASK])
        log_probs, entropy = self.scorer(arrays, rows, self._temperature, with_entropy=with_entropy)
        return {LOG_PROBS: log_probs} if entropy is None else {LOG_PROBS: log_probs, ENTROPY: entropy}

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("LLMRLModule does not act: trajectories are sampled by the engine of the env runner.")

    def make_reference(self) -> LLMRLModule | BaseModel:
        """A frozen model that scores with the weights of `model_name_or_path`, whatever this module has learned since.

        It is not part of any state: a restart makes it again from the same checkpoint.
        """
        if self._adapter is not None:
            return BaseModel(self, self._adapter)
        _, arguments = self.get_ctor_args_and_kwargs()
        return type(self)(**arguments).requires_grad_(False)

    @property
    def vocab_size(self) -> int:
        """V: the width of the logits."""
        return self.causal_lm.get_output_embeddings().out_features

    @torch.no_grad()
    def score(self, token_ids: np.ndarray) -> np.ndarray:
        """Log-probs [n - 1] float32 of token_ids[1:] at temperature 1, in the compute dtype of training."""
        positions = np.arange(len(token_ids))
        chain = {
            TOKEN_IDS: token_ids,
            POSITION_IDS: positions,
            PARENT: positions - 1,
            END: np.full_like(positions, len(token_ids)),
        }
        return self.scorer(chain, positions[1:], temperature=1.0, with_entropy=False)[0].float().cpu().numpy()

    def trained_weights(self) -> dict[str, torch.Tensor]:
        """The state's tensors, tied ones twice: all weights by Hugging Face name, or the adapter's by PEFT's name."""
        return self.causal_lm.state_dict(keep_vars=True) if self._adapter is None else self._adapter.tensors()

    def check_parameters(self) -> None:
        """Raises ValueError if the state lacks a parameter that is trained: checkpoints and engines would lack it."""
        kept = {id(tensor) for tensor in self.trained_weights().values()}
        lost = [name for name, p in self.named_parameters() if p.requires_grad and id(p) not in kept]
        if lost:
            part = "`causal_lm`" if self._adapter is None else "the LoRA adapter"
            raise ValueError(
                f"{type(self).__name__}: trains {lost[0]!r} ({len(lost)} such parameters), but checkpoints and engines "
                f"have only the weights of {part}: freeze it, or leave it out."
            )

    def num_changes(self) -> int:
        """The number of changes of the state's tensors in place, as torch counts them."""
        return sum(tensor._version for tensor in self.trained_weights().values())

    def weight_views(self, dtype: torch.dtype | None = None) -> dict[str, np.ndarray]:
        """Like `get_state`, but on the CPU the arrays are the module's own memory.

        Callers must read them before the next update. If each learner holds a part, the first one gets the weights and
        the others get nothing (`whole_array`).

        Args:
            dtype: the type to which weights are cast; cast weights are copies. None: their own type.
        """
        weights = self.trained_weights()
        distinct = {id(weight): weight for weight in weights.values()}
        views = {key: whole_array(weight, dtype) for key, weight in distinct.items()}
        return {name: view for name, weight in weights.items() if (view := views[id(weight)]) is not None}

    @override(TorchRLModule)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """All weights, fp32 (fp64 for dtype "float64"), by Hugging Face name; with a LoRA, only the adapter's.

        A tied `lm_head.weight` is included: engines need it. The arrays are copies, which no later update changes.
        An `inference_only` module has an empty state. The argument `inference_only` has no effect, since an engine
        needs all weights.
        """
        if self.causal_lm is None:
            return {}
        # Tied weights share one copy: the state is pickled once.
        views = self.weight_views()
        copies = {id(view): view.copy() for view in views.values()}
        return {name: copies[id(view)] for name, view in views.items()}

    @override(TorchRLModule)
    def save_to_path(
        self,
        path: str | Path | None = None,
        *,
        state: dict[str, Any] | None = None,
        filesystem: FileSystem | None = None,
        use_msgpack: bool = False,
    ) -> str:
        """Saves like RLlib's method, but only the folder "huggingface" or, for a LoRA, "adapter" holds the weights.

        `AutoModelForCausalLM` reads the first, `PeftModel.from_pretrained(base, folder)` the second.
        """
        weights = state or self.get_state()
        if path is not None:
            path, filesystem = resolve(path, filesystem)
        # Given an empty state, RLlib would save the whole state.
        saved = super().save_to_path(path, state={_NO_WEIGHTS: True}, filesystem=filesystem, use_msgpack=use_msgpack)
        if weights:
            name = self.model_config["model_name_or_path"]
            save_weights(*resolve(saved, filesystem), weights, name, self._adapter)
        return saved

    @override(TorchRLModule)
    def restore_from_path(
        self,
        path: str | Path,
        *,
        component: str | None = None,
        filesystem: FileSystem | None = None,
        **kwargs: Any,
    ) -> None:
        """Restores the weights that `save_to_path` wrote; see `load_weights` for its errors.

        Several learners must all call this method; only the first reads the files.
        """
        if self.causal_lm is not None:
            files = resolve(path, filesystem)
            self.set_state(read_by_first(lambda: load_weights(*files, self._master_dtype, self._adapter)))

    @override(TorchRLModule)
    def set_state(self, state: dict[str, Any]) -> None:
        """Replaces the weights by arrays or tensors named as in `get_state`; does nothing if `inference_only`.

        Learners that share the model must all call this method; the first learner's numbers count.

        Raises:
            ValueError: a name is missing or unknown, or a shape differs; nothing is changed then.
        """
        if self.causal_lm is None:
            return
        own = {name: tensor.detach() for name, tensor in self.trained_weights().items()}
        given, expected = ({name: tuple(value.shape) for name, value in values.items()} for values in (state, own))
        check_shapes(given, expected, "this module")
        for name, tensor in own.items():
            tensor.copy_(scatter_from_first(state[name], like=tensor))


class BaseModel:
    """An `LLMRLModule` without its LoRA adapter: the reference of the KL, with no second copy of the weights."""

    def __init__(self, module: LLMRLModule, adapter: Adapter):
        self._module, self._adapter = module, adapter

    @torch.no_grad()
    def forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        """`LLMRLModule.forward_train` without the adapter and without gradients."""
        with self._adapter.disabled():
            return self._module.forward_train(batch, **kwargs)
