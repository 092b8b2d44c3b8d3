"""`rllib-arpo doctor RECIPE ...`: the memory of a tiny model's run, in its whole text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from rllib_arpo.commands import run_command
from rllib_arpo.commands.doctor import data_checks, load_recipe, parse_arguments
from rllib_arpo.doctor.budget import budget_checks, budget_text, decide, read_run
from rllib_arpo.doctor.checks import Memory, report
from rllib_arpo.envs.tasks.task import TEST
from rllib_arpo.policy.model_shape import ModelShape, model_shape
from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row

RECIPES = Path(__file__).parents[2] / "tuned_examples"
RECIPE = str(RECIPES / "reasoning_arpo.py")
CPU = Memory(gpus=(), host=512 * 10**9, object_store=150 * 10**9)
GPUS = replace(CPU, gpus=(84_987_740_160,) * 2)

#: By hand, of the tiny Llama: q and o 64 x 64, k and v 64 x 32, three of 64 x 128 and two norms are 36,992 in a layer;
#: 259 x 64 of the embedding and the last norm are 16,640. Compiled, a layer keeps of a token 2 x 2 (64 + 32) numbers of
#: attention in bf16, 4 in fp32, the input's 64 in fp32, 3 (64 + 128) in bf16: 1,808 bytes.
TEXT = """\
MODEL: 90,624 parameters, 2 layers
4 learners (1 GPU, sharding='fsdp2')
     0.1 MB  weights: 90,624 parameters x 4 bytes / 4 learners
     0.2 MB  Adam's two moments: 90,624 parameters x 8 bytes / 4 learners
     0.1 MB  gradients: 90,624 parameters x 4 bytes / 4 learners
     0.4 MB  weights assembled: (16,640 outside of the layers + 2 x 36,992 of a layer) x 4 bytes
     0.2 MB  their gradients: (16,640 outside of the layers + 36,992 of a layer) x 4 bytes
     8.4 MB  inputs of the layers: 16,384 tokens x 64 numbers x 2 layers x 4 bytes
    29.6 MB  activations of a layer: 16,384 tokens x 1,808 bytes x 1 layer
     0.1 MB  weights of the layers, cast: 36,992 parameters x 1 layer x 2 bytes
     0.0 MB  the LM head, cast: 259 words x 64 numbers x 2 bytes
     2.1 MB  chunk of the LM head: 2 arrays x 1,024 tokens x 259 logits x 4 bytes
    41.2 MB  during a pass
             Not counted: the gradients of one layer's values, CUDA's context, the allocator's waste.
             gradient_checkpointing='auto' is True: with all activations the device would hold 62,486,912 of \
60,000,000 bytes in an update; it may hold 80%.
4 engines (1 GPU)
    54.0 MB  its part: 0.9 of the GPU's 60,000,000 bytes
     0.2 MB  weights: 90,624 parameters x 2 bytes
    53.8 MB  KV cache, at most: the engine's own values are taken from it
      256 B  a token of it: 2 keys and values x 2 layers x 1 head x 32 numbers x 2 bytes
    210,229  tokens, which are 37 trajectories of 5,632
             At most 32 questions x 16 trajectories come at a time; they share their beginnings, and the rest waits.

ok       GPUs      the run takes 8, here assumed to have 60.0 MB each
ok       4 GPUs    1 engine: 54.0 MB of 60.0 MB
ok       4 GPUs    1 learner: 41.2 MB of 60.0 MB
ok       KV cache  210,229 tokens, 37 trajectories of the greatest length
"""


def config_of(model_folder: str, *argv: str):
    recipe = load_recipe(RECIPE)
    return recipe.make_config(parse_arguments(recipe, ["--model", model_folder, "--data", "d.parquet", *argv], None))


def run_of(model_folder: str, *argv: str, **changes: object):
    return read_run(config_of(model_folder, *argv).training(**changes))


def compared(run, machine, given_gb=None) -> list[str]:
    return report(budget_checks(decide(run, machine, given_gb), machine, given_gb)).splitlines()


@pytest.mark.parametrize("before", [True, False])
def test_the_budget_of_a_recipe(model_folder, capsys, monkeypatch, before):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: CPU)
    own = ["--gpu-memory-gb", "0.06"]
    command = [RECIPE, "--model", model_folder, "--data", "d.parquet"]
    assert run_command("doctor", [*own, *command] if before else [*command, *own]) == 0
    assert capsys.readouterr().out.partition("\n\n")[2].replace(model_folder, "MODEL") == TEXT


def test_a_run_without_its_gpus_ends_with_status_1(model_folder, capsys, monkeypatch):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: CPU)
    assert run_command("doctor", [RECIPE, "--model", model_folder, "--data", "d.parquet"]) == 1
    text = capsys.readouterr().out
    assert "     0.2 MB  weights: 90,624 parameters x 2 bytes\n             0.9 of the GPU's memory in all;" in text
    assert (
        "missing  GPUs  the run takes 8, and this machine has 0. "
        "Lower num_gpus_per_*, or compare with another machine's GPUs: --gpu-memory-gb 80.\n"
    ) in text


def test_rows_that_cannot_be_asked_are_found(model_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    path = parquet(tmp_path / "rows.parquet", [row(), row(answer=""), row(), row(question="1 + " * 9000)])
    argv = ["--model", model_folder, "--search-backend", "serper", "--cache", str(tmp_path / "c.sqlite"), "--data"]
    assert run_command("doctor", ["--rows", RECIPE, *argv, path]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("missing  training data  2 of 4 questions cannot be asked. ")
    assert "row 1: no answer" in line
    assert line.endswith('. Mend them, or set on_bad_row="skip".')

    def checked(data: str, **changes) -> list[str]:
        recipe = load_recipe(RECIPE)
        config = recipe.make_config(parse_arguments(recipe, [*argv, data], None))
        config.evaluation(evaluation_interval=1, evaluation_config={"env_config": {**config.env_config, "split": TEST}})
        return report(data_checks(config.adaptive_rollout(**changes))).splitlines()

    skipped = checked(path, on_bad_row="skip")
    assert [line.partition("  ")[0] for line in skipped] == ["warning", "warning"]
    assert skipped[0].endswith(". They are left out and counted (questions_given_up).")
    found = "all 2 questions can be asked"
    whole = checked(parquet(tmp_path / "whole.parquet", [row(), row()]))
    assert whole == [f"ok       training data    {found}", f"ok       evaluation data  {found}"]


def test_questions_that_are_made_are_not_asked(model_folder):
    config = small_config(model_folder)
    assert report(data_checks(config)) == "ok       training data  generated without end"
    other = report(data_checks(config.environment("Mine-v0")))
    assert other.startswith("ok       training data  not read: env='Mine-v0' is not one of ToolMath-v0, ")


def test_learners_that_share_gpus_with_engines(model_folder):
    def gpus(learner: str, env_runner: str, learners: str = "2") -> list[str]:
        run = run_of(
            model_folder, "--num-learners", learners, "--num-gpus-per-learner", learner, "--num-env-runners", "2",
            "--num-gpus-per-env-runner", env_runner,
        )  # fmt: skip
        return [line for line in compared(run, GPUS) if "GPU" in line]

    pairs = (
        "o share GPUs in pairs set num_gpus_per_env_runner=0.9 and num_gpus_per_learner=0.1, with at least as many env "
        "runners as learners."
    )
    assert gpus("0.1", "0.9")[0] == "ok       GPUs      the run takes 2, and this machine has 2"
    assert gpus("0.55", "0.45")[0] == (f"missing  GPUs      the run takes 3, and this machine has 2. T{pairs}")
    assert gpus("0.1", "0.4")[1].endswith(f". NCCL refuses several learners on one GPU: t{pairs}")


def test_runs_that_do_not_fit_or_are_tight(model_folder):
    shared = ["--num-learners", "0", "--num-gpus-per-learner", "0.5", "--num-env-runners", "1"]
    run = run_of(model_folder, *shared, "--num-gpus-per-env-runner", "0.5", gradient_checkpointing=True)
    # The recipe lets it sleep, and on GPUs as small as these it would have no KV cache.
    run = replace(run, engine=replace(run.engine, sleeps=False, shares_gpu=False))
    usual = "ok       GPUs      the run takes 1, here assumed to have"
    assert compared(run, CPU, 0.038) == [
        f"{usual} 38.0 MB each",
        "missing  1 GPU     1 learner and 1 engine: 57.0 MB of 38.0 MB. "
        "Take more learners with sharding='fsdp2', a smaller max_tokens_per_pass, or larger GPUs.",
        "ok       KV cache  58,667 tokens, 10 trajectories of the greatest length",
    ]
    assert compared(run, CPU, 0.052)[1] == (
        "missing  1 GPU     1 learner and 1 engine: 62.6 MB of 52.0 MB. "
        "Give the engine less (gpu_memory_utilization or kv_cache_memory_bytes), set sleep_level, or take separate "
        "GPUs."
    )
    assert compared(run, CPU, 0.076)[1] == (
        "warning  1 GPU     1 learner and 1 engine: 72.2 MB of 76.0 MB. Little is left for what is not counted. "
        "Take more learners with sharding='fsdp2', a smaller max_tokens_per_pass, or larger GPUs."
    )
    assert compared(run, CPU, 0.003)[2] == (
        "missing  KV cache  3,979 tokens, 0 trajectories of the greatest length. "
        "Give the engine more (gpu_memory_utilization or kv_cache_memory_bytes), a larger tensor_parallel_size, or a "
        "smaller max_context_tokens."
    )


def test_a_run_on_the_cpu_is_compared_with_its_memory_whatever_gpus_would_have(model_folder):
    on_cpu = ["--num-learners", "0", "--num-gpus-per-learner", "0", "--num-gpus-per-env-runner", "0"]
    run = run_of(model_folder, *on_cpu, "--num-env-runners", "1")
    for given_gb in (None, 80.0):
        assert compared(run, replace(CPU, host=10**9), given_gb) == [
            "ok       KV cache      4,194,304 tokens, 744 trajectories of the greatest length",
            "missing  CPU's memory  1 learner and 1 engine: 1.1 GB of 1.0 GB. Take a machine with more memory.",
        ]


def test_the_shape_of_a_mixture_has_all_experts(tmp_path):
    """A layer has 64 (64 + 32 + 32 + 64) of attention, 4 x 64 of the router, 4 experts of 3 x 64 x 48 and four norms,
    two of 64 and two of 32."""
    layer = 64 * 192 + 4 * 64 + 4 * 3 * 64 * 48 + 2 * 64 + 2 * 32
    sizes = (2, 64, 259, 2, 1, 32, 128)
    mixture = ModelShape(2 * layer + 16_640, layer, 16_640, *sizes, experts_per_token=2, norms_heads=True)
    assert model_shape(tiny_model(tmp_path / "one", "qwen3_moe")) == mixture
    sent_to_three = tiny_model(tmp_path / "three", "qwen3_moe", num_experts_per_tok=3)
    assert model_shape(sent_to_three) == replace(mixture, intermediate_size=3 * 48, experts_per_token=3)


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


def test_engines_for_evaluation_have_their_own_share(model_folder):
    """The engine of training has 0.9 of its GPU, a smaller part of a second one is that of evaluation."""
    own = {"num_gpus_per_env_runner": 0.5, "engine_kwargs": {"gpu_memory_utilization": 0.4}}
    config = config_of(model_folder, "--num-learners", "0", "--num-env-runners", "1")
    run = read_run(config.evaluation(evaluation_num_env_runners=2, evaluation_config=own))
    assert compared(run, CPU, 80.0) == [
        "ok       GPUs                   the run takes 3, here assumed to have 80.0 GB each",
        "ok       1 GPU                  1 learner: 63.1 MB of 80.0 GB",
        "ok       1 GPU                  1 engine: 72.0 GB of 80.0 GB",
        "ok       1 GPU                  2 engines: 64.0 GB of 80.0 GB",
        "ok       KV cache               281,249,292 tokens, 49,937 trajectories of the greatest length",
        "ok       evaluation's KV cache  116,508,044 tokens, 20,686 trajectories of the greatest length",
    ]


def test_what_auto_means_is_told_where_the_device_is_known(model_folder):
    run = run_of(model_folder)
    undecided = "gradient_checkpointing='auto': counted as True, since the GPU is not known."
    assert undecided in budget_text(decide(run, CPU, None), None)
    kept = budget_text(decide(run, CPU, 80.0), 80 * 10**9)
    assert "gradient_checkpointing='auto' is False: with all activations the device would hold 62,486,912 of " in kept
    assert "    59.2 MB  activations of the layers: 16,384 tokens x 1,808 bytes x 2 layers\n" in kept
    on_cpu = ["--num-learners", "0", "--num-gpus-per-learner", "0", "--num-gpus-per-env-runner", "0"]
    assert "'auto' is False" in budget_text(decide(run_of(model_folder, *on_cpu), CPU, None), None)
    given = decide(run_of(model_folder, gradient_checkpointing=False), CPU, 0.01)
    assert "gradient_checkpointing" not in budget_text(given, 10**7)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["none.py"], "The recipe 'none.py' does not exist."),
        (["--gpu-memory-gb", "80"], "--gpu-memory-gb 80: give the recipe whose run needs such GPUs."),
        ([RECIPE, "--model", "/none", "--data", "d"], "model_name_or_path='/none': no such folder."),
        (["--gpu-memory-gb", "nan", RECIPE, "--model", "m", "--data", "d"], "-gb nan: must be a positive number."),
        (["--rows"], "--rows: give the recipe whose data are to be read."),
        ([__file__], "has no 'parser'."),
    ],
)
def test_a_mistake_is_one_sentence(command, message, capsys, monkeypatch):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: GPUS)
    assert run_command("doctor", command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.endswith(f"{message}\n") and error.count("\n") == 1


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*_arpo.py")), ids=lambda path: path.stem)
def test_every_tuned_example_is_read_or_refused(path, model_folder, capsys, monkeypatch):
    monkeypatch.setattr("rllib_arpo.commands.doctor.memory_of_this_machine", lambda: GPUS)
    status = run_command("doctor", ["--gpu-memory-gb", "80", str(path), "--model", model_folder, "--data", "d.parquet"])
    output = capsys.readouterr()
    if path.name in ("reasoning_arpo.py", "deepsearch_qwen3_8b_arpo.py"):
        assert (status, output.err) == (0, "")
    else:
        message = f"error: The recipe {str(path)!r} chooses its own model: give a recipe that takes --model.\n"
        assert (status, output.err) == (2, message)
