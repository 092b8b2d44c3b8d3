"""Makes inference engines by name. It imports an engine only when it makes one, so other processes need no vLLM."""

import importlib

from rllib_arpo.engine.engine import Engine, EngineConfig

#: Name -> "module:class". To register an engine of your own, add it here in every process that makes one.
ENGINES: dict[str, str] = {
    "vllm": "rllib_arpo.engine.vllm.engine:VLLMEngine",
    "scripted": "rllib_arpo.engine.scripted_engine:ScriptedEngine",
}

#: Package that an engine needs -> how to install it.
_PACKAGES = {"vllm": "`pip install rllib-arpo[gpu]`, or `rllib-arpo[cpu]` on a machine without a GPU"}


def make_engine(name: str, config: EngineConfig) -> Engine:
    """Makes the engine called `name`; its model is loaded and ready for requests.

    Raises:
        ValueError: no engine has that name, or the engine refuses `config`.
        ImportError: the package behind the engine is not installed.
    """
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is unknown: choose one of {', '.join(map(repr, ENGINES))}.")
    module, _, class_name = ENGINES[name].partition(":")
    try:
        engine_class = getattr(importlib.import_module(module), class_name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise ImportError(
            f"engine={name!r} needs the package {package}, which is not installed: {_PACKAGES[package]}."
        ) from None
    return engine_class(config)
