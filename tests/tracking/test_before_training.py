"""The evaluation before training."""

from unittest.mock import MagicMock

import pytest

from rllib_arpo.arpo import ARPO
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining


@pytest.mark.parametrize(("num_updates", "evaluated"), [(0, ["evaluation  accuracy 0.250"]), (500, [])])
def test_a_model_is_evaluated_before_its_first_update_and_not_where_a_run_goes_on(num_updates, evaluated):
    algorithm = MagicMock(evaluates_first=False)
    algorithm.evaluate.return_value = {"env_runners": {"accuracy": 0.25}}
    EvaluateBeforeTraining().on_algorithm_init(algorithm=algorithm)
    algorithm.evaluate.assert_not_called()
    algorithm._num_updates = num_updates  # As a checkpoint restores it, after the callback.
    algorithm._sample_batch.side_effect = lambda: said.extend(algorithm.messages.add.call_args_list)
    said = []
    ARPO.training_step(algorithm)
    algorithm._update.assert_called_once()
    assert [line.partition("  format")[0] for (line,), _ in said] == evaluated
