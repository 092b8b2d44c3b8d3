"""Chat templates x protocols: what a sampler reads and writes turn by turn is what the template writes of the whole.

Many templates open a thought, or write none of earlier turns. So they are compared with the template that does not know
the thoughts (they have another name while it renders), and without empty thoughts.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from rllib_arpo.cold_start.examples import IGNORED, tokenize_transcript
from rllib_arpo.cold_start.transcripts import Transcript
from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import CallRequest, Protocol
from rllib_arpo.envs.question import Question, Shot
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import World
from tests.envs.test_function_calling import LookUpTool
from tests.helpers.chat_templates import FAMILIES, Family

HIDDEN = "\ue005>"
OPEN = "<think>\n"
THOUGHT = f"{OPEN}hm\n</think>\n"
BOXED = "The final answer is \\boxed{12}."
ARGUMENTS = {"thing": "lamp"}


class Talks(World):
    takes_text = True

    async def act(self, action):
        raise NotImplementedError


SHOT = Shot("Old lamp?", "7", "look_up", "old lamp", "7", thought="I know.")
ASKED = {"role": "user", "content": "Lamp?"}
QUESTION = Question("q", (("user", "Lamp?"),), ("12",), "qa", "row 0")


def played(family: Family, chat: Chat, protocol: Protocol, talks: bool) -> tuple[list, list, list[dict]]:
    """A trajectory of two turns: its pieces of tokens, which of them the model wrote, and its messages.

    It ends with the token that ends the last turn.
    """
    messages = [{"role": "system", "content": protocol.instruction()}, ASKED]
    pieces = [protocol.prompt(chat, QUESTION)]

    def says(text: str, end: str = "", begins: bool = True) -> np.ndarray:
        own = text.removeprefix(family.opens) if begins and family.opens == OPEN else text
        tokens = chat.encode(family.lead * begins + own + end)
        read = chat.turn_text(pieces[-1], tokens)
        assert read.replace("<think>hm", "<think>\nhm").strip() == text.strip()
        pieces.append(tokens)
        return tokens

    request, end = CallRequest("look_up", ARGUMENTS), family.end or family.special[-1]
    if talks:
        turn = says(THOUGHT + "Warm?", family.between or end)
        pieces.append(protocol.reply(chat, "No.", turn))
        says(THOUGHT + "Cold.", end)
        roles = [("assistant", THOUGHT + "Warm?"), ("user", "No."), ("assistant", THOUGHT + "Cold.")]
        messages += [{"role": role, "content": content} for role, content in roles]
    elif protocol.functions:
        text = protocol.turn(chat, THOUGHT + "I look.", *("look_up", ARGUMENTS))
        assert protocol.parse(text) == request
        pieces.append(protocol.response(chat, request, "12", says(text, end)))
        says(THOUGHT + BOXED, end)
        call = {"id": "", "type": "function", "function": {"name": "look_up", "arguments": ARGUMENTS}}
        messages += [
            {"role": "assistant", "content": THOUGHT + "I look.", "tool_calls": [call]},
            {"role": "tool", "name": "look_up", "content": "12", "tool_call_id": ""},
            {"role": "assistant", "content": THOUGHT + BOXED},
        ]
    else:
        text = THOUGHT + "<look_up> lamp </look_up>"
        assert protocol.parse(text) == CallRequest("look_up", "lamp")
        pieces.append(protocol.response(chat, request, "12", says(text)))
        says("<answer> \\boxed{12} </answer>", end, begins=False)
        whole = f"{text}\n<result> 12 </result>\n<answer> \\boxed{{12}} </answer>"
        messages.append({"role": "assistant", "content": whole})
    return pieces, pieces[1::2], messages


def rendered(family: Family, chat: Chat, messages: list[dict], functions: list) -> str:
    """What the template writes of the conversation, up to the model's turn if the last message is the user's."""
    if not family.system:
        first = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        messages = [first, *messages[2:]]
    hidden = [{**m, "content": m["content"].replace("think>", HIDDEN)} for m in messages]
    asks = {"tools": functions or None, "add_generation_prompt": messages[-1]["role"] == "user"}
    text = chat.tokenizer.apply_chat_template(hidden, tokenize=False, **asks, **family.kwargs)
    return text.replace(HIDDEN, "think>")


def without_empty(text: str) -> str:
    return re.sub(r"<think>\s*</think>\s*", "", text)


@pytest.mark.parametrize("talks", [False, True], ids=["calls", "talks"])
@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sampler_reads_and_writes_what_the_template_does(tmp_path, family, name, talks):
    family = FAMILIES[family]
    tokenizer = family.tokenizer()
    chat = Chat(tokenizer, family.kwargs)
    refused = refusal(family, name, talks)
    if refused is not None:
        tokenizer.save_pretrained(tmp_path)
        config = {"model_name_or_path": str(tmp_path), "protocol": name, "chat_template_kwargs": family.kwargs}
        config |= {"world": Talks} if talks else {"task": "arithmetic", "tools": [LookUpTool]}
        with pytest.raises(ValueError, match=f"^[^\n]*{re.escape(refused)}[^\n]*$"):
            ToolEnv.validate_config(config)
        return
    protocol = PROTOCOLS[name]({} if talks else {"look_up": LookUpTool()}, chat)
    functions = [*protocol.functions]
    messages = [{"role": "system", "content": protocol.instruction()}, *protocol.example(SHOT), ASKED]
    prompt = tokenizer.decode(protocol.prompt(chat, replace(QUESTION, shots=(SHOT,))))
    assert prompt == rendered(family, chat, messages, functions)

    pieces, turns, messages = played(family, chat, protocol, talks)
    tokens = np.concatenate(pieces)
    sampled = tokenizer.decode(tokens)
    if talks or not protocol.results_within_turn:  # Behind a turn's last token a result has tokens of its own.
        assert tokens.tolist() == tokenizer.encode(sampled, add_special_tokens=False)
    end = family.end or family.special[-1]
    whole = rendered(family, chat, messages, functions)
    final = end if family.final is None else family.final
    assert without_empty(sampled.removesuffix(end)) + final == without_empty(whole).rstrip()

    example = tokenize_transcript(chat, Transcript(messages, functions), name)
    assert tokenizer.decode(example["input_ids"]) == sampled
    shown = len(pieces[0])
    learnt = [label for label in example["labels"][shown:] if label != IGNORED]
    assert tokenizer.decode(learnt) == "".join(map(tokenizer.decode, turns))


def refusal(family: Family, name: str, talks: bool) -> str | None:
    """A part of the sentence with which the combination is refused."""
    if talks and family.replies:
        return family.replies
    calls = not talks or family.calls.startswith("does not end")
    return family.calls if name == "function_calling" and family.calls and calls else None
