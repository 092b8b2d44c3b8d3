"""The step that vLLM has started ahead, without vLLM's model: what is left behind if it fails."""

from types import SimpleNamespace

import pytest
from vllm.v1.core.sched.interface import PauseState

from rllib_arpo.engine.vllm.engine import VLLMEngine


@pytest.mark.parametrize("fails", [True, False])
def test_the_scheduler_goes_on_after_a_step_that_was_waited_for(fails):
    states = []
    core = SimpleNamespace(batch_queue=["ahead"], scheduler=SimpleNamespace(set_pause_state=states.append))

    def get_output():
        core.batch_queue.clear()
        if fails:
            raise RuntimeError("the step failed")
        return SimpleNamespace(outputs=[])

    engine = VLLMEngine.__new__(VLLMEngine)
    engine._held = []
    engine._llm = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core, get_output=get_output))
    if fails:
        with pytest.raises(RuntimeError, match=r"^the step failed$"):
            engine._finish_step()
    else:
        engine._finish_step()
    assert states == [PauseState.PAUSED_ALL, PauseState.UNPAUSED]
