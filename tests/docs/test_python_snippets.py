"""The Python, YAML and SQL snippets of README.md and of the documentation run as they are printed.

A page's snippets run one after the other in one namespace, which has the `config` of README.md. Beside a tiny model
under the printed name and small data files, one thing is in the place of another: `tune.run` only validates. A
snippet that begins with "# NAME.py" is written to that file. A line that begins with `config.` is one choice of
several: it changes a copy, which has to be valid.
"""

import argparse
import ast
import asyncio
import importlib
import json
import os
import runpy
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.cold_start.transcripts import read_transcripts, split_transcript
from rllib_arpo.envs import first_question
from rllib_arpo.envs.env_config import read_env_config
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import Answer, CallRequest
from rllib_arpo.envs.protocols.tags import TagProtocol
from rllib_arpo.envs.support.chat_client import ChatClient
from rllib_arpo.envs.tools.registry import find_tool
from rllib_arpo.envs.worlds.openenv import OpenEnvWorld
from tests.core.test_credit import by_node
from tests.docs.pages import PAGES, README, REPOSITORY, Snippet, name_of, snippets
from tests.helpers.calls import call
from tests.helpers.chat_templates import QWEN25
from tests.helpers.models import byte_tokenizer, tiny_model
from tests.helpers.other_python import free_port
from tests.helpers.parquet import parquet, row

#: tests/docs/test_shell_snippets.py reads the snippets of a shell. Text is pictures and folders.
ELSEWHERE = {"sh", "text"}
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
MODELS = (MODEL, "Qwen/Qwen2.5-3B-Instruct")
#: Enough for a part of them that training leaves to evaluation.
GSM8K = [{"question": f"What is 2 + {n}?", "answer": f"2 + {n} = {2 + n}\n#### {2 + n}"} for n in range(40)]
#: Rows in the layouts of verl's GSM8K, of Search-R1, and of LLaMA-Factory's conversations.
VERL = row("What is 1 + 1?", "2") | {"data_source": "openai/gsm8k", "extra_info": {"split": "train", "index": 0}}
SEARCH_R1 = {
    "id": "train_0",
    "question": "Who was first on the moon?",
    "golden_answers": ["Neil Armstrong", "Armstrong"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer the given question. Who was first on the moon?"}],
    "ability": "fact-reasoning",
    "reward_model": {"ground_truth": {"target": ["Neil Armstrong", "Armstrong"]}, "style": "rule"},
}
SHAREGPT = {
    "system": "You are a helpful assistant.",
    "conversations": [
        {"from": "human", "value": "What is 6 * 7?"},
        {"from": "gpt", "value": "<python> print(6 * 7) </python><result> 42 </result><answer> \\boxed{42} </answer>"},
    ],
}
FILES = {snippet.file: snippet.text for page in PAGES for snippet in snippets(page, "python") if snippet.file}


def test_every_snippet_is_of_a_kind_that_is_run():
    kinds = {snippet.language for page in PAGES for snippet in snippets(page)}
    assert kinds - ELSEWHERE == {"python", "yaml", "sql"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Path:
    """A cache of the Hugging Face hub that has tiny models under the names that the documentation prints."""
    cache = tmp_path_factory.mktemp("hub")
    for model in MODELS:
        repository = cache / f"models--{model.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        folder = repository / "snapshots" / ("0" * 40)
        tiny_model(folder, max_position_embeddings=8192)
        if model.startswith("Qwen"):
            (folder / "chat_template.jinja").write_text(QWEN25)
    return cache


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    from rllib_arpo.envs.retrieval.index import build_folder

    folder = tmp_path_factory.mktemp("index")
    (folder / "wiki.jsonl").write_text(json.dumps({"title": "Oslo", "text": "The capital of Norway."}))
    build_folder([folder / "wiki.jsonl"], folder / "wiki.index")
    return folder / "wiki.index"


@pytest.fixture
def desk(tmp_path, monkeypatch, hub, index) -> Path:
    """The current folder, with the files of which the pages speak."""
    import huggingface_hub.constants
    from ray import tune

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("SERPER_API_KEY", "none")
    monkeypatch.setattr(tune, "run", validate)
    # `validate` resets worlds, but nobody serves the pages' OpenEnv environment, nor the seller of the lamp.
    check = first_question._check_world
    monkeypatch.setattr(
        first_question,
        "_check_world",
        lambda env, name: (
            asyncio.sleep(0) if isinstance(env.config.make_world.sample, OpenEnvWorld) else check(env, name)
        ),
    )
    monkeypatch.setattr(ChatClient, "complete", mock.AsyncMock(return_value="It costs 60."))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, GSM8K)))
    (tmp_path / "safes.jsonl").write_text("\n".join(json.dumps({"seed": n}) for n in range(40)))
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "The capital of Norway?", "answer": "Oslo"}))
    (tmp_path / "sharegpt.jsonl").write_text(json.dumps(SHAREGPT))
    parquet(tmp_path / "verl.parquet", [VERL])
    parquet(tmp_path / "search_r1.parquet", [SEARCH_R1])
    shutil.copytree(index, tmp_path / "wiki.index")
    shutil.copy(REPOSITORY / "tests" / "helpers" / "mcp_server.py", tmp_path / "weather.py")
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def validate(algorithm: str | None = None, *, config: ARPOConfig, **_of_tune: Any) -> None:
    """In the place of `tune.run`. Validates as before Ray starts: the machine need not have the printed GPUs."""
    from ray.tune.registry import get_trainable_cls

    if algorithm is not None:
        assert issubclass(get_trainable_cls(algorithm), config.algo_class)
    with mock.patch("rllib_arpo.validation.check_cluster_resources"):
        config.copy(copy_frozen=False).validate()


def run(snippet: Snippet, namespace: dict[str, Any]) -> None:
    """Runs each statement; those that begin with `config.` on a copy of it, which must be valid then."""
    if snippet.file:
        return
    for statement in ast.parse("\n" * (snippet.line - 1) + snippet.text).body:
        code = compile(ast.Module([statement], []), str(snippet.page), "exec")
        if not is_choice(statement):
            exec(code, namespace)
            continue
        before = namespace["config"]
        namespace["config"] = before.copy(copy_frozen=False)
        exec(code, namespace)
        validate(config=namespace["config"])
        namespace["config"] = before
    if isinstance(namespace.get("config"), ARPOConfig):
        validate(config=namespace["config"])


def is_choice(statement: ast.stmt) -> bool:
    node = statement.value if isinstance(statement, ast.Expr) else None
    while isinstance(node, (ast.Call, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id == "config"


def namespace_of(page: Path) -> dict[str, Any]:
    namespace = {"__name__": "snippet"}
    if page != README:
        for snippet in snippets(README, "python"):
            run(snippet, namespace)
    return namespace


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page, "python")], ids=name_of)
def test_python_snippets_run(page, desk, record, ray_cluster):
    namespace = namespace_of(page)
    for snippet in snippets(page, "python"):
        run(snippet, namespace)


def test_the_snippet_of_the_class_is_valid(desk, monkeypatch):
    """The one that the API reference shows."""
    monkeypatch.setattr(ARPOConfig, "build_algo", lambda config: validate(config=config))
    indented = ARPOConfig.__doc__.partition(".. code-block:: python\n")[2].partition("Setters")[0]
    run(Snippet(Path("ARPOConfig"), 1, "python", textwrap.dedent(indented)), {"ARPOConfig": ARPOConfig})


def test_the_agent_in_one_file_is_valid(desk):
    """As `python shop.py` would run it; a function of a script is one of `__main__`."""
    names = runpy.run_path("shop.py", run_name="__main__")
    _, task, tools = read_env_config({"model_name_or_path": MODEL, **names["config"].env_config})
    question = task.question(0, tuple(tools))
    item = question.messages[-1][1].split()[-2]
    assert (list(tools), question.answers) == (["price"], (str(names["PRICES"][item]),))
    # The worked example in the prompt is what the protocol would write.
    example, protocol = question.messages[1][1], TagProtocol((*tools, "search"), tools)
    call, _, answer = example.partition("\n<result> 310 </result>\n")
    assert (protocol.parse(call), protocol.parse(answer)) == (CallRequest("price", "sofa"), Answer("310"))
    assert protocol.render("310") == "\n<result> 310 </result>\n"


def test_a_shop_that_is_down_is_not_the_models_fault(desk, monkeypatch):
    monkeypatch.setenv("SHOP", f"http://127.0.0.1:{free_port()}")
    tool = find_tool("stock:stock")(timeout_s=5)
    with pytest.raises(BrokenToolError, match=r"^The shop cannot be reached: ConnectError"):
        call(tool, "lamp")


def test_a_cold_start_reads_what_the_page_converts(desk):
    (snippet,) = [one for one in snippets(REPOSITORY / "docs" / "data.md", "python") if "transcripts.jsonl" in one.text]
    run(snippet, {})
    (transcript,) = read_transcripts("transcripts.jsonl").values()
    said = [segment.text for segment in split_transcript(Chat(byte_tokenizer()), transcript) if segment.generated]
    assert said == ["<python> print(6 * 7) </python>", "<answer> \\boxed{42} </answer>", "<|im_end|>"]


def test_the_credit_is_tree_rls(desk):
    """By hand: V of the first node is 2.5 with two leaves below; the two turns of "1" are one node."""
    expected = [[1 / 2**0.5] * 2, [3.5], [-2.5], [-4], [-4], [2]]
    # The returns have the ddof = 1 variance 10 / 3.
    for normalize_std, scale in ((False, 1.0), (True, (10 / 3) ** 0.5 + 1e-6)):
        found = by_node("tree_rl:node_values", normalize_std=normalize_std)
        for credits, wanted in zip(found, expected, strict=True):
            assert credits == pytest.approx([a / scale for a in wanted], abs=1e-14)


def is_study(snippet: Snippet) -> bool:
    return snippet.text.startswith("# my_study.yaml")


def test_yaml_snippets_are_configurations_of_environments(desk):
    from rllib_arpo.commands import evaluate
    from rllib_arpo.evaluation.arguments import read_env_configs

    (snippet,) = [snippet for page in PAGES for snippet in snippets(page, "yaml") if not is_study(snippet)]
    Path("tools.yaml").write_text(snippet.text)
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    options = ["--model", MODEL, "--tasks", "gsm8k,webwalker", "--env-config", "tools.yaml"]
    configs = read_env_configs(parser.parse_args(options))
    assert configs.keys() == {"gsm8k", "webwalker"}
    for task, keys in configs.items():
        Path("data.jsonl").write_text(json.dumps(GSM8K[0] | {"source": "wiki"}))
        read_env_config({"task": task, "model_name_or_path": MODEL, **keys, "path": "data.jsonl"})


def test_the_study_of_the_page_has_arms_that_its_recipe_knows(desk, monkeypatch):
    """The recipe that `rllib-arpo new` writes."""
    from release.evidence.study_file import read_study
    from rllib_arpo.commands import new

    new.run(argparse.Namespace(folder="here"), [])
    monkeypatch.chdir("here")
    monkeypatch.syspath_prepend(Path.cwd())
    (snippet,) = [snippet for page in PAGES for snippet in snippets(page, "yaml") if is_study(snippet)]
    Path("my_study.yaml").write_text(snippet.text)
    study, recipe = read_study(Path("my_study.yaml")), importlib.import_module("train")
    for arm in study.arms.values():
        rate = None if arm.fork_rate_of is None else 0.3
        args = recipe.parser.parse_args([*study.all_arguments(arm, rate), "--seed", "0"])
        assert len(study.settings_hash(arm)) == 12
        validate(config=recipe.make_config(recipe.make_model(args), args))


def test_sql_snippets_are_answered_by_a_record(record):
    import duckdb

    (snippet,) = [snippet for page in PAGES for snippet in snippets(page, "sql")]
    assert duckdb.sql(snippet.text).fetchall() == [("search", 1, 0.25, 1)]


@pytest.fixture
def record(desk, model_folder) -> None:
    """The record of an evaluation after 12 updates, in the current folder."""
    from rllib_arpo.record.recorder import TreeRecorder
    from rllib_arpo.rollout.episodes import TreeEpisode
    from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion
    from tests.record.trees import TREE

    config = ARPOConfig().language_model(model_name_or_path=model_folder).debugging(seed=5)
    recorder = TreeRecorder(config, lambda: desk)
    recorder.evaluation(12, [SampledQuestion(QuestionRef(0), TreeEpisode(TREE))])
    recorder.close()
