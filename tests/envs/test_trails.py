"""Trails: their forms, questions and pages, what policies that ignore the question earn, and the demonstrators."""

import asyncio
import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from rllib_arpo.cold_start.examples import tokenize_transcript
from rllib_arpo.cold_start.transcripts import Transcript, split_transcript
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.tasks import trails
from rllib_arpo.envs.tasks.trail_forms import ANY, FORMS, LATE, MAIN, PLAIN
from rllib_arpo.envs.tasks.trails import TrailsTask, make_trail, shows_a_choice, trail_names
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.tools import SearchTool
from tuned_examples.trails_demonstrations import PERFECT, ROWS, Demonstrator, _demonstrated, imperfect, transcripts
from tuned_examples.trails_models import trails_tokenizer


@pytest.mark.parametrize("split", ["train", "test"])
def test_search_finds_every_page_by_its_name_and_by_its_hit(split):
    task = TrailsTask(split=split)
    search = SearchTool(**task.tool_defaults()["search"])._source._opened.search
    for number in range(0, task.num_questions, 97):
        trail = make_trail(trails._rows(split)[number])
        for name, page in trail.pages.items():
            assert [text for _, text in search(name, 1)] == [f"{name}: {page.text}"]
            assert shows_a_choice(page.text) == page.is_decisive
            for label, hit in page.hits:
                assert search(f"{label} {hit}", 1)[0][1].startswith(f"{hit}: ")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("demonstrate", [lambda _form: PERFECT, imperfect], ids=["perfect", "imperfect"])
def test_a_transcript_is_what_the_environment_shows_token_for_token(demonstrate, form, monkeypatch, tokenizer_folder):
    # The environment is asked the questions of the demonstrations.
    monkeypatch.setattr(trails, "_rows", lambda _split: range(1280, 1290))
    trails._documents.cache_clear()
    config = {"task": "trails", "form": form.name, "split": "test", "max_tool_calls": form.num_pages}
    env = ToolEnv({"model_name_or_path": tokenizer_folder, **config})
    trails._documents.cache_clear()
    for number, row in enumerate(transcripts(10, form=form, demonstrator=demonstrate(form))):
        shown, accuracy = _replay(env, number, row["messages"][-1]["content"])
        example = tokenize_transcript(env.chat, Transcript(row["messages"]))
        assert example["input_ids"][:-1] == shown
        assert demonstrate is imperfect or accuracy == 1.0


def _replay(env: ToolEnv, number: int, solution: str) -> tuple[list[int], float]:
    """Plays the model's part of a transcript; returns all tokens from the prompt on, and the accuracy."""
    observations, _ = env.reset(options={"question": number})
    tokens = observations["0"].tolist()
    segments = split_transcript(env.chat, Transcript(_as_messages(solution)))
    for turn in [segment.text for segment in segments][1:-1:2]:
        ids = env.tokenizer.encode(turn, add_special_tokens=False)
        observation, _, _, _, info = asyncio.run(env.step_agent("0", np.asarray(ids, np.int32)))
        tokens += [*ids, *observation.tolist()]
    return tokens, next(iter(info.values())).accuracy


def _as_messages(solution: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": ""}, {"role": "assistant", "content": solution}]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_three_or_four_in_ten_of_the_imperfect_trails_end_right(form):
    rng, demonstrator = np.random.default_rng(0), imperfect(form)
    trails_walked = [make_trail(number, form) for number in range(4000)]
    ends = [list(t.walk(lambda page, _decision: demonstrator.choose(page, rng)))[-1][1] for t in trails_walked]
    right = [end.number == t.answer for end, t in zip(ends, trails_walked, strict=True)]
    assert 0.25 < np.mean(right) < 0.45


def test_probabilities_above_one_are_refused():
    with pytest.raises(ValueError, match=r"right = 0.7 and first = 0.5 must be probabilities with a sum up to 1"):
        Demonstrator(right=0.7, first=0.5)


def test_an_exercise_tells_the_same_pairs_in_another_order():
    row = next(ROWS["exercises"](1, 3, MAIN))
    user, assistant = (message["content"].split(", ") for message in row["messages"])
    assert sorted(user) == sorted(assistant) and len(user) == 3


#: Form -> question number 1 of the test split, its answer, and the digest of all questions and pages.
ASKED = {
    "main": (
        "Follow silver and red from Fudipi.",
        "27",
        "b18c4b234fdeb8188b6dbc01b0527401106b16f491ca29ac3edb4df59583112a",
    ),
    "late": (
        "Follow silver, gold and blue from Subilo.",
        "15",
        "5eb21d383d8025c1f0f107d01dc28fb2ed176961e7e24c8c041107b8320ba832",
    ),
    "plain": (
        "Follow silver from black Fudipi, red Lupuro, gold Vukaba, silver Natosu.",
        "55",
        "8fa1f2435eff778c16b02bc3c944e3a61ca92296df37fa91101a89543c8825ff",
    ),
    "any": (
        "Follow silver from Natosu.",
        "54",
        "870af0d55fc5d58da22c89920bd56d035f4ad5c9699353e4924b87b1990940e4",
    ),
}


@pytest.mark.parametrize("form", ASKED)
def test_the_questions_and_pages_of_a_form_stay_as_they_are(form):
    digest = hashlib.sha256()
    for split in ("test", "train"):
        task = TrailsTask(split=split, form=form)
        for number in range(task.num_questions):
            q = task.question(number)
            digest.update(repr((q.question_id, q.messages, q.answers, q.source)).encode())
        pages = task.tool_defaults()["search"]["documents"]
        digest.update(json.dumps(pages).encode())
    question = TrailsTask(split="test", form=form).question(1)
    assert (question.messages[1][1], *question.answers, digest.hexdigest()) == ASKED[form]
    # No page of the plain form shows a choice.
    share = np.mean([shows_a_choice(page["text"]) for page in pages])
    assert share == 0.0 if form == "plain" else share > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "names_per_trail", "num_demonstrated"),
    [(MAIN, 24, 6037), (LATE, 28, 4992), (PLAIN, 24, 6037), (ANY, 27, 5224)],
)
def test_splits_and_demonstrations_share_no_name(form, names_per_trail, num_demonstrated):
    assert (form.names_per_trail, form.num_demonstrated) == (names_per_trail, num_demonstrated)
    num_trails = 256 + 1024 + num_demonstrated
    names = Counter(name for number in range(num_trails) for name in trail_names(number, form))
    assert len(names) == names_per_trail * num_trails
    shown = {number: _demonstrated(number, form) for number in (0, 1, num_demonstrated - 1, num_demonstrated)}
    assert shown == {0: 1280, 1: 1281, num_demonstrated - 1: num_trails - 1, num_demonstrated: 1280}


@pytest.mark.parametrize(("form", "longest"), [(MAIN, 130), (LATE, 193), (PLAIN, 111), (ANY, 154)])
def test_the_limits_leave_room_for_twice_the_right_solution(form, longest):
    tokenizer = trails_tokenizer()
    rows = [row["messages"] for row in transcripts(20, form=form, demonstrator=PERFECT)]
    all_tokens = [len(tokenize_transcript(Chat(tokenizer), Transcript(messages))["input_ids"]) for messages in rows]
    prompts = [len(tokenizer.apply_chat_template(m[:-1], add_generation_prompt=True)["input_ids"]) for m in rows]
    assert max(np.subtract(all_tokens, prompts)) == longest
    assert form.max_response_tokens > 2 * longest
    assert form.max_context_tokens >= form.max_response_tokens + max(prompts)
    assert form.max_tool_calls == form.num_pages + 1
