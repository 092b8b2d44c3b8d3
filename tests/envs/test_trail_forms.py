"""The forms of the trails: that each asks and finds what it always did, and where it decides."""

import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from rllib_arpo.cold_start import examples as cold_start
from rllib_arpo.envs.tasks.trail_forms import FORMS, LATE, MAIN, PLAIN
from rllib_arpo.envs.tasks.trails import TrailsTask, make_trail, shows_a_choice, trail_names
from tuned_examples.trails_demonstrations import PERFECT, _demonstrated, transcripts
from tuned_examples.trails_models import trails_tokenizer

RIGHT = lambda page, _decision: page.right  # noqa: E731

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
}


@pytest.mark.parametrize("form", ASKED)
def test_the_questions_and_pages_of_a_form_stay_as_they_are(form):
    digest = hashlib.sha256()
    for split in ("test", "train"):
        task = TrailsTask(split=split, form=form)
        for number in range(task.num_questions):
            q = task.question(number)
            digest.update(repr((q.question_id, q.messages, q.answers, q.source)).encode())
        digest.update(json.dumps(task.tool_defaults()["search"]["documents"]).encode())
    question = TrailsTask(split="test", form=form).question(1)
    assert (question.messages[1][1], *question.answers, digest.hexdigest()) == ASKED[form]


def test_a_form_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"Unknown form of trails 'lat': did you mean 'late'\?"):
        TrailsTask(form="lat")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "names_per_trail", "num_demonstrated"), [(MAIN, 24, 6037), (LATE, 28, 4992), (PLAIN, 24, 6037)]
)
def test_splits_and_demonstrations_share_no_name(form, names_per_trail, num_demonstrated):
    assert (form.names_per_trail, form.num_demonstrated) == (names_per_trail, num_demonstrated)
    num_trails = 256 + 1024 + num_demonstrated
    names = Counter(name for number in range(num_trails) for name in trail_names(number, form))
    assert len(names) == names_per_trail * num_trails
    shown = {number: _demonstrated(number, form) for number in (0, 1, num_demonstrated - 1, num_demonstrated)}
    assert shown == {0: 1280, 1: 1281, num_demonstrated - 1: num_trails - 1, num_demonstrated: 1280}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_way_has_the_forms_length_and_its_decisions_and_ends_with_a_number_of_its_own(form):
    num_names = set()
    for number in range(0, 400, 7):
        trail = make_trail(number, form)
        choices = [*np.ndindex(*[form.num_hits] * form.num_decisions)]
        ways = [list(trail.walk(lambda _page, d, way=way: way[d])) for way in choices]
        assert {len(way) for way in ways} == {form.num_pages}
        assert len({way[-1][1].number for way in ways}) == form.num_hits**form.num_decisions
        opening = (-1,) if trail.opening.is_decisive else ()
        places = {opening + tuple(i for i, (_, page) in enumerate(way) if page.is_decisive) for way in ways}
        assert len(places) == 1 and places.pop() in form.patterns
        num_names.add(len(trail.pages))
        right = [page.hits[page.right][0] for _, page in [("", trail.opening), *trail.walk(RIGHT)] if page.is_decisive]
        assert tuple(right) == trail.colours
    assert max(num_names) == form.names_per_trail


def test_no_page_of_the_plain_form_shows_a_choice():
    documents = {form: TrailsTask(form=form).tool_defaults()["search"]["documents"] for form in FORMS}
    shares = {form: np.mean([shows_a_choice(page["text"]) for page in pages]) for form, pages in documents.items()}
    assert shares["plain"] == 0.0
    assert shares["late"] > 0.2 and shares["main"] > 0.1


@pytest.mark.parametrize(("form", "longest"), [(MAIN, 130), (LATE, 193), (PLAIN, 111)])
def test_the_limits_leave_room_for_twice_the_right_solution(form, longest):
    tokenizer = trails_tokenizer()
    rows = [row["messages"] for row in transcripts(20, form=form, demonstrator=PERFECT)]
    all_tokens = [len(cold_start.tokenize_transcript(tokenizer, messages)["input_ids"]) for messages in rows]
    prompts = [len(tokenizer.apply_chat_template(m[:-1], add_generation_prompt=True)["input_ids"]) for m in rows]
    assert max(np.subtract(all_tokens, prompts)) == longest
    assert form.max_response_tokens > 2 * longest
    assert form.max_context_tokens >= form.max_response_tokens + max(prompts)
    assert form.max_tool_calls == form.num_pages + 1
