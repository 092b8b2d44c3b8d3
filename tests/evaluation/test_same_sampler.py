"""The evaluation asks as training's env runner does."""

import rllib_arpo
from rllib_arpo.commands import run_command
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.messages import Purpose, question_refs
from tests.evaluation.conftest import REPLIES, recorded, scripted_command
from tests.helpers.configs import small_config
from tests.helpers.models import byte_tokenizer


def test_the_samples_are_those_of_an_env_runner(model_folder, tmp_path):
    rllib_arpo.register()
    tokenizer = byte_tokenizer()
    replies = [tokenizer.encode(reply, add_special_tokens=False) for reply in REPLIES]
    config = small_config(model_folder, vocab_size=259, replies=replies)
    config.adaptive_rollout(
        num_rollouts=3, num_initial_rollouts=3, branching="never", deterministic=True, max_response_tokens=300
    )
    config.adaptive_rollout(max_turn_tokens=100, max_tool_calls=2)
    config.evaluation(evaluation_config={"explore": True, "env_config": {"split": "test", "num_test_questions": 12}})
    runner = ARPOEnvRunner(config)
    sampled = runner.sample_questions(question_refs(range(5), Purpose.EVALUATION))
    runner.drop_questions()

    options = {"samples": "3", "limit": "5", "max_response_tokens": "300", "max_turn_tokens": "100"}
    command = scripted_command(model_folder, tmp_path, **options, max_tool_calls="2", max_context_tokens="1024")
    assert run_command("evaluate", [*command]) == 0
    found = [answers(question.tree) for question in recorded(tmp_path)]
    assert found == [answers(question.tree) for question in sampled]
    assert len({str(answer) for question in found for answer in question}) > 3


def answers(tree: QuestionTree) -> list[tuple]:
    """Every sample with its tokens and those that it read, and its scores."""
    return [
        (
            tree.question_id, leaf.agent_id, leaf.accuracy, leaf.format_valid, leaf.stop_reason, reward,
            [(turn.token_ids.tolist(), turn.observation.tolist()) for turn in leaf.turns],
        )
        for leaf, reward in zip(tree.trajectories, tree.returns().tolist(), strict=True)
    ]  # fmt: skip
