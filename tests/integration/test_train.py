"""Iterations with LoRA, experts and states on vLLM; other algorithms; groups without signal; engines that sleep."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.fs import LocalFileSystem
from transformers import AutoModelForCausalLM

from rllib_arpo import AEPOConfig, DAPOConfig, GRPOConfig, ReinforcePlusPlusConfig, TreeGRPOConfig
from rllib_arpo.commands import run_command
from rllib_arpo.engine.engine import NO_WEIGHTS, GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.files import write_checksums
from rllib_arpo.policy.module_checkpoint import export_model, write_model
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import QuestionRef, SamplingConditions
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.models import tiny_model
from tests.helpers.parity_env import ParityEnv
from tests.helpers.scripted_env import ANSWER, TOOL
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.helpers.weights import (
    LORA,
    MODULE,
    engine_log_probs,
    learner_log_probs,
    learner_weights,
    load,
    log_probs,
    move_adapter,
    peft_model,
    weights_of,
)

#: Architecture -> its model, type of the weights, those of the first layer that are to learn, and the gap of engine and
#: learner in nats. vLLM's CPU kernels compute states in bf16 only; each token then takes all four experts, since one
#: between two experts might take the other one in the engine.
LEARNING = {
    "qwen3_moe": ({"tie_word_embeddings": True}, "float32",
                  ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"), 1e-4),
    "qwen3_next": ({"tie_word_embeddings": False, "num_experts_per_tok": 4, "seed": 1}, "bfloat16",
                   ("linear_attn.A_log", "linear_attn.conv1d.weight", "linear_attn.in_proj_qkvz.weight"), 0.3),
}  # fmt: skip


@pytest.mark.parametrize("architecture", LEARNING)
def test_a_model_with_experts_or_states_trains(built, ray_cluster, tmp_path, architecture):
    """With forks; what it learns reaches the engine. It goes on from a checkpoint, and is exported."""
    changes, dtype, learning, gap = LEARNING[architecture]
    folder = tiny_model(tmp_path / "model", architecture, **changes)
    config = small_config(folder, engine="vllm", kv_cache_memory_bytes=16 << 20).language_model(dtype=dtype)
    algorithm = built(config.environment(ParityEnv).adaptive_rollout(branching="always"))
    [at_start] = engine_log_probs(algorithm)
    np.testing.assert_allclose(at_start, learner_log_probs(algorithm), atol=gap)
    for _ in range(3):
        result = algorithm.train()
        learned = result["learners"]["default_policy"]
        assert result["env_runners"]["forks_per_question"] == 2
        # vLLM's CPU build caches no states.
        assert architecture == "qwen3_moe" or result["env_runners"]["prefix_tokens_reused"] == 0
        assert np.isfinite(learned["policy_loss"]) and learned["grad_norm"] > 0
        assert 0 < learned["engine_logprob_gap"] < gap
        algorithm.restore_from_path(algorithm.save_to_path(str(tmp_path / "checkpoint")))
    weights, before, expected = learner_weights(algorithm), weights_of(folder), learner_log_probs(algorithm)
    for name in learning:
        assert np.abs(weights[f"model.layers.0.{name}"] - before[f"model.layers.0.{name}"]).max() > 1e-5, name
    assert np.abs(expected - at_start).max() > 1e-2
    [after] = engine_log_probs(algorithm)
    np.testing.assert_allclose(after, expected, atol=gap)
    algorithm.save_model(tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    np.testing.assert_allclose(log_probs(saved), expected, atol=gap)


def test_with_lora_engine_learner_checkpoint_and_exported_models_agree(ray_cluster, model_folder, tmp_path):
    from peft import PeftModel
    from transformers import AutoTokenizer, GenerationConfig

    config = small_config(model_folder, engine="vllm").language_model(lora=LORA)
    algorithm = config.training(skip_groups_without_signal=False).build_algo()
    [at_start] = engine_log_probs(algorithm)
    np.testing.assert_allclose(at_start, log_probs(load(model_folder)), atol=1e-4)
    algorithm.learner_group.foreach_learner(move_adapter)
    algorithm._push_weights()

    expected = log_probs(peft_model(load(model_folder), LORA, learner_weights(algorithm)))
    assert np.abs(expected - at_start).max() > 0.1
    [after] = engine_log_probs(algorithm)
    np.testing.assert_allclose(after, expected, atol=1e-4)
    # A rollout, whose log-probs the learner compares with its own.
    gap = algorithm.train()["learners"]["default_policy"]["engine_logprob_gap"]
    assert gap < 1e-4
    expected = log_probs(peft_model(load(model_folder), LORA, learner_weights(algorithm)))

    algorithm.save_model(tmp_path / "saved")
    checkpoint = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()
    export_model(checkpoint, tmp_path / "exported")
    assert run_command("export", [checkpoint, str(tmp_path / "bf16"), "--dtype", "bfloat16"]) == 0
    with_adapter = PeftModel.from_pretrained(load(model_folder), Path(checkpoint) / MODULE / "adapter")
    for model in (load(tmp_path / "saved"), load(tmp_path / "exported"), with_adapter):
        np.testing.assert_allclose(log_probs(model), expected, atol=1e-4)
    assert load(tmp_path / "bf16").dtype == torch.bfloat16
    for folder in ("saved", "exported"):
        assert AutoTokenizer.from_pretrained(tmp_path / folder).eos_token == "<|im_end|>"
        assert GenerationConfig.from_pretrained(tmp_path / folder) == GenerationConfig.from_pretrained(model_folder)


def test_a_folder_that_is_not_a_checkpoint_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=f"^{tmp_path}/checksums.json is missing: {tmp_path} is not a whole checkpoint"
    ):
        export_model(tmp_path, tmp_path / "out")


def test_a_file_in_the_place_of_a_model_is_named_before_anything_is_loaded(tmp_path, capsys):
    checkpoint, file = tmp_path / "checkpoint", tmp_path / "file"
    checkpoint.mkdir()
    write_checksums(str(checkpoint), LocalFileSystem())
    file.write_text("mine")
    assert run_command("export", [str(checkpoint), str(file)]) == 2
    assert capsys.readouterr().err == f"error: {file}: not a folder that can be written (File exists).\n"
    with pytest.raises(ValueError, match="file/model: not a folder that can be written"):
        write_model(file / "model", {}, "none")
    assert file.read_text() == "mine"


def call_then_answer(request: GenerationRequest, times_asked: int) -> ScriptedReply:
    """A tool call, then one answer or another, of which the policy is less sure than of the call."""
    if 50 not in request.prompt_token_ids:  # The tool's response begins with it.
        return ScriptedReply([7, TOOL], entropies=[0.1, 0.5])
    return ScriptedReply([8 + times_asked, ANSWER], entropies=[2.0, 0.3])


@pytest.mark.parametrize(
    ("config_class", "forks"),
    [(GRPOConfig, 0), (DAPOConfig, 0), (ReinforcePlusPlusConfig, 0), (AEPOConfig, 2), (TreeGRPOConfig, 2)],
)
def test_other_algorithms_train(built, ray_cluster, model_folder, config_class, forks):
    config = small_config(model_folder, config=config_class(), vocab_size=256, script=call_then_answer)
    config.environment(FaultyEnv, env_config={"rewards": {"0": 1.0}}).training(questions_per_minibatch=1)
    config.overlong_buffer_tokens = config.overlong_buffer_tokens and 20
    algorithm = built(config)
    before = learner_weights(algorithm)
    result = algorithm.train()
    assert result["env_runners"]["forks_per_question"] == forks
    assert any(not np.array_equal(before[name], value) for name, value in learner_weights(algorithm).items())


def test_groups_without_signal_are_replaced_by_new_questions(built, scripted):
    """DAPO: two rounds at most; what has no signal then is left out, unless it is all that there is."""
    scripted.environment(env_config={"rewards": {"0": 0.0}}).training(max_resample_rounds=2)
    algorithm = built(scripted)
    asked, trained = [], []
    ask, take, update = algorithm._dispatcher.ask, algorithm._stream.take, algorithm._update
    algorithm._dispatcher.ask = lambda refs: (asked.append([ref.number for ref in refs]), ask(refs))
    algorithm._update = lambda batch: (trained.append([s.number for s in batch]), update(batch))
    result = algorithm.train()
    assert asked == [[0, 1], [2, 3], [4, 5]]
    assert result["env_runners"]["resample_rounds"] == 2
    assert result["env_runners"]["questions_dropped"] == 0
    assert result["learners"]["default_policy"]["groups_without_signal"] == 2

    def with_reward(sampled, reward):
        trajectories = [make_trajectory(str(i), [make_turn([5])], reward=[reward, 0.0][i]) for i in range(2)]
        tree = make_tree([1], trajectories, sampled.tree.question_id)
        return replace(sampled, episode=TreeEpisode(tree))

    # Question 8 alone has rewards that differ: 8 and 9 replace 6 and 7, and then 10, without signal, replaces 9.
    algorithm._stream.take = lambda n, conditions: [with_reward(s, float(s.number == 8)) for s in take(n, conditions)]
    result = algorithm.train()
    assert trained[1:] == [[8]]
    assert result["env_runners"]["resample_rounds"] == 2
    assert result["env_runners"]["questions_dropped"] == 1
    assert result["learners"]["default_policy"]["num_questions_trained"] == 1


def record(algorithm) -> list[str]:
    """What happens to the engine and the learner from now on, in order."""
    engine, happened = algorithm.env_runner.engine, []
    for owner, name in ((engine, "sleep"), (engine, "wake_up"), (engine, "update_weights"), (algorithm, "_update")):
        method = getattr(owner, name)

        def recording(*args, name=name, method=method, **kwargs):
            happened.append(f"{name}({engine.asleep})")
            return method(*args, **kwargs)

        setattr(owner, name, recording)
    return happened


@pytest.mark.parametrize("level", [0, 1, 2])
def test_engines_sleep_during_the_update_and_wake_for_its_weights(built, ray_cluster, model_folder, level):
    algorithm = built(small_config(model_folder).language_model(sleep_level=level))
    engine, happened = algorithm.env_runner.engine, record(algorithm)
    algorithm.train()
    algorithm.train()
    asleep = level > 0
    one = [f"_update({asleep})", f"wake_up({asleep})", "update_weights(False)"]
    assert happened == (["sleep(False)"] * asleep + one) * 2
    assert engine.sleeps == [level] * asleep * 2
    assert (engine.asleep, engine.weight_version) == (False, algorithm._weight_version)
    assert engine.weights.keys() == learner_weights(algorithm).keys()
    if not level:
        return
    # As after an update that has failed: the learner's weights are the same.
    version, name = algorithm._weight_version, "model.norm.weight"
    algorithm._dispatcher.sleep(level)
    assert (engine.asleep, engine.weight_version, engine.weights == {}) == (True, NO_WEIGHTS, level == 2)
    with pytest.raises(RuntimeError, match=rf"^Env runner 0 has weights -2, not {version}\.$"):
        algorithm.env_runner.sample_questions([QuestionRef(0)], SamplingConditions(weight_version=version))
    algorithm._push_weights()
    assert (engine.asleep, engine.weight_version) == (False, version)
    np.testing.assert_array_equal(engine.weights[name], learner_weights(algorithm)[name])
