"""The scripted engine in tool environments: its calls are valid, its answers are read, and its numbers add up."""

import numpy as np
import pytest

from rllib_arpo.engine.engine import EngineConfig, GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedEngine
from rllib_arpo.envs.protocols.protocol import Answer, CallRequest, Nothing
from rllib_arpo.envs.tool_env import ToolEnv
from tests.engine.conftest import run
from tests.helpers.chat_templates import THINKING, calling_folder


def buy(item: str, number: int = 1) -> str:
    """Buys lamps."""
    return f"{number} bought"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return calling_folder(tmp_path_factory.mktemp("tokenizer"))


def turns_of(env: ToolEnv, num: int, **changes) -> list:
    """What the environment's protocol reads in turns after the same prompt, each with its own seed."""
    engine = ScriptedEngine(EngineConfig("none"))
    engine.play(env)
    prompt = env.reset(options={"question": 0})[0]["0"].tolist()
    for seed in range(num):
        engine.submit(GenerationRequest(str(seed), prompt, 600, seed=seed, entropy_window=600, **changes))
    return sorted(run(engine).values(), key=lambda event: int(event.request_id))


@pytest.mark.parametrize("protocol", ["tags", "tags_with_thought", "function_calling"])
def test_each_turn_is_a_call_that_runs_or_an_answer(model, protocol):
    config = {"task": "arithmetic", "protocol": protocol, "tools": [buy], "model_name_or_path": model}
    env = ToolEnv(config)
    kinds = set()
    for seed in range(8):
        env = ToolEnv(config | {"seed": seed})
        for event in turns_of(env, 8):
            parsed = env.protocol.parse(env.tokenizer.decode(event.token_ids))
            kinds.add(type(parsed))
            if isinstance(parsed, CallRequest):
                argument = parsed.argument
                buy_tool = env.tools["buy"]
                buy_tool.read(argument if isinstance(argument, str) else buy_tool.text_argument(argument))
            else:
                assert parsed.text is not None
    assert kinds == {CallRequest, Answer}


@pytest.mark.parametrize("protocol", ["tags", "function_calling"])
def test_a_thought_that_the_template_has_opened_is_closed(tmp_path, protocol):
    env = ToolEnv(
        {"task": "arithmetic", "protocol": protocol, "model_name_or_path": calling_folder(tmp_path, THINKING)}
    )
    prompt = env.reset(options={"question": 0})[0]["0"]
    turns = [env.protocol.parse(env.chat.turn_text(prompt, event.token_ids)) for event in turns_of(env, 20)]
    assert {type(turn) for turn in turns} <= {CallRequest, Answer}


def test_log_probs_and_entropies_are_those_of_the_choice_among_turns(model):
    """Every turn is as likely as it is often; all information of a turn is in the choice, so both sums agree."""
    env = ToolEnv({"task": "arithmetic", "model_name_or_path": model, "seed": 2})
    sampled = turns_of(env, 400)
    found = {tuple(event.token_ids.tolist()): event for event in sampled}
    shares = {turn: np.exp(event.log_probs.sum()) for turn, event in found.items()}
    assert len(shares) > 1 and sum(shares.values()) == pytest.approx(1, abs=1e-5)
    for turn, share in shares.items():
        drawn = sum(tuple(event.token_ids.tolist()) == turn for event in sampled) / 400
        assert drawn == pytest.approx(share, abs=0.1)
    entropy = sum(share * found[turn].entropies.sum() for turn, share in shares.items())
    assert entropy == pytest.approx(-sum(share * np.log(share) for share in shares.values()), rel=1e-4)
    (greedy,) = turns_of(env, 1, temperature=0.0)
    assert shares[tuple(greedy.token_ids.tolist())] == max(shares.values())


def test_a_world_of_known_actions_reads_only_those(model):
    world = {"gymnasium": {"id": "FrozenLake-v1", "read": ["left", "down", "right", "up"], "show": str}}
    env = ToolEnv({"world": world, "model_name_or_path": model})
    engine = ScriptedEngine(EngineConfig("none"))
    engine.play(env)
    prompt = env.chat.encode("Where to?").tolist()
    for seed in range(20):
        engine.submit(GenerationRequest(str(seed), prompt, 50, seed=seed))
    turns = [env.tokenizer.decode(event.token_ids, skip_special_tokens=True) for event in run(engine).values()]
    said = {env.protocol.said(turn) for turn in turns}
    assert said <= {"left", "down", "right", "up"} and len(said) > 1
    assert isinstance(env.protocol.parse("left"), Nothing)


def test_a_script_of_the_user_has_the_last_word(model):
    env = ToolEnv({"task": "arithmetic", "model_name_or_path": model})
    engine = ScriptedEngine(EngineConfig("none", engine_kwargs={"replies": [[5, 6]]}))
    engine.play(env)
    engine.submit(GenerationRequest("a", [1], 5))
    assert run(engine)["a"].token_ids.tolist() == [5, 6]
