"""Writes models and checkpoints in the formats of Hugging Face and PEFT, reads them, and exports checkpoints."""

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
from ray import cloudpickle
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.utils.checkpoints import Checkpointable, try_import_msgpack

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
        weights: all of them by Hugging Face name, tied ones included; they are not changed.
        model_name_or_path: the model from which training started.
        dtype: the files' type ("bfloat16"); None: the type of `weights`.
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
    """Makes a folder for a model, before anything is loaded; `save_pretrained` would only log that it is a file.

    Raises:
        ValueError: the folder cannot be made.
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
        logger.warning("%s has no tokenizer (%s), so %s has none.", model_name_or_path, first_line(error), folder)
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
        dtype: the type of the written weights ("bfloat16"); None: as trained, float32.

    Raises:
        ValueError: a file of the checkpoint is missing or differs from the saved one, or `folder` cannot be made.
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


#: Folders in a module's checkpoint, for all weights and for a LoRA adapter.
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
    """Writes the state of a module into the folder `path`: all weights, or its adapter's."""
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
        FileNotFoundError: the checkpoint lacks the weights of a whole model, or of an adapter if one is given.
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


def read_state(path: str, filesystem: pyarrow.fs.FileSystem) -> dict[str, Any]:
    """The state that RLlib's `Checkpointable.save_to_path` wrote into the folder `path`, without its components'."""
    file = f"{path}/{Checkpointable.STATE_FILE_NAME}"
    if filesystem.get_file_info(f"{file}.msgpack").type == pyarrow.fs.FileType.File:
        msgpack = try_import_msgpack(error=True)
        with filesystem.open_input_stream(f"{file}.msgpack") as stream:
            return msgpack.load(stream, strict_map_key=False)
    with filesystem.open_input_stream(f"{file}.pkl") as stream:
        return cloudpickle.load(stream)


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
