"""Finds the models that `--model` names: Hugging Face models, and checkpoints of ARPO."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.support.data_files import fingerprint
from rllib_arpo.errors import CHECKS, CommandError, command_errors
from rllib_arpo.policy.checkpoint_names import causal_lm_config
from rllib_arpo.policy.module_checkpoint import MODULE, export_model

#: The files that determine a model's behaviour.
_MODEL_FILES = ("*.safetensors", "*.bin", "*.gguf", "config.json", "tokenizer*", "chat_template*", "adapter_*.json")


@dataclass(frozen=True, slots=True)
class Model:
    """A model to evaluate.

    Attributes:
        name: its name in the results: an absolute path, or a short name.
        label: a short name that differs between the models of a command.
        path: the folder or id that the engine loads.
        fingerprint: a hash of its files, or for a model from the hub its commit there.
    """

    name: str
    label: str
    path: str
    fingerprint: str | None


def resolve_models(names: Sequence[str], folder: Path, dtype: str) -> list[Model]:
    """Finds the models, and exports checkpoints into `folder`.

    Args:
        names: as the user wrote them; duplicates count once.
        dtype: the dtype of exported weights.

    Raises:
        CommandError: a model does not exist.
    """
    names = list(dict.fromkeys(_canonical(name) for name in names))
    labels = short_labels(names)
    return [_resolve(name, labels[name], folder, dtype) for name in names]


def short_labels(names: Sequence[str]) -> dict[str, str]:
    """Name -> the shortest end of its path that distinguishes it from the other names."""
    labels = {}
    for name in names:
        parts = [part for part in name.split("/") if part]
        candidates = ["/".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        others = [other.rstrip("/") for other in names if other != name]
        labels[name] = next(
            (c for c in candidates if not any(other == c or other.endswith(f"/{c}") for other in others)), name
        )
    return labels


def _canonical(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else name


def _resolve(name: str, label: str, folder: Path, dtype: str) -> Model:
    module = Path(name) / MODULE
    if module.is_dir():
        mark = fingerprint(file for part in module.iterdir() for file in _model_files(part))
        target = folder / mark
        if not target.is_dir():
            with command_errors((*CHECKS, OSError)):
                export_model(name, target, dtype)
        return Model(name, label, str(target), mark)
    if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
        raise CommandError(f"{name} is neither a Hugging Face model (it has no config.json) nor a checkpoint of ARPO.")
    with command_errors():
        config = causal_lm_config(name)
    if Path(name).is_dir():
        return Model(name, label, name, fingerprint(_model_files(Path(name))))
    return Model(name, label, name, getattr(config, "_commit_hash", None))


def _model_files(folder: Path) -> list[Path]:
    return [file for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.is_file()]
