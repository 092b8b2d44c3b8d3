"""What users log on the driver stands beside ARPO's metrics, and never among them."""

import pytest

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.rollout.metric_table import OWN_NAMES
from rllib_arpo.tracking.shared_metrics import RESERVED, SharedMetrics

TAKEN = [*((name,) for name in sorted(RESERVED)), *(("env_runners", name) for name in sorted(OWN_NAMES))]


@pytest.mark.parametrize("key", [*TAKEN, ("env_runners",), ("learners", "default_policy", "mine"), "env_runners/stop"])
def test_a_name_of_arpos_is_refused_while_the_users_code_runs(key):
    metrics = SharedMetrics(root=True)
    name = key if isinstance(key, str) else "/".join(key)
    sentence = f"^A callback, on_train_result, logs under '{name}', a name of ARPO's own metrics: choose another name.$"
    for log in (lambda: metrics.log_value(key, 100.0), lambda: metrics.log_time(key)):
        with metrics.of_user("A callback, on_train_result,"), pytest.raises(ContractError, match=sentence):
            log()
    assert metrics.stats == {}
    metrics.log_value(key, 1.0, reduce="sum")
    assert metrics.peek(key) == 1.0


def test_other_names_are_kept():
    metrics = SharedMetrics(root=True)
    with metrics.of_user("learner_connector"), metrics.of_user("A callback, on_evaluate_end,"):
        metrics.log_dict({"env_runners": {"mine": 1.0}, "mine": {"entropy": 2.0}}, reduce="sum")
    assert metrics.reduce(compile=True) == {"env_runners": {"mine": 1.0}, "mine": {"entropy": 2.0}}
