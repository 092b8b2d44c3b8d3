"""`rllib-arpo doctor RECIPE ...`: the memory of a tiny model's run, and what the command says of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from rllib_arpo.commands import new, run_command
from rllib_arpo.commands.doctor import data_checks, load_recipe, parse_arguments, recipe_config
from rllib_arpo.doctor.budget import budget_checks, budget_text, decide, gpu_memory, read_run
from rllib_arpo.doctor.checks import Memory, report
from rllib_arpo.doctor.seconds import seconds_text
from rllib_arpo.engine.memory import EngineShape, engine_need
from rllib_arpo.envs.tasks.task import TEST
from rllib_arpo.policy.model_shape import ModelShape, model_shape
from tests.helpers.approved import assert_approved
from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row

REPORTS = Path(__file__).with_name("doctor_reports.txt")
RECIPES = Path(__file__).parents[2] / "tuned_examples"
RECIPE = str(RECIPES / "reasoning_arpo.py")
CPU = Memory(gpus=(), host=512 * 10**9, object_store=150 * 10**9)
GPUS = replace(CPU, gpus=(84_987_740_160,) * 2)
ONE_LEARNER = "--num-learners 0 --num-env-runners 1"
ON_CPU = f"{ONE_LEARNER} --num-gpus-per-learner 0 --num-gpus-per-env-runner 0"
SHARED = "--num-learners 0 --num-gpus-per-learner 0.5 --num-env-runners 2 --num-gpus-per-env-runner 0.25"
APART = "--num-learners 4 --num-gpus-per-learner 1 --num-env-runners 4 --num-gpus-per-env-runner 1"
PAIRS = "--num-learners 2 --num-env-runners 2"
#: What is reported -> (the recipe's arguments, the machine, GB of a GPU that are given, further settings of training).
CASES = {
    "eight small GPUs": (APART, CPU, 0.06, {}),
    "GPUs of unknown size": (APART, CPU, None, {}),
    "eight large GPUs": ("", CPU, 80.0, {}),
    "two GPUs of this machine": (ONE_LEARNER, GPUS, None, {}),
    "a GPU that is shared": (SHARED, CPU, 80.0, {"gradient_checkpointing": False}),
    "GPUs that are shared in pairs": (
        f"{PAIRS} --num-gpus-per-learner 0.1 --num-gpus-per-env-runner 0.9",
        GPUS,
        None,
        {},
    ),
    "shares too large for a pair": (
        f"{PAIRS} --num-gpus-per-learner 0.55 --num-gpus-per-env-runner 0.45",
        GPUS,
        None,
        {},
    ),
    "two learners on a GPU": (f"{PAIRS} --num-gpus-per-learner 0.1 --num-gpus-per-env-runner 0.4", GPUS, None, {}),
    "a CPU with little memory": (ON_CPU, replace(CPU, host=10**9), None, {}),
}


def config_of(model_folder: str, *argv: str):
    recipe = load_recipe(RECIPE)
    args = parse_arguments(recipe, ["--model", model_folder, "--data", "d.parquet", *argv])
    return recipe_config(recipe, args, num_gpus=0)


def run_of(model_folder: str, *argv: str, **changes: object):
    return read_run(config_of(model_folder, *argv).training(**changes))


def compared(run, machine, given_gb=None) -> list[str]:
    return report(budget_checks(decide(run, machine, given_gb), machine, given_gb)).splitlines()


def whole_report(run, machine: Memory, given_gb: float | None) -> str:
    text = budget_text(decide(run, machine, given_gb), gpu_memory(machine, given_gb))
    return "\n".join([text, "", *compared(run, machine, given_gb), ""])


def test_reports_are_those_of_the_file(model_folder):
    """By hand, of the tiny Llama: q, o 64 x 64, k, v 64 x 32, three of 64 x 128 and two norms are 36,992 in a layer;
    259 x 64 of the embedding and the last norm are 16,640. Compiled, a layer keeps of a token 2 x 2 (64 + 32) numbers
    of attention in bf16, 4 in fp32, the input's 64 in fp32, 3 (64 + 128) in bf16: 1,808 bytes. A shared GPU's engine
    has 0.8 of a quarter of 80 GB; a layer holds 4 x 64 and 3 x 128 numbers of a token.
    """
    found = ""
    for title, (argv, machine, given_gb, changes) in CASES.items():
        told = whole_report(run_of(model_folder, *argv.split(), **changes), machine, given_gb)
        found += f"##### {title}\n{told.replace(model_folder, 'MODEL')}\n"
    own = {"num_gpus_per_env_runner": 0.5, "engine_kwargs": {"gpu_memory_utilization": 0.4}}
    config = config_of(model_folder, *ONE_LEARNER.split())
    run = read_run(config.evaluation(evaluation_num_env_runners=2, evaluation_config=own))
    found += f"##### engines of evaluation\n{whole_report(run, CPU, 80.0).replace(model_folder, 'MODEL')}"
    assert_approved(REPORTS, found)


def test_the_command_prints_the_report_and_gives_a_status(model_folder, capsys, monkeypatch):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: CPU)
    command = [RECIPE, "--model", model_folder, "--data", "d.parquet"]
    assert run_command("doctor", [*command, "--gpu-memory-gb", "80"]) == 0
    printed = capsys.readouterr().out.partition("\n\n")[2]
    assert printed == whole_report(run_of(model_folder), CPU, 80.0)
    assert run_command("doctor", command) == 1


def test_runs_that_do_not_fit_or_are_tight(model_folder):
    shared = ["--num-learners", "0", "--num-gpus-per-learner", "0.5", "--num-env-runners", "1"]
    run = run_of(model_folder, *shared, "--num-gpus-per-env-runner", "0.5", gradient_checkpointing=True)
    # The recipe lets it sleep, and on GPUs as small as these it would have no KV cache.
    run = replace(run, engine=replace(run.engine, sleeps=False, shares_gpu=False))
    for given_gb, mark, found in (
        (0.046, "missing", "67.8 MB of 46.0 MB. Take more learners with sharding='fsdp2', "),
        (0.06, "missing", "73.4 MB of 60.0 MB. Give the engine less ("),
        (0.088, "warning", "84.6 MB of 88.0 MB. Little is left for what is not counted. "),
    ):
        begin = f"{mark}  1 GPU     1 learner and 1 engine: {found}"
        assert compared(run, CPU, given_gb)[1].startswith(begin)
    no_room = "missing  KV cache  3,979 tokens, 0 trajectories of the greatest length. Give the engine more ("
    assert compared(run, CPU, 0.003)[2].startswith(no_room)


def test_rows_that_cannot_be_asked_are_found(model_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    path = parquet(tmp_path / "rows.parquet", [row(), row(answer=""), row(), row(question="1 + " * 9000)])
    argv = ["--model", model_folder, "--search-backend", "serper", "--cache", str(tmp_path / "c.sqlite"), "--data"]
    run_command("doctor", ["--rows", RECIPE, *argv, path])
    line = capsys.readouterr().out.splitlines()[-1]
    # The authors' recipes leave such rows out, as the authors' data needs it.
    assert line.startswith("warning  training data  2 of 4 questions cannot be asked. ")
    assert "row 1: no answer" in line

    def checked(data: str, **changes) -> list[str]:
        recipe = load_recipe(RECIPE)
        config = recipe_config(recipe, parse_arguments(recipe, [*argv, data]), num_gpus=0)
        config.evaluation(evaluation_interval=1, evaluation_config={"env_config": {**config.env_config, "split": TEST}})
        return report(data_checks(config.adaptive_rollout(**changes))).splitlines()

    skipped = checked(path, on_bad_row="skip")
    assert [line.partition("  ")[0] for line in skipped] == ["warning", "warning"]
    assert skipped[0].endswith(". They are left out and counted (questions_given_up).")
    [missing, _] = checked(path, on_bad_row="raise")
    assert missing.startswith("missing ") and missing.endswith('. Mend them, or set on_bad_row="skip".')
    found = "all 3 questions can be asked; 1 repeats an earlier one"
    whole = checked(parquet(tmp_path / "whole.parquet", [row(), row(question="What is 1 + 2?"), row()]))
    assert whole == [f"ok       training data    {found}", f"ok       evaluation data  {found}"]


def test_questions_that_are_made_are_not_asked(model_folder):
    config = small_config(model_folder)
    assert report(data_checks(config)) == "ok       training data  generated without end"
    other = report(data_checks(config.environment("Mine-v0")))
    assert other.startswith("ok       training data  not read: env='Mine-v0' is not one of ToolMath-v0, ")


def test_the_shape_of_a_mixture_has_all_experts(tmp_path):
    """A layer has 64 (64 + 32 + 32 + 64) of attention, 4 x 64 of the router, 4 experts of 3 x 64 x 48 and four norms,
    two of 64 and two of 32."""
    layer = 64 * 192 + 4 * 64 + 4 * 3 * 64 * 48 + 2 * 64 + 2 * 32
    sizes = (2, 64, 259, 2, 1, 32, 128)
    mixture = ModelShape(2 * layer + 16_640, layer, 16_640, *sizes, 2, 2 * 2 * 3 * 64 * 48, norms_heads=True)
    assert model_shape(tiny_model(tmp_path / "one", "qwen3_moe")) == mixture
    sent_to_three = tiny_model(tmp_path / "three", "qwen3_moe", num_experts_per_tok=3)
    three = {"intermediate_size": 3 * 48, "experts_per_token": 3, "idle_parameters": 2 * 3 * 64 * 48}
    assert model_shape(sent_to_three) == replace(mixture, **three)


def test_a_trajectory_of_layers_with_a_state_has_one(tmp_path):
    """One of two layers: 4 heads of 128 x 128 numbers, and three tokens of the convolution, 2 x 2 + 4 heads of 128."""
    shape = model_shape(tiny_model(tmp_path, "qwen3_5_text"))
    assert (shape.state_layers, shape.state_size) == (1, 4 * 128 * 128 + 3 * 8 * 128)
    engine = EngineShape(weight_bytes=2, kv_bytes=2, utilization=0.5, context_tokens=10, kv_cache=1_000_000)
    need = engine_need(shape, engine, 1 << 30)
    assert (need.token.bytes, need.state.bytes) == (2 * 1 * 1 * 32 * 2, 4 * (4 * 128 * 128 + 3 * 8 * 128))
    assert need.trajectories == 1_000_000 // (10 * need.token.bytes + need.state.bytes)


def test_the_width_of_a_layer_has_other_names(tmp_path):
    """OPT has ffn_dim; a layer has 4 x 64 of attention and 2 x 160 of the MLP, both with biases, and two norms."""
    sizes = {"hidden_size": 64, "word_embed_proj_dim": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    sizes |= {"ffn_dim": 160, "vocab_size": 259, "max_position_embeddings": 126}
    config = AutoConfig.for_model("opt", architectures=["OPTForCausalLM"], **sizes)
    config.save_pretrained(tmp_path)
    layer = 4 * 64 * 65 + 2 * 64 * 160 + 160 + 64 + 4 * 64
    root = 259 * 64 + 128 * 64 + 2 * 64
    assert model_shape(str(tmp_path)) == ModelShape(2 * layer + root, layer, root, 2, 64, 259, 2, 2, 32, 160)


def test_the_shape_of_an_adapter(model_folder):
    pytest.importorskip("peft")
    lora = {"r": 2, "target_modules": ["q_proj", "k_proj"]}
    # 2 x (64 + 64) and 2 x (64 + 32), in two layers.
    assert model_shape(model_folder, lora).adapter_parameters == 2 * (256 + 192)


def test_settings_reach_the_shapes(model_folder):
    run = run_of(model_folder, kl_coeff=0.1, gradient_checkpointing=False, max_tokens_per_pass=8192)
    assert (run.learner.reference, run.learner.checkpointing, run.learner.tokens_per_pass) == (True, False, 8192)
    assert run_of(model_folder, "--num-learners", "1").learner.sharded is False


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["none.py"], "The recipe 'none.py' does not exist."),
        ([RECIPE, "--model", "/none", "--data", "d"], "model_name_or_path='/none': no such folder."),
        ([RECIPE, "--model", "m", "--data", "d", "--gpu-memory-gb", "nan"], "-gb nan: must be a positive number."),
        (["--rows"], "--rows: name the recipe whose data it should read."),
        ([__file__], "has no 'parser'."),
    ],
)
def test_a_mistake_is_one_sentence(command, message, capsys, monkeypatch):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: GPUS)
    assert run_command("doctor", command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.endswith(f"{message}\n") and error.count("\n") == 1


TEMPLATE = Path(new.__file__).with_name("new_template") / "train.py"


@pytest.mark.parametrize("path", [*sorted(RECIPES.glob("*_arpo.py")), TEMPLATE], ids=lambda path: path.stem)
def test_every_recipe_is_read(path, model_folder, capsys, monkeypatch):
    """With the model that is named: recipes that make theirs would need minutes the first time."""
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: GPUS)
    monkeypatch.chdir(path.parent)
    data = ["--data", "d.parquet"] if path.name in ("reasoning_arpo.py", "deepsearch_qwen3_8b_arpo.py") else []
    status = run_command("doctor", [str(path), "--model", model_folder, *data, "--gpu-memory-gb", "80"])
    output = capsys.readouterr()
    assert (status, output.err) == (0, "")
    assert f"{model_folder}: 90,624 parameters" in output.out


def test_a_recipe_makes_the_model_that_is_not_named(tmp_path, model_folder, capsys, monkeypatch):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: CPU)
    monkeypatch.setenv("TINY_MODEL", model_folder)
    (tmp_path / "mine.py").write_text(
        "from tests.release.tiny_recipe import *\ntiny = make_config\n"
        "def make_config(model, args): return tiny(model, args).language_model(engine='vllm')\n"
    )
    assert run_command("doctor", [str(tmp_path / "mine.py")]) == 0
    assert f"{model_folder}: 90,624 parameters" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("parser = 1", "has no make_model(args)."),
        ("parser = 1\ndef make_model(args, seed=0): ...", "must have make_model(args), not make_model(args, seed=0)."),
        ("def make_model(args): ...", "has no 'parser'."),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, complaint):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ValueError) as raised:
        load_recipe(str(tmp_path / "mine.py"))
    assert str(raised.value) == f"The recipe {str(tmp_path / 'mine.py')!r} {complaint}"


def test_recipes_of_the_same_name_are_modules_of_their_own(tmp_path):
    whole = "parser = {!r}\ndef make_model(args): ...\ndef make_config(model, args): ..."
    for name, text in {"a": whole.format("a"), "b": whole.format("b"), "broken": "import no_such_module"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    recipes = [load_recipe(str(tmp_path / name / "train.py")) for name in "ab"]
    assert [sys.modules[recipe.__name__].parser for recipe in recipes] == ["a", "b"]
    modules = set(sys.modules)
    with pytest.raises(ImportError):
        load_recipe(str(tmp_path / "broken" / "train.py"))
    assert set(sys.modules) == modules


def test_flags_of_recipes_set_what_the_doctor_advises(model_folder):
    flags = "--lora 8 --optimizer-offload --max-tokens-per-pass 8192 --kv-cache-dtype fp8 --gpu-memory-utilization 0.3"
    plain, config = (config_of(model_folder, *ONE_LEARNER.split(), *more) for more in ((), flags.split()))
    assert config.lora == {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    assert (config.lr, config.optimizer_offload, config.max_tokens_per_pass) == (10 * plain.lr, True, 8192)
    assert config.engine_kwargs == {"gpu_memory_utilization": 0.3, "kv_cache_dtype": "fp8"}
    assert (plain.lora, plain.optimizer_offload, plain.max_tokens_per_pass) == (None, False, 16384)


def test_seconds_by_hand(model_folder):
    """8 trajectories of 1,000 + 2,000 / 2 tokens, 600 of them generated, on two engines with one question each."""
    run = run_of(model_folder, "--num-learners", "1", "--num-env-runners", "2")
    model = replace(run.model, parameters=10**9)
    engine = replace(run.engine, context_tokens=3000)
    run = replace(run, model=model, engine=engine, questions=1, trajectories=4, batch=2, steps=1, response_tokens=2000)
    run = replace(run, learner=replace(run.learner, checkpointing=False))
    lines = seconds_text(run, engine_need(model, engine, 80 * 10**9)).splitlines()
    # 8 x 600 / 2 / 4 x 7 ms; 6 x 10^9 x 16,000 / (989 x 10^12 x 0.37); 2 x 10^9 / (2.3 x 10^9).
    expected = ["4.2 s  rollout", "0.3 s  update", "0.9 s  new weights"]
    assert lines[0].startswith("an iteration on H100s, 5 s: 2 questions x 4 trajectories")
    assert [line.split(":")[0].strip() for line in lines[1:4]] == expected
    again = replace(run, learner=replace(run.learner, checkpointing=True), steps=2)
    again = replace(again, model=replace(model, parameters=10**10, idle_parameters=4 * 10**9))
    # 8 x 6 x 10^9 x 16,000 / (989 x 10^12 x 0.29); attention: two layers x 64 x 2,000 tokens.
    expected = "2.7 s  update: 8 x (6,000,000,000 parameters + 256,000 of attention) x 16,000 tokens"
    assert expected in seconds_text(again, engine_need(model, engine, 80 * 10**9))
