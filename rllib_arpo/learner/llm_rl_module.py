"""The policy as an RLModule: a Hugging Face causal LM that scores packed trees."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override

from rllib_arpo.connectors.columns import END, ENTROPY, LOG_PROBS, LOSS_MASK, PARENT, POSITION_IDS, TOKEN_IDS
from rllib_arpo.learner.causal_lm import load_causal_lm
from rllib_arpo.learner.sharded_state import part_like, whole_array
from rllib_arpo.learner.tree_scorer import TreeScorer

#: `model_config["dtype"]` -> the type of matrix products.
COMPUTE_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class LLMRLModule(TorchRLModule):
    """Log-probs and entropies of the loss tokens of a packed pass.

    Keys of `model_config`:
        model_name_or_path: a Hugging Face id or folder.
        dtype: "bfloat16", "float16", "float32" or "float64": the type of the matrix products. The weights are fp32
            (fp64 for "float64"); lower types are used through autocast.
        temperature: the sampling temperature, > 0.
        gradient_checkpointing: computes each layer again in the backward pass; None: if CUDA is available.
        tree_attention: the kernel, a key of `TREE_KERNELS`; "auto" (or missing): the fastest that runs.
        lora: None.

    With `inference_only` it holds no weights: trajectories are sampled by an engine, which has its own copy.
    The spaces are ignored: observations and actions are token ids of any length.

    Attributes:
        causal_lm: the model; None with `inference_only`.
        scorer: its forward pass of training; all computing goes through it.
    """

    @override(TorchRLModule)
    def setup(self) -> None:
        self.causal_lm = None
        if self.inference_only:
            return
        settings = self.model_config
        if settings["dtype"] not in COMPUTE_DTYPES:
            raise ValueError(f"dtype={settings['dtype']!r}: must be one of {', '.join(COMPUTE_DTYPES)}.")
        if settings.get("lora") is not None:
            raise ValueError("lora is not supported by LLMRLModule: leave it None.")
        dtype = COMPUTE_DTYPES[settings["dtype"]]
        self._temperature = float(settings["temperature"])
        if not self._temperature > 0:
            raise ValueError(f"temperature={settings['temperature']!r}: training needs a temperature > 0.")
        master_dtype = torch.promote_types(dtype, torch.float32)
        self.causal_lm = load_causal_lm(settings["model_name_or_path"], master_dtype)
        checkpointing = settings.get("gradient_checkpointing")
        if torch.cuda.is_available() if checkpointing is None else checkpointing:
            self.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.scorer = TreeScorer(self.causal_lm, dtype, settings.get("tree_attention", "auto"))

    @override(TorchRLModule)
    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Scores one pass.

        Args:
            batch: `TOKEN_IDS`, `POSITION_IDS`, `PARENT`, `END`, `LOSS_MASK`, [T] each, of one or more packed trees.

        Returns:
            `LOG_PROBS` and `ENTROPY` (nats), [K] each, fp32 or fp64: one entry per loss token in packed order, at the
            sampling temperature, computed from the hidden state at the token's parent.

        Raises:
            ValueError: the first token of a prompt, which nothing precedes, is in the loss.
        """
        rows = batch[LOSS_MASK].nonzero().squeeze(1)
        if (batch[PARENT][rows] < 0).any():
            raise ValueError("The first token of a prompt is in the loss, but no hidden state precedes it.")
        log_probs, entropy = self.scorer(batch, rows, self._temperature)
        return {LOG_PROBS: log_probs, ENTROPY: entropy}

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("LLMRLModule does not act: trajectories are sampled by the engine of the env runner.")

    def make_reference(self) -> LLMRLModule:
        """A frozen module with the weights of `model_name_or_path`, whatever this one has learned since.

        It is in no state: after a restart it is made again from the same checkpoint.
        """
        _, arguments = self.get_ctor_args_and_kwargs()
        return type(self)(**arguments).requires_grad_(False)

    @property
    def vocab_size(self) -> int:
        """V: the width of the logits."""
        return self.causal_lm.get_output_embeddings().out_features

    @torch.no_grad()
    def score(self, token_ids: np.ndarray) -> np.ndarray:
        """Log-probs [n - 1] float32 of token_ids[1:] at temperature 1, in the compute dtype of training."""
        device, n = self.causal_lm.device, len(token_ids)
        positions = torch.arange(n, device=device)
        chain = {
            TOKEN_IDS: torch.from_numpy(token_ids).to(device),
            POSITION_IDS: positions,
            PARENT: positions - 1,
            END: torch.full_like(positions, n),
        }
        return self.scorer(chain, positions[1:], temperature=1.0)[0].float().cpu().numpy()

    def weight_views(self) -> dict[str, np.ndarray]:
        """All weights under their Hugging Face names, as `get_state`, but on the CPU the module's own memory.

        They are to be read before the next update. Where the learners share the weights out, see `whole_array`: the
        first gets them, the others nothing.
        """
        weights = self.causal_lm.state_dict(keep_vars=True)
        distinct = {id(weight): weight for weight in weights.values()}
        views = {key: whole_array(weight) for key, weight in distinct.items()}
        return {name: views[id(weight)] for name, weight in weights.items() if views[id(weight)] is not None}

    @override(TorchRLModule)
    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """All weights, fp32 (fp64 for dtype "float64"), under their Hugging Face names.

        A tied `lm_head.weight` is included: engines need it. The arrays are copies: a later update leaves them alone.
        An `inference_only` module has the empty state; an engine needs the whole one, so the flag changes nothing.
        """
        if self.causal_lm is None:
            return {}
        # Tied weights share one copy: the state is pickled once.
        views = self.weight_views()
        copies = {id(view): view.copy() for view in views.values()}
        return {name: copies[id(view)] for name, view in views.items()}

    @override(TorchRLModule)
    def set_state(self, state: dict[str, Any]) -> None:
        """Replaces all weights by arrays or tensors; an `inference_only` module has none and takes none.

        Raises:
            ValueError: a name is missing or unknown, or a shape differs; nothing is changed then.
        """
        if self.causal_lm is None:
            return
        own = self.causal_lm.state_dict()
        if wrong := sorted(own.keys() ^ state.keys()):
            raise ValueError(f"The state does not fit the model: {wrong[0]} and {len(wrong) - 1} more names differ.")
        for name, tensor in own.items():
            if tuple(state[name].shape) != tuple(tensor.shape):
                raise ValueError(f"{name} has the shape {list(state[name].shape)} instead of {list(tensor.shape)}.")
        for name, tensor in own.items():
            tensor.copy_(part_like(state[name], like=tensor))
