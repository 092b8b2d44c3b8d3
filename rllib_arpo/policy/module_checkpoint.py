"""The weights in the folder of a module's checkpoint, as Hugging Face and PEFT read them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.fs

from rllib_arpo.policy.huggingface import read_weights, write_model
from rllib_arpo.policy.lora import read_adapter

if TYPE_CHECKING:
    import numpy as np
    import torch

    from rllib_arpo.policy.lora import Adapter

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
    name = HUGGINGFACE if adapter is None else ADAPTER
    source = f"{path}/{name}"
    if filesystem.get_file_info(source).type != pyarrow.fs.FileType.Directory:
        kind = "the whole model" if adapter is None else "a LoRA adapter"
        raise FileNotFoundError(f"{path} has no folder {name!r}: it is not a checkpoint of {kind}.")
    with _local_copy(source, filesystem, write=False) as folder:
        return read_weights(folder, dtype) if adapter is None else read_adapter(folder)


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
