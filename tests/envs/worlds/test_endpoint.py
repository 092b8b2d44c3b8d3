"""The endpoint: agents of the OpenAI SDK as worlds, what continues a conversation, forks, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import re

import httpx2
import pytest

from rllib_arpo.core.figures import new_contexts
from rllib_arpo.core.tree import StopReason, context_after, depth_first_layout, known_beginnings
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import Opening, WholeTurn
from rllib_arpo.envs.worlds.completions import read_request
from rllib_arpo.envs.worlds.world import BEGINS
from tests.helpers.api_agents import ADD, adder, client_of, said, threaded, trunk_of, user
from tests.helpers.chat_templates import calling_folder
from tests.helpers.trees import endings
from tests.helpers.worlds import QUESTION


async def wanders(endpoint, row):
    """Begins conversations, and comes back to earlier ones."""
    async with client_of(endpoint) as http:
        main = [user("Plan."), await said(http, user("Plan."))]
        await said(http, {"role": "system", "content": "You help."}, user("How?"))
        main += [user("On."), await said(http, *main, user("On."))]
        await said(http, *main[:2], user("Otherwise."))
        nothing = await http.post("chat/completions", json={"messages": main[:2]})
        assert nothing.json()["error"]["message"] == "This request adds no message to the conversation."
        await said(http, user("Plan."))
        await said(http, *main, user("With a tool."), tools=[ADD])
        await said(http, {**main[1], "content": "Changed."}, user("So?"))
    return 1.0


async def test_a_request_goes_on_with_the_conversation_that_it_repeats_or_begins_another():
    play = trunk_of(wanders)
    await play.ready()
    found = [await play.act(WholeTurn(f"{i}.")) for i in range(7)]
    refused = play.maker.sample.take_refused()
    await play.close()
    said = [(reply.follows, [message["content"] for message in reply.messages]) for reply in found]
    assert said == [
        (BEGINS, ["You help.", "How?"]),
        (0, ["On."]),
        (0, ["Otherwise."]),
        (BEGINS, ["Plan."]),
        (BEGINS, ["Plan.", "0.", "On.", "2.", "With a tool."]),
        (BEGINS, ["Changed.", "So?"]),
        (None, []),
    ]
    assert [reply.functions for reply in found[3:6]] == [(), (ADD,), ()]
    assert (found[-1].done, refused) == (True, 1)


async def parallel(endpoint, row):
    """Asks two helpers at once, and the second one twice because it waits too long."""
    async with client_of(endpoint) as http:
        begun = asyncio.create_task(said(http, user("One.")))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(said(http, user("Two.")), 0.05)
        again = said(http, user("Two."), headers={"x-stainless-retry-count": "1"})
        answers = await asyncio.gather(begun, again)
        after = await said(http, user("Two."), headers={"x-stainless-retry-count": "1"})
    return float("".join(answer["content"] for answer in (*answers, after)))


async def test_requests_at_once_take_turns_and_a_repeated_one_gets_the_same_answer():
    play = trunk_of(parallel)
    await play.ready()
    await asyncio.sleep(0.1)
    second, last = [await play.act(WholeTurn(word)) for word in "12"]
    score = await play.score(FinishedPath(QUESTION, (), True))
    refused = play.maker.sample.take_refused()
    await play.close()
    assert (play.opening, second.messages) == (Opening((user("One."),)), (user("Two."),))
    assert (last.done, score.reward, refused) == (True, 122.0, 0)


async def test_an_agent_whose_trajectory_has_ended_is_told_and_the_server_ends_with_the_last_one():
    async def told(play, path: str, **more) -> tuple[int, str]:
        answer = await http.post(f"{base_urls[play]}/{path}", **more)
        return answer.status_code, answer.json()["error"]["message"]

    one, other = trunk_of(threaded), trunk_of(adder)
    async with httpx2.AsyncClient() as http:
        base_urls = {play: (await play.ready())._endpoint.base_url.rstrip("/") for play in (one, other)}
        models = (await http.get(f"{base_urls[one]}/models")).json()["data"]
        await one.close()
        gone = [await told(one, path, json={"messages": []}) for path in ("chat/completions", "responses")]
        wrong = [await told(other, path, content="{") for path in ("chat/completions", "responses", "v1/messages")]
        assert other.maker.sample.take_refused() == 3
        await other.close()
    async with httpx2.AsyncClient() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"{base_urls[one]}/models")
    assert [model["id"] for model in models] == ["policy"]
    assert gone == [(404, "This trajectory has ended.")] * 2
    where = "The endpoint answers POST /v1/chat/completions and GET /v1/models, not POST /v1/"
    assert wrong == [
        (400, "A request must be a JSON object with a list of messages."),
        *((404, f"{where}{path}.") for path in ("responses", "v1/messages")),
    ]


def test_messages_as_templates_take_them():
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    body = {
        "messages": [
            {"role": "developer", "content": "Add."},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
        ],
        "temperature": 0.2,
    }
    request = read_request(body)
    assert request.messages == (
        {"role": "system", "content": "Add."},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": {"n": 1}}}]},
        {"role": "tool", "content": "1", "name": "add", "tool_call_id": "a"},
    )  # fmt: skip
    assert request.functions == ()


def test_a_changed_message_is_a_refused_fork(sample):
    runs = iter(range(10))

    async def changing(endpoint, row):
        return await adder(endpoint, row, changed="another" if next(runs) == 1 else None)

    (question,), _ = sample(changing, [1])
    assert (question.forks_refused, len(question.tree.forks()), len(question.tree.initial())) == (1, 0, 1)
    assert endings(question.tree) == (StopReason.WORLD_ENDED,) * 2
    (error,) = question.errors
    assert error.text == (
        "The world 'changing' cannot be repeated: turn 1, add {'n': 1}, got \"{'role': 'tool', 'content': 'another', "
        "'name': 'add', 'tool_call_id': 'call_1'}\" in place of \"{'role': 'tool', 'content': '3', "
        "'name': 'add', 'tool_call_id': 'call_1'}\""
    )


BEGIN = {"role": "system", "content": "You add."}
RIGHT, DONE = ({"role": "assistant", "content": word} for word in ("Right.", "Done."))


def call_of(n):
    call = {"type": "function", "function": {"name": "add", "arguments": {"n": n}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def result(text):
    return {"role": "tool", "content": text}


def rendered(tokenizer, *talk, tools=None):
    """The twin: the template's text of a whole conversation, up to the end of its last message."""
    return tokenizer.apply_chat_template(list(talk), tools=tools, tokenize=False).removesuffix("<|im_end|>\n")


def texts(tokenizer, tree, trajectory):
    """What each turn has read and written, decoded."""
    path = tree.path(trajectory.agent_id)
    return [
        tokenizer.decode([*context_after(tree.prompt, path[:i]), *turn.token_ids]).removesuffix("<|im_end|>")
        for i, turn in enumerate(path)
    ]


@pytest.fixture
def trained(sample):
    """trained(agent, options) -> (the question, its only tree, root and fork, tokenizer); it ends itself."""

    def run(agent=adder, **options):
        (question,), tokenizer = sample(agent, [1], **options)
        tree = question.tree
        root, fork = tree.trajectories
        assert (len(tree.forks()), question.requests_refused) == (1, 0)
        assert endings(tree) == (StopReason.WORLD_ENDED,) * 2
        assert (
            texts(tokenizer, tree, fork)[: fork.num_inherited_turns]
            == (texts(tokenizer, tree, root)[: fork.num_inherited_turns])
        )
        return question, tree, (root, fork), tokenizer

    return run


@pytest.mark.parametrize(
    ("agent", "options"), [(adder, {}), (adder, {"base_url": True, "stream": True}), (threaded, {})]
)
def test_what_an_agent_adds_is_framed_by_the_template_and_turns_stay_as_sampled(trained, agent, options):
    _, tree, (root, fork), tokenizer = trained(agent, **options)
    talk = [BEGIN, user("Begin at 2."), call_of(1), result("3"), call_of(2), result("5"), DONE]
    assert texts(tokenizer, tree, root) == [rendered(tokenizer, *talk[:n], tools=[ADD]) for n in (3, 5, 7)]
    assert (tree.returns().tolist(), new_contexts(tree)) == ([0.5, 0.6], 0)
    assert (fork.num_inherited_turns, len(fork.turns)) == (1, 2)


def test_a_shortened_history_begins_another_conversation_with_the_run_s_reward(trained):
    _, tree, (root, fork), tokenizer = trained(compacts_at=4)
    first = [BEGIN, user("Begin at 2."), call_of(1)]
    second = [BEGIN, user("So far: 3."), call_of(1), result("4"), call_of(2), result("6"), DONE]
    assert texts(tokenizer, tree, root) == [
        rendered(tokenizer, *talk, tools=[ADD]) for talk in (first, second[:3], second[:5], second)
    ]
    assert ([turn.new_context for turn in root.turns], new_contexts(tree)) == ([True, False, False, False], 1)
    common = len(tokenizer.encode(rendered(tokenizer, *first[:2], tools=[ADD]).partition("Begin")[0]))
    assert known_beginnings(tree, depth_first_layout(tree))[0].num_tokens == common
    added = re.findall(r'"n": (\d+)', "".join(tokenizer.decode(turn.token_ids) for turn in fork.turns))
    assert tree.returns().tolist() == [0.6, (4 + sum(map(int, added))) / 10]


def test_a_helper_s_conversation_is_one_of_its_own_and_the_first_goes_on_after_it(trained):
    _, tree, (root, fork), tokenizer = trained(helped=True)
    talk = [BEGIN, user("Begin at 2."), call_of(1), result("3 (Right.)"), call_of(2), result("5 (Right.)"), DONE]
    helper = {"role": "system", "content": "You check."}
    assert texts(tokenizer, tree, root) == [
        rendered(tokenizer, *talk[:3], tools=[ADD]),
        rendered(tokenizer, helper, user("Is it 3?"), RIGHT),
        rendered(tokenizer, *talk[:5], tools=[ADD]),
        rendered(tokenizer, helper, user("Is it 5?"), RIGHT),
        rendered(tokenizer, *talk, tools=[ADD]),
    ]
    assert ([turn.new_context for turn in root.turns], new_contexts(tree)) == ([True, True, True, True, False], 6)
    begun = [known.node for known in known_beginnings(tree, depth_first_layout(tree))[: len(root.turns) - 1]]
    # The helper's first conversation begins like the adder's, its second like its first; the adder's goes on twice.
    assert (begun, fork.num_inherited_turns) == ([0, 0, 1, 2], 2)


async def hopeless(endpoint, row):
    """Asks twice for two answers; question 0 begins with that, and fails; others wait for the deadline then."""
    async with client_of(endpoint) as http:
        if row["seed"] != 0:
            await said(http, user("Hi."))
        for _ in range(2):
            refused = await http.post("chat/completions", json={"messages": [user("Hi.")], "n": 2})
        if row["seed"] == 0:
            refused.raise_for_status()
        await asyncio.sleep(60)


def test_refused_requests_are_counted_however_their_question_or_trajectory_ends(sample):
    (failed, question), _ = sample(hopeless, [0, 1], deadline_s=1.0)
    assert failed.failure.message.startswith("BrokenToolError: The program 'hopeless' failed after a refused request")
    assert (endings(question.tree), question.requests_refused) == ((StopReason.DEADLINE,), 4)


SYSTEM = {"role": "system", "content": "Be brief."}


async def brief(endpoint, row, times=1, alone=False):
    """Sends messages that the template does not take, and then what it was told; with `alone` as its first request."""
    async with client_of(endpoint) as http:
        talk = [] if alone else [user("You check."), await said(http, user("You check."))]
        for _ in range(times):
            refused = await http.post("chat/completions", json={"messages": [*talk, user("Hi."), SYSTEM]})
        await said(http, *talk, user(f"{refused.status_code}: {refused.json()['error']['message']}"))
    return 1.0


def test_messages_that_the_template_does_not_take_are_a_refused_request_also_in_a_fork(sample):
    (question,), tokenizer = sample(brief, [1])
    root, fork = question.tree.trajectories
    told = "The chat template cannot render these messages: The system message comes first."
    assert tokenizer.decode(root.turns[0].observation) == (
        f"\n<|im_start|>user\n400: {told}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (question.requests_refused, question.tree.returns().tolist()) == (2, [1.0, 1.0])
    assert (fork.parent, fork.num_inherited_turns, len(fork.turns)) == ("0", 1, 1)
    (limited, _), _ = sample(brief, [1, 2], times=100)
    assert endings(limited.tree) == (StopReason.TOOL_CALL_LIMIT,) * 2
    (failed,), _ = sample(brief, [1], alone=True)
    assert failed.failure.message == f"UnreadableError: {told}"


UNSHOWN = (
    "The model would not read its tools: the chat template of {} has no support for tools that are called with"
    " <tool_call> (its prompt lacks <tool_call>); choose a model with such a template (Qwen2.5, Qwen3)."
)


def without_tools(folder) -> dict:
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return {"model_name_or_path": calling_folder(folder, template), "protocol": "function_calling"}


def test_an_agent_s_tools_need_a_template_that_shows_them(tmp_path):
    options = without_tools(tmp_path)
    with pytest.raises(ValueError, match="would not read") as refused:
        ToolEnv.validate_config({"world": adder, **options})
    assert str(refused.value) == f"env_config['world']: {UNSHOWN.format(tmp_path)}"
    ToolEnv.validate_config({"world": wanders, **options})


def test_a_task_s_own_tools_are_not_made_beside_an_agent_of_an_api(make_tool_env, tmp_path):
    asked = {"task": "arithmetic", "model_name_or_path": calling_folder(tmp_path)}
    assert make_tool_env(world=adder, protocol="function_calling", **asked).tool_names == ("text",)
