"""Weights as Hugging Face and PEFT read them: a model's folder, that of a module's checkpoint, the export of one."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.fs
import torch
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID

from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.files import check_all_files
from rllib_arpo.policy.checkpoint_names import as_tensors, causal_lm_without_weights
from rllib_arpo.policy.lora import read_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rllib_arpo.policy.lora import Adapter

logger = logging.getLogger("rllib_arpo")


def write_model(
    folder: str | Path,
    weights: Mapping[str, np.ndarray],
    model_name_or_path: str,
    dtype: str | None = None,
    like: PreTrainedModel | None = None,
) -> None:
    """Writes a model with the configuration, generation configuration and tokenizer of `model_name_or_path`.

    Args:
        folder: created if it does not exist.
        weights: all of them by Hugging Face name, tied ones included; they are read only.
        model_name_or_path: the model from which training started.
        dtype: of the files ("bfloat16"); None: that of `weights`.
        like: a model with these layers, whose configurations are written.

    Raises:
        ValueError: `folder` cannot be made.
    """
    make_folder(folder)
    model = causal_lm_without_weights(model_name_or_path)
    model.load_state_dict(dict(as_tensors(weights)), assign=True)
    model.tie_weights()
    if like is not None:
        model.config, model.generation_config = like.config, like.generation_config
    _write(folder, model, model_name_or_path, dtype, own_generation=like is not None)


def make_folder(folder: str | Path) -> None:
    """Makes a folder for a model, before anything is loaded; `save_pretrained` only logs that there is a file.

    Raises:
        ValueError: it cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder}: not a folder that can be written ({error.strerror}).") from error


def _write(
    folder: str | Path,
    model: PreTrainedModel,
    model_name_or_path: str | Path,
    dtype: str | None,
    own_generation: bool = False,
) -> None:
    """Writes a model, then what else `model_name_or_path` has: its tokenizer, its generation configuration.

    Args:
        own_generation: whether `model` has the generation configuration.
    """
    from transformers import AutoTokenizer, GenerationConfig

    if dtype is not None:
        model = model.to(getattr(torch, dtype))
    # `save_pretrained` refuses contradictions, which many published models have, before it has written the weights.
    generation, model.generation_config = model.generation_config, GenerationConfig()
    model.save_pretrained(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name_or_path)
    except (OSError, ValueError) as error:  # An environment of token ids needs none.
        logger.warning("%s has no tokenizer (%s), nor has %s.", model_name_or_path, first_line(error), folder)
    else:
        tokenizer.save_pretrained(folder)
    try:
        if not own_generation:
            generation = GenerationConfig.from_pretrained(model_name_or_path)
    except (OSError, ValueError):
        logger.debug("%s has no generation_config.json: it follows from config.json.", model_name_or_path)
    generation.to_json_file(Path(folder) / "generation_config.json")


#: The module's folder within an algorithm's checkpoint.
MODULE = Path(COMPONENT_LEARNER_GROUP, COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID)


def export_model(checkpoint: str | Path, folder: str | Path, dtype: str | None = None) -> None:
    """Writes the model of a checkpoint for `AutoModelForCausalLM.from_pretrained`, with its tokenizer.

    A LoRA is merged into the base as it is on disk; in training the base was rounded to the compute dtype.

    Args:
        checkpoint: the folder of an algorithm's checkpoint, on this machine.
        folder: created if it does not exist.
        dtype: of the weights in it ("bfloat16"); None: as trained, float32.

    Raises:
        ValueError: a file of the checkpoint is missing, or is not the one that was saved; or `folder` cannot be made.
    """
    from transformers import AutoModelForCausalLM

    check_all_files(checkpoint)
    make_folder(folder)
    module = Path(checkpoint) / MODULE
    source, adapter = module / HUGGINGFACE, module / ADAPTER
    if adapter.is_dir():
        from peft import PeftConfig, PeftModel

        source = PeftConfig.from_pretrained(adapter).base_model_name_or_path
        base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, adapter).merge_and_unload()
    else:
        model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    _write(folder, model, source, dtype)


#: Folders in a module's checkpoint: of all weights, or of a LoRA adapter.
HUGGINGFACE, ADAPTER = "huggingface", "adapter"


def resolve(path: str | Path, filesystem: pyarrow.fs.FileSystem | None) -> tuple[str, pyarrow.fs.FileSystem]:
    """A path within a file system; if `filesystem` is None, the scheme of the path names it, as in RLlib.

    A path without a scheme may be relative, or begin with "~".
    """
    if filesystem is not None:
        return str(path), filesystem
    named = str(path) if "://" in str(path) else Path(path).expanduser().absolute().as_posix()
    found, path_within = pyarrow.fs.FileSystem.from_uri(named)
    return path_within, found


def save_weights(
    path: str,
    filesystem: pyarrow.fs.FileSystem,
    weights: Mapping[str, np.ndarray],
    model_name_or_path: str,
    adapter: Adapter | None,
) -> None:
    """Writes the state of a module into the folder `path`: all weights, or those of its adapter."""
    name = HUGGINGFACE if adapter is None else ADAPTER
    with _local_copy(f"{path}/{name}", filesystem, write=True) as folder:
        if adapter is None:
            write_model(folder, weights, model_name_or_path)
        else:
            adapter.save(folder, weights)


def load_weights(
    path: str, filesystem: pyarrow.fs.FileSystem, dtype: torch.dtype, adapter: Adapter | None
) -> dict[str, Any]:
    """The state of a module that `save_weights` wrote.

    Raises:
        FileNotFoundError: the checkpoint has no weights, or is of the other kind.
    """
    from transformers import AutoModelForCausalLM

    name = HUGGINGFACE if adapter is None else ADAPTER
    source = f"{path}/{name}"
    if filesystem.get_file_info(source).type != pyarrow.fs.FileType.Directory:
        kind = "the whole model" if adapter is None else "a LoRA adapter"
        raise FileNotFoundError(f"{path} has no folder {name!r}: it is not a checkpoint of {kind}.")
    with _local_copy(source, filesystem, write=False) as folder:
        if adapter is not None:
            return read_adapter(folder)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).state_dict()


@contextlib.contextmanager
def _local_copy(path: str, filesystem: pyarrow.fs.FileSystem, *, write: bool) -> Iterator[Path]:
    """`path` as a folder on this machine: `path` itself, or a temporary copy of it."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        local, ends = pyarrow.fs.LocalFileSystem(), (folder, path)
        if not write:
            pyarrow.fs.copy_files(path, folder, source_filesystem=filesystem, destination_filesystem=local)
        yield Path(folder)
        if write:
            filesystem.create_dir(path, recursive=True)
            pyarrow.fs.copy_files(*ends, source_filesystem=local, destination_filesystem=filesystem)
