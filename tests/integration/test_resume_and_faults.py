"""Stopped runs go on where they were; dead env runners do not lose questions, and do not pass in silence."""

from dataclasses import replace

import numpy as np
import pytest

from rllib_arpo import ARPO, AEPOConfig, DAPOConfig, GRPOConfig, ReinforcePlusPlusConfig, TreeGRPOConfig
from rllib_arpo.engine.engine import GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.helpers.configs import small_config
from tests.helpers.scripted_env import ANSWER, TOOL
from tests.helpers.trees import make_trajectory, make_tree, make_turn
from tests.helpers.weights import learner_weights


def questions(algorithm) -> list[str]:
    """Trains one iteration; returns the questions that were asked."""
    batches = []
    update = algorithm._update
    algorithm._update = lambda batch: (batches.append(batch), update(batch))
    algorithm.train()
    algorithm._update = update
    return [sampled.episode.id_ for batch in batches for sampled in batch]


def test_resumed_run_asks_the_same_questions_and_takes_the_same_step(scripted, tmp_path):
    algorithm = scripted.build_algo()
    assert questions(algorithm) == ["q0", "q1"]
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    before, seconds = learner_weights(algorithm), algorithm._time_total
    assert questions(algorithm) == ["q2", "q3"]
    uninterrupted = learner_weights(algorithm)
    algorithm.stop()
    assert any(not np.array_equal(before[name], uninterrupted[name]) for name in before)

    resumed = ARPO.from_checkpoint(path)
    assert resumed._time_total == seconds > 0
    assert questions(resumed) == ["q2", "q3"]
    for name, value in learner_weights(resumed).items():
        np.testing.assert_allclose(value, uninterrupted[name], rtol=0, atol=1e-7)
    resumed.stop()


def test_a_state_goes_to_an_algorithm_whose_env_runner_has_a_process_of_its_own(built, scripted):
    algorithm = built(scripted)
    algorithm.train()
    state = algorithm.get_state()
    other = built(scripted.copy(copy_frozen=False).env_runners(num_env_runners=1))
    other.set_state(state)
    assert questions(other) == ["q2", "q3"]


@pytest.mark.timeout(600)
def test_five_of_eight_env_runners_die_one_after_the_other_and_the_run_goes_on(built, scripted, tmp_path):
    scripted.env_runners(num_env_runners=8, num_cpus_per_env_runner=0.1, num_envs_per_env_runner=1)
    scripted.training(questions_per_batch=16, questions_per_minibatch=16)
    (tmp_path / "deaths").mkdir()
    scripted.environment(env_config={"deaths": str(tmp_path / "deaths"), "num_deaths": 5, "rewards": {"0": 1.0}})
    algorithm = built(scripted)
    for first in range(0, 96, 16):
        assert questions(algorithm) == [f"q{i}" for i in range(first, first + 16)]
    assert sorted(path.name for path in (tmp_path / "deaths").iterdir()) == ["1", "2", "3", "4", "5"]
    algorithm.restore_env_runners(algorithm.env_runner_group)
    versions = algorithm.env_runner_group.foreach_env_runner("weight_version", local_env_runner=False)
    assert set(versions) == {6}


def test_a_question_that_kills_is_given_up_and_the_run_goes_on(built, scripted):
    scripted.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.1).environment(env_config={"die_at": 1})
    scripted.training(questions_per_batch=4)
    algorithm = built(scripted)
    rollout = algorithm.train()["env_runners"]
    assert (rollout["num_episodes"], rollout["questions_given_up"]) == (3, 1)


def test_three_failures_in_a_row_end_the_run_with_the_cause(built, scripted):
    scripted.env_runners(num_env_runners=1).environment(env_config={"die_at": 0})
    algorithm = built(scripted)
    with pytest.raises(RuntimeError, match=r"failed 3 times in a row; \d questions are missing. Last cause"):
        algorithm.train()


def test_an_engine_that_dies_in_mid_tree_is_replaced_and_its_questions_are_asked_again(scripted, caplog, built):
    """Every engine dies at its 14th step, after some questions have ended and while others are under way."""
    scripted.language_model(engine_kwargs={**scripted.engine_kwargs, "fail_at_step": 14})
    scripted.env_runners(num_env_runners=1, num_envs_per_env_runner=2).training(questions_per_batch=6)
    algorithm = built(scripted)
    assert questions(algorithm) == [f"q{i}" for i in range(6)]
    assert "engine died at step 14" in caplog.text


def test_restoring_another_checkpoint_of_the_same_age_reaches_the_engine_and_a_damaged_one_none(scripted, tmp_path):
    one = scripted.build_algo()
    one.train()
    path = one.save_to_path(str(tmp_path / "one"))
    expected = learner_weights(one)
    one.stop()
    other = scripted.copy(copy_frozen=False).training(lr=0.05).build_algo()
    other.train()
    assert other._weight_version == 1
    other.restore_from_path(path)
    engine = other.env_runner_group.local_env_runner.engine
    for name, value in expected.items():
        np.testing.assert_array_equal(engine.weights[name], value)
    for name in ("algorithm_state.pkl", "learner_group/learner/state.pkl", "checksums.json"):
        saved = (tmp_path / "one" / name).read_bytes()
        (tmp_path / "one" / name).write_bytes(bytes([saved[0] ^ 1]) + saved[1:])
        with pytest.raises(ValueError, match=r"is (not the file that was saved|missing)"):
            other.restore_from_path(path)
        (tmp_path / "one" / name).write_bytes(saved)
    for name, value in expected.items():
        np.testing.assert_array_equal(learner_weights(other)[name], value)
    other.stop()


def call_then_answer(request: GenerationRequest, times_asked: int) -> ScriptedReply:
    """A tool call, then one answer or another, of which the policy is less sure than of the call."""
    if 50 not in request.prompt_token_ids:  # The tool's response begins with it.
        return ScriptedReply([7, TOOL], entropies=[0.1, 0.5])
    return ScriptedReply([8 + times_asked, ANSWER], entropies=[2.0, 0.3])


@pytest.mark.parametrize(
    ("config_class", "forks"),
    [(GRPOConfig, 0), (DAPOConfig, 0), (ReinforcePlusPlusConfig, 0), (AEPOConfig, 2), (TreeGRPOConfig, 2)],
)
def test_other_algorithms_train(built, scripted, model_folder, config_class, forks):
    config = small_config(model_folder, config=config_class(), vocab_size=256, script=call_then_answer)
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).training(questions_per_minibatch=1)
    config.overlong_buffer_tokens = config.overlong_buffer_tokens and 20
    algorithm = built(config)
    before = learner_weights(algorithm)
    result = algorithm.train()
    assert result["env_runners"]["forks_per_question"] == forks
    assert any(not np.array_equal(before[name], value) for name, value in learner_weights(algorithm).items())


def test_what_has_no_signal_after_the_last_round_is_left_out(built, scripted):
    """Question 2 alone has rewards that differ: 2 and 3 replace 0 and 1, and then 4, without signal, replaces 3."""
    algorithm = built(scripted.training(max_resample_rounds=2))
    take, update = algorithm._stream.take, algorithm._update
    trained = []

    def with_reward(sampled, reward):
        trajectories = [make_trajectory(str(i), [make_turn([5])], reward=[reward, 0.0][i]) for i in range(2)]
        tree = make_tree([1], trajectories, sampled.tree.question_id)
        return replace(sampled, episode=TreeEpisode(tree))

    algorithm._stream.take = lambda n, conditions: [with_reward(s, float(s.number == 2)) for s in take(n, conditions)]
    algorithm._update = lambda batch: (trained.append([s.number for s in batch]), update(batch))
    result = algorithm.train()
    assert trained == [[2]]
    assert result["env_runners"]["resample_rounds"] == 2
    assert result["env_runners"]["questions_dropped"] == 1
    assert result["learners"]["default_policy"]["num_questions_trained"] == 1


def test_groups_without_signal_are_replaced_by_new_questions(built, scripted):
    """DAPO: questions 0 and 1 give no signal, so the next ones are asked, two rounds at most."""
    scripted.environment(env_config={"rewards": {"0": 0.0}}).training(max_resample_rounds=2)
    algorithm = built(scripted)
    asked = []
    ask = algorithm._dispatcher.ask
    algorithm._dispatcher.ask = lambda refs: (asked.append([ref.number for ref in refs]), ask(refs))
    result = algorithm.train()
    assert asked == [[0, 1], [2, 3], [4, 5]]
    assert result["env_runners"]["resample_rounds"] == 2
    # None at all has a signal: the batch is kept.
    assert result["env_runners"]["questions_dropped"] == 0
    assert result["learners"]["default_policy"]["groups_without_signal"] == 2
