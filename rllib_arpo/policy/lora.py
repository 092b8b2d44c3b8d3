"""The LoRA adapter of a causal LM: the learner trains and sends only this, and env runners merge it for engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rllib_arpo.policy.checkpoint_names import as_tensors, check_shapes

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

#: PEFT's name of the only adapter; it occurs in no state and no file.
_ADAPTER = "default"
#: PEFT's file name for the weights in an adapter's folder.
_WEIGHTS_FILE = "adapter_model.safetensors"


def lora_config(lora: Mapping[str, Any]) -> LoraConfig:
    """Makes PEFT's configuration from `language_model(lora=...)`.

    Raises:
        ImportError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise ImportError(
            "lora needs the package peft, which is not installed: `pip install rllib-arpo[lora]`."
        ) from None
    return LoraConfig(**{"task_type": "CAUSAL_LM", **lora})


class Adapter:
    """A LoRA adapter in the linear layers of `model`, which stays the same object and computes with it.

    The model's own weights are frozen and never change. The adapter's weights are fp32 at least, and have the names of
    PEFT's files ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight").
    """

    def __init__(self, model: PreTrainedModel, lora: Mapping[str, Any]):
        """Puts the adapter into `model`.

        Raises:
            ValueError: the adapter fits no layer of the model, or adapts the embeddings, the LM head or a layer that is
                not linear.
        """
        config = lora_config(lora)
        from peft import get_peft_model
        from peft.tuners.lora import Linear, LoraLayer

        self._model = model
        try:
            # Every learner begins with the same adapter, and no other random numbers change.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                self._peft = get_peft_model(model, config, low_cpu_mem_usage=model.device.type == "meta")
        except ValueError as error:
            raise ValueError(f"lora: {error}") from error
        self._layers: dict[str, LoraLayer] = {
            name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)
        }
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        for name, layer in self._layers.items():
            if layer in ends or not isinstance(layer, Linear):
                raise ValueError(f"lora: adapts {name!r}, but only linear layers before the LM head are supported.")
            # Autocast does the necessary casts; PEFT's own cast would keep one more copy of every layer's input.
            layer.cast_input_dtype_enabled = False

    def tensors(self) -> dict[str, torch.Tensor]:
        """The adapter's parameters themselves, by name."""
        from peft import get_peft_model_state_dict

        everything = self._peft.state_dict(keep_vars=True)
        return get_peft_model_state_dict(self._peft, everything, save_embedding_layers=False)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within this context the model computes without the adapter."""
        self._peft.base_model.disable_adapter_layers()
        # PEFT also freezes an adapter that it disables, but FSDP2 relies on what it finds in the first forward pass.
        for tensor in self.tensors().values():
            tensor.requires_grad_(True)
        try:
            yield
        finally:
            self._peft.base_model.enable_adapter_layers()

    @torch.no_grad()
    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the adapter's weights.

        Raises:
            ValueError: a name is missing or unknown, or a shape is wrong; nothing was loaded.
        """
        own = self.tensors()
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        check_shapes({name: array.shape for name, array in arrays.items()}, shapes, owner="the adapter")
        for name, tensor in as_tensors(arrays):
            own[name].copy_(tensor)

    @torch.no_grad()
    def merged(self) -> dict[str, torch.Tensor]:
        """All weights of the model with the adapter in them, W + scale B A, by Hugging Face name; fp32 at least.

        Every call computes them from W, so rounding errors do not accumulate. Tied weights are one tensor; a weight
        without an adapter may be the model's own memory.
        """
        adapter = {id(tensor) for tensor in self.tensors().values()}
        results: dict[str, torch.Tensor] = {}
        done: dict[int, torch.Tensor] = {}
        for name, weight in self._model.state_dict(keep_vars=True).items():
            if id(weight) in adapter:
                continue
            layer, _, kind = name.rpartition(".base_layer.")
            if id(weight) not in done:
                full = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
                is_adapted = layer and kind == "weight"
                done[id(weight)] = full + self._layers[layer].get_delta_weight(_ADAPTER) if is_adapted else full
            results[f"{layer}.{kind}" if layer else name] = done[id(weight)]
        return results

    def save(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes `arrays` as an adapter of this kind, for `PeftModel.from_pretrained(base, folder)` to read."""
        from safetensors.torch import save_file

        config = copy(self._peft.peft_config[_ADAPTER])
        config.inference_mode = True
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(folder)
        save_file(dict(as_tensors(arrays)), folder / _WEIGHTS_FILE, metadata={"format": "pt"})


def read_adapter(folder: Path) -> dict[str, np.ndarray]:
    """The weights that `Adapter.save` wrote."""
    from safetensors.numpy import load_file

    return load_file(folder / _WEIGHTS_FILE)


class MergedWeights:
    """Makes whole models from adapters: holds the base weights, which it loads at the first call.

    Args:
        model_name_or_path: the base model.
        lora: the configuration of the adapters.
        dtype: the base's type; it must be the learner's compute dtype, so that both compute with the same weights.
    """

    def __init__(self, model_name_or_path: str, lora: Mapping[str, Any], dtype: str):
        self._arguments = (model_name_or_path, lora, dtype)

    @cached_property
    def _adapter(self) -> Adapter:
        from transformers import AutoModelForCausalLM

        name, lora, dtype = self._arguments
        model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
        return Adapter(model, lora)

    def __call__(self, adapter: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Adapter arrays -> all weights by Hugging Face name, which callers may only read; tied ones are one array.

        Raises:
            ValueError: the arrays are not the weights of such an adapter.
        """
        self._adapter.load(adapter)
        merged = self._adapter.merged()
        arrays = {id(tensor): tensor.numpy() for tensor in merged.values()}
        return {name: arrays[id(tensor)] for name, tensor in merged.items()}
