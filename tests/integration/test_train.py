"""Iterations for real, with vLLM, LoRA and experts; other algorithms; groups without signal; engines that sleep."""

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
    TOKENS,
    engine_log_probs,
    learner_log_probs,
    learner_weights,
    load,
    move_adapter,
    peft_model,
    set_learner_weights,
    weights_of,
)


@pytest.fixture(scope="module")
def trained(ray_cluster, model_folder):
    """vLLM, a tool process, two env runners, two learners: after two iterations, and the second's result.

    Until the module ends, they take all CPUs of the shared Ray: its other tests run in this process.
    """
    config = small_config(model_folder, engine="vllm")
    config.env_runners(num_env_runners=2).learners(num_learners=2)
    config.evaluation(evaluation_interval=1)
    algorithm = config.build_algo()
    algorithm.batches = []
    update = algorithm._update
    algorithm._update = lambda batch: (algorithm.batches.append(batch), update(batch))[1]
    algorithm.train()
    result = algorithm.train()
    yield algorithm, result
    algorithm.stop()


def test_trees_their_log_probs_and_the_evaluation_of_a_real_run(trained):
    algorithm, result = trained
    assert [[s.number for s in batch] for batch in algorithm.batches] == [[0, 1], [2, 3]]
    for sampled in [s for batch in algorithm.batches for s in batch]:
        assert len(sampled.episode.agent_episodes) == 4
        assert len(sampled.tree.trajectories) == 4
    # fp32 on both sides: the mean gap between engine and learner is rounding.
    assert result["learners"]["default_policy"]["engine_logprob_gap"] < 1e-4
    # It runs on the engines of training.
    assert algorithm.eval_env_runner_group is None
    assert result["evaluation"]["env_runners"]["num_episodes"] == 3
    assert [s.number for s in algorithm.last_evaluation] == [0, 1, 2]
    assert all(len(s.episode.agent_episodes) == 1 for s in algorithm.last_evaluation)


def test_evaluation_is_greedy_and_repeatable(trained):
    algorithm, _result = trained

    def answers():
        algorithm.evaluate()
        return [[t.token_ids.tolist() for t in s.tree.path("0")] for s in algorithm.last_evaluation]

    assert answers() == answers()


def check_engines(algorithm, expected: np.ndarray) -> None:
    scores = engine_log_probs(algorithm)
    assert len(scores) == 2
    for score in scores:
        np.testing.assert_allclose(score, expected, atol=1e-4)


def test_engines_have_the_learners_weights_after_every_sync_and_from_a_checkpoint(trained, tmp_path):
    """Into the algorithm itself, after its weights have changed; into a new one: test_resume.py."""
    algorithm, _result = trained
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    expected, weights = learner_log_probs(algorithm), learner_weights(algorithm)
    check_engines(algorithm, expected)
    set_learner_weights(algorithm, 0.5)
    algorithm.evaluate()
    assert not any(np.allclose(score, expected, atol=1e-4) for score in engine_log_probs(algorithm))
    algorithm.restore_from_path(path)
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_array_equal(value, weights[name])
    check_engines(algorithm, expected)
    assert algorithm.iteration == 2
    assert algorithm._stream.next_number == 4


def test_a_mixture_of_experts_trains(ray_cluster, tmp_path):
    """With forks: its routers and experts learn, and reach the engine."""
    folder = tiny_model(tmp_path / "model", "qwen3_moe")
    config = small_config(folder, engine="vllm", kv_cache_memory_bytes=16 << 20)
    config.environment(ParityEnv).adaptive_rollout(branching="always")
    algorithm = config.build_algo()
    [at_start] = engine_log_probs(algorithm)
    np.testing.assert_allclose(at_start, learner_log_probs(algorithm), atol=1e-4)
    for _ in range(2):
        result = algorithm.train()
        learned = result["learners"]["default_policy"]
        assert result["env_runners"]["forks_per_question"] == 2
        assert np.isfinite(learned["policy_loss"]) and learned["grad_norm"] > 0
        assert learned["engine_logprob_gap"] < 1e-4

    weights, before = learner_weights(algorithm), weights_of(folder)
    for name in ("gate.weight", "experts.gate_up_proj", "experts.down_proj"):
        layer = f"model.layers.0.mlp.{name}"
        assert np.abs(weights[layer] - before[layer]).max() > 1e-4, name
    expected = learner_log_probs(algorithm)
    assert np.abs(expected - at_start).max() > 1e-2
    [after] = engine_log_probs(algorithm)
    np.testing.assert_allclose(after, expected, atol=1e-4)

    algorithm.save_model(tmp_path / "saved")
    algorithm.stop()
    assert (tmp_path / "saved/config.json").is_file()
    for name, array in weights_of(str(tmp_path / "saved")).items():
        np.testing.assert_array_equal(array, weights[name])


def test_a_model_with_states_trains(ray_cluster, tmp_path):
    """With forks; it goes on from a checkpoint, and is exported. vLLM's CPU kernels compute states in bf16 only."""
    folder = tiny_model(tmp_path / "model", "qwen3_next", tie_word_embeddings=False)
    config = small_config(folder, engine="vllm", kv_cache_memory_bytes=16 << 20).language_model(dtype="bfloat16")
    config.environment(ParityEnv).adaptive_rollout(branching="always")
    algorithm = config.build_algo()
    path = None
    for _ in range(3):
        if path is not None:
            algorithm.restore_from_path(path)
        result = algorithm.train()
        path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
        assert result["env_runners"]["forks_per_question"] == 2
        assert result["env_runners"]["prefix_tokens_reused"] == 0
        assert 0 < result["learners"]["default_policy"]["engine_logprob_gap"] < 0.1
    weights, before = learner_weights(algorithm), weights_of(folder)
    for name in ("A_log", "conv1d.weight", "in_proj_qkvz.weight"):
        layer = f"model.layers.0.linear_attn.{name}"
        assert np.abs(weights[layer] - before[layer]).max() > 1e-5, name
    [after] = engine_log_probs(algorithm)
    expected = learner_log_probs(algorithm)
    np.testing.assert_allclose(after, expected, atol=0.3)
    algorithm.save_model(tmp_path / "saved")
    algorithm.stop()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    np.testing.assert_allclose(log_probs(saved), expected, atol=0.3)


def log_probs(model) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0, :-1]
    return logits.log_softmax(-1)[torch.arange(len(TOKENS) - 1), TOKENS[1:]].numpy()


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
