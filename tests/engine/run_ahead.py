"""vLLM's asynchronous scheduling on a CPU, where vLLM turns it off: the schedule of a GPU, without its streams."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from tests.engine.conftest import start_engine


class _Event:
    """A CUDA event on a CPU, where all has happened when a call returns."""

    def __init__(self, **_settings):
        pass

    def record(self, _stream=None):
        pass

    def synchronize(self):
        pass


class _Stream:
    def __init__(self, _device=None):
        pass

    def wait_stream(self, _other):
        pass


@contextlib.contextmanager
def streams_of_a_gpu() -> Iterator[None]:
    """Within it torch.cuda has streams and events, as far as vLLM's `AsyncGPUModelRunnerOutput` uses them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Event", _Event)
        patch.setattr(torch.cuda, "Stream", _Stream)
        patch.setattr(torch.cuda, "current_stream", _Stream)
        patch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
        yield


def start_engine_that_runs_ahead(folder: str, **engine_kwargs):
    """To be used within `streams_of_a_gpu`."""
    from rllib_arpo.engine.vllm import engine as engine_module

    choose = engine_module.choose_entropy_processor

    def choose_and_run_ahead(config):
        config.scheduler_config.async_scheduling = True
        choose(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "choose_entropy_processor", choose_and_run_ahead)
        engine = start_engine(folder, **engine_kwargs)
    assert engine._llm.engine_core.engine_core.batch_queue is not None
    return engine
