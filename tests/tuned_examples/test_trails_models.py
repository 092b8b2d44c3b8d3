"""Models of the trails task: a tokenizer of whole syllables, a head that looks back, a model that is made once."""

from dataclasses import replace

import pytest

from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.tasks import trails
from tuned_examples import frozen_lake, small_models, trails_demonstrations, trails_models
from tuned_examples.small_models import ColdStart, SmallModel
from tuned_examples.trails_models import MODEL, cold_started_smollm2, small_model, trails_tokenizer

TINY = SmallModel(
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    num_backward_heads=1,
    stages=(
        ColdStart("exercises", count=4, epochs=1, batch_size=4, lr=1e-3),
        ColdStart("imperfect", count=4, epochs=1, batch_size=2, lr=1e-3),
    ),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return small_model(TINY, tmp_path_factory.mktemp("cache"))


def test_tags_words_digits_and_syllables_are_a_token_each():
    tokenizer = trails_tokenizer()
    text = "<search> gold Momupo </search>\n<result> Momupo: number 97 </result>\n"
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode(text, add_special_tokens=False)]
    assert tokens == [
        "<search>", " gold", " Mo", "mu", "po", "</search>", "<result>", " Mo", "mu", "po", ":", " number", " ", "9",
        "7", "</result>", "\n",
    ]  # fmt: skip


def test_the_small_model_loads(tiny, monkeypatch):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny)
    assert model.config.vocab_size == len(trails_tokenizer())
    assert tiny.endswith(name_of(TINY, monkeypatch))


def rendered_otherwise(protocol, result):
    return f"\n<result>{result}</result>\n"


def shown_otherwise(title, text):
    return f"{title} - {text}"


#: What the model reads: (module or class, attribute) -> another value.
READ = [
    ((small_models, "TAGS"), small_models.TAGS[:4]),
    ((small_models, "CHAT_TEMPLATE"), small_models.CHAT_TEMPLATE.replace("}}<|end|>", "}} <|end|>")),
    ((TagProtocol, "render"), rendered_otherwise),
    ((trails_demonstrations, "show"), shown_otherwise),
    ((trails, "SYSTEM"), "Search."),
    ((small_models, "VERSION"), small_models.VERSION + 1),
]


def name_of(model: SmallModel, monkeypatch) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(small_models, "cached_folder", lambda name, _make, _cache: name)
        return small_model(model)


@pytest.mark.slow
@pytest.mark.parametrize("change", READ, ids=lambda change: change[0][1])
def test_a_model_that_would_read_something_else_has_another_name(change, monkeypatch):
    usual = name_of(TINY, monkeypatch)
    (place, name), value = change
    monkeypatch.setattr(place, name, value)
    assert name_of(TINY, monkeypatch) != usual


def test_the_name_follows_the_settings_and_not_the_wording_of_the_code(monkeypatch):
    usual = name_of(TINY, monkeypatch)
    slower = replace(TINY, stages=(TINY.stages[0], replace(TINY.stages[1], lr=1e-4)))
    assert len({usual, name_of(slower, monkeypatch), name_of(replace(TINY, rope_theta=1e4), monkeypatch)}) == 3
    show = trails_demonstrations.show
    monkeypatch.setattr(trails_demonstrations, "show", lambda title, text: show(title, text))
    assert name_of(TINY, monkeypatch) == usual
    monkeypatch.setattr(small_models, "cached_folder", lambda name, _make, _cache: name)
    lake = replace(TINY, stages=(ColdStart("half_good", count=4, epochs=1, batch_size=2, lr=1e-3),))
    usual = frozen_lake.lake_model(lake)
    monkeypatch.setattr(frozen_lake, "show", lambda env: f"{env.s}")
    assert frozen_lake.lake_model(lake) != usual


def test_another_seed_makes_another_model(monkeypatch, tmp_path):
    monkeypatch.setattr(small_models, "cached_folder", lambda name, _make, _cache: name)
    assert small_model(TINY) == small_model(TINY, seed=0) != small_model(TINY, seed=1)
    weights = []
    for recipe in (TINY, TINY.with_seed(0), TINY.with_seed(1)):
        recipe.write_random(tmp_path, trails_tokenizer())
        weights.append((tmp_path / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_the_name_of_the_tuned_smollm2_follows_what_it_reads(model_folder, monkeypatch):
    monkeypatch.setattr(trails_models, "smollm2_135m_instruct", lambda _cache: model_folder)
    monkeypatch.setattr(trails_models, "cached_folder", lambda name, _make, _cache: name)
    usual = cold_started_smollm2()
    assert usual.startswith("trails-llama-") and usual == cold_started_smollm2()
    monkeypatch.setattr(TagProtocol, "render", rendered_otherwise)
    assert cold_started_smollm2() != usual


def test_the_usual_small_model_has_the_stated_size():
    import torch

    with torch.device("meta"):
        assert MODEL.random_model(trails_tokenizer()).num_parameters() == 1_306_560
