"""Scripts of the scripted engine (`engine_kwargs["script"]`) from replies that are written down."""

from collections.abc import Mapping, Sequence

from rllib_arpo.engine.engine import EngineConfig, GenerationRequest
from rllib_arpo.engine.scripted_engine import Script, ScriptedEngine, ScriptedReply
from tests.helpers.scripted_env import ANSWER, TOOL


def scripted_engine(script: Script | None, **engine_kwargs) -> ScriptedEngine:
    return ScriptedEngine(EngineConfig("none", engine_kwargs={"script": script, **engine_kwargs}))


def tool(token: int, entropy: float = 1.0, **more) -> ScriptedReply:
    """A turn of `ScriptedEnv` that calls the tool."""
    return ScriptedReply([token, TOOL], entropies=entropy, **more)


def answer(token: int, entropy: float = 1.0, **more) -> ScriptedReply:
    """A turn of `ScriptedEnv` that ends the trajectory."""
    return ScriptedReply([token, ANSWER], entropies=entropy, **more)


def by_prefix(replies: Mapping[tuple[int, ...], ScriptedReply | Sequence[ScriptedReply]]) -> Script:
    """A prefix has one reply, or several that serve the requests with this prefix in turn."""

    def script(request: GenerationRequest, times_asked: int) -> ScriptedReply:
        found = replies[tuple(request.prompt_token_ids)]
        return found if isinstance(found, ScriptedReply) else found[times_asked]

    return script


def in_turn(replies: Sequence[ScriptedReply]) -> Script:
    """In the order in which requests are submitted."""
    left = iter(replies)
    return lambda _request, _times_asked: next(left)
