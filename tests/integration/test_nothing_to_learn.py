"""A run that cannot learn, or hardly chooses, says so; and what an environment must not return names it."""

import pytest

from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER, TOOL, ScriptedEnv


class Broken(FaultyEnv):
    """Its tools and its scorer raise."""

    async def step_agent(self, agent_id, token_ids):
        raise OSError("no server")


class Even(FaultyEnv):
    """Pays nothing to anybody."""

    async def step_agent(self, agent_id, token_ids):
        observation, _, *end = await super().step_agent(agent_id, token_ids)
        return observation, 0.0, *end


class StrangeWords(ScriptedEnv):
    """Its prompt has a token that the model does not have."""

    def prompt(self):
        return [*super().prompt(), 259]


@pytest.mark.parametrize("what", ["train", "evaluate"])
def test_a_run_in_which_most_trajectories_end_in_an_error_ends(built, scripted, what):
    algorithm = built(scripted.environment(Broken))
    sentence = (
        r"^100% of the trajectories ended in an error \(max_error_share=0\.5\), for example: .*OSError: no server"
    )
    with pytest.raises(RuntimeError, match=sentence):
        getattr(algorithm, what)()


def test_a_run_without_a_signal_warns_and_ends(built, scripted, caplog):
    algorithm = built(scripted.environment(Even).training(max_iterations_without_signal=4))
    for _ in range(3):
        algorithm.train()
    assert [m.partition(":")[0] for m in caplog.messages if "differ" in m] == [
        "No question of the first batch has returns that differ, so that nothing is learned",
        "No question has rewards that differ, for 3 iterations in a row",
    ]
    with pytest.raises(RuntimeError, match=r"^No question has rewards that differ, for 4 iterations in a row"):
        algorithm.train()


@pytest.mark.parametrize(("threshold", "warnings"), [(-10.0, 1), (10.0, 0)])
def test_a_threshold_that_hardly_chooses_warns_once(built, scripted, caplog, threshold, warnings):
    scripted.language_model(engine_kwargs={"vocab_size": 256, "replies": [[7, TOOL], [8, 9, TOOL], [7, ANSWER]]})
    algorithm = built(scripted.adaptive_rollout(branch_threshold=threshold))
    for _ in range(3):
        algorithm.train()
    assert sum("of the tool responses fork (fork_rate)" in message for message in caplog.messages) == warnings


@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_a_token_that_the_model_lacks_names_the_environment(built, scripted, num_env_runners):
    algorithm = built(scripted.environment(StrangeWords).env_runners(num_env_runners=num_env_runners))
    sentence = r"^StrangeWords, question \d, an observation has the token id 259; the model has 0 to 258\.$"
    with pytest.raises(ValueError, match=sentence):
        algorithm.train()
