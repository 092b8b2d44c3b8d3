"""What is checked beyond keys: models, data, the cluster."""

import json
from types import SimpleNamespace

import pytest
from ray import tune

from rllib_arpo import ARPO
from rllib_arpo.validation import check_cluster_resources
from tests.helpers.configs import small_config
from tests.helpers.parquet import parquet, row
from tests.validation.refusals import message


@pytest.mark.parametrize(
    ("model_config", "expected"),
    [
        (None, "is neither a folder with a Hugging Face model nor the id of one"),
        ({"model_type": "vit"}, "is not a causal language model: its architecture is not stated."),
        (
            {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
            "is not a causal language model: its architecture is BertForMaskedLM.",
        ),
    ],
)
def test_not_a_causal_language_model(tmp_path, model_config, expected):
    if model_config is not None:
        (tmp_path / "config.json").write_text(json.dumps(model_config))
    assert message(small_config(str(tmp_path))).startswith(f"model_name_or_path={str(tmp_path)!r} {expected}")


def test_a_bad_row_ends_the_run_or_is_skipped_and_counted(ray_cluster, model_folder, tmp_path, caplog, built):
    long = row(question="How much is " + "1 + " * 60 + "1?")
    path = parquet(tmp_path / "holes.parquet", [row(), row(answer=""), long, row()])
    config = small_config(model_folder).training(questions_per_batch=4)
    config.environment("ParquetQuestions-v0", env_config={"path": path, "tools": ["python"], "max_prompt_tokens": 700})
    algorithm = built(config.copy(copy_frozen=False).env_runners(num_env_runners=1))
    with pytest.raises(ValueError, match=r"holes\.parquet.*row [12]"):
        algorithm.train()

    algorithm = built(config.adaptive_rollout(on_bad_row="skip"))
    rollout = algorithm.train()["env_runners"]
    assert (rollout["questions_given_up"], rollout["num_episodes"]) == (2, 2)
    told = [record.getMessage() for record in caplog.records if "given up" in record.getMessage()]
    assert len(told) == 2
    assert any("row 1" in line for line in told)
    assert any("row 2: the prompt has" in line and "more than max_prompt_tokens = 700." in line for line in told)


def test_tune_counts_the_main_process_too(model_folder, ray_cluster):
    config = small_config(model_folder).env_runners(num_env_runners=2, num_cpus_per_env_runner=1)
    config.validate()
    with pytest.raises(ValueError, match="3 CPUs in total"):
        ARPO.default_resource_request(config)


@pytest.fixture
def cluster(monkeypatch):
    """`cluster(nodes)`: their resources are those of the cluster."""

    def has(nodes: list[dict[str, float]]) -> None:
        module = "rllib_arpo.validation.resources"
        monkeypatch.setattr(f"{module}.ray.is_initialized", lambda: True)
        monkeypatch.setattr(f"{module}.ray.nodes", lambda: [{"Alive": True, "Resources": node} for node in nodes])
        monkeypatch.setattr(f"{module}.state.get_cluster_config", lambda: None)

    return has


@pytest.mark.parametrize(("asked", "expected"), [
    ({"custom_resources_per_env_runner": {"fpga": 1}},
     "asks for 2 fpgas in total and the cluster has 0: lower custom_"),
    ({"num_cpus_per_env_runner": 3}, "asks for 6 CPUs in total and the cluster has 4: lower num_cpus_per_"),
    ({"num_cpus_per_env_runner": 2},
     "asks for 2 actors with 2 CPU each, each actor on one node, and the cluster's nodes have room for 1: "
     "lower num_cpus_per_"),
    ({"num_cpus_per_env_runner": 0.5, "custom_resources_per_env_runner": {"disk": 1}},
     "asks for 2 actors with 0.5 CPU and 1 disk each, each actor on one node, and the cluster's nodes have "
     "room for 1: lower num_cpus_per_* (fractions are fine) or custom_resources_per_* or the number of actors."),
    ({"num_cpus_per_env_runner": 1, "evaluation_num_env_runners": 2}, None),
    ({"num_cpus_per_env_runner": 1, "evaluation_num_env_runners": 3}, "asks for 5 CPUs in total"),
])  # fmt: skip
def test_each_actor_must_fit_on_a_node(model_folder, cluster, monkeypatch, asked, expected):
    """Three nodes: of two CPUs, with a disk, of one and of one; the other disk's node has no CPU."""
    cluster([{"CPU": 2, "disk": 1}, {"CPU": 1}, {"CPU": 1}, {"disk": 1}])
    config = small_config(model_folder).env_runners(num_env_runners=2).update_from_dict(asked)
    if expected is None:
        config.validate()
    else:
        assert message(config).startswith(f"The run {expected}")
    # What may grow is not checked: an autoscaler's, and KubeRay's.
    grows = SimpleNamespace(node_group_configs=["four CPUs"])
    with monkeypatch.context() as patch:
        patch.setattr("rllib_arpo.validation.resources.state.get_cluster_config", lambda: grows)
        config.validate()
    monkeypatch.setenv("RAY_CLUSTER_NAME", "mine")
    config.validate()


PAIRS = (
    "to share GPUs in pairs set num_gpus_per_env_runner=0.9 and num_gpus_per_learner=0.1, with at least as many env "
    "runners as learners."
)


@pytest.mark.parametrize(("nodes", "shares", "needed"), [
    ([2], [0.9, 0.9, 0.1, 0.1], None),
    ([2], [0.45, 0.45, 0.55, 0.55], "2 x 0.45, 2 x 0.55 of a GPU, in this order, and needs 3 GPUs for it on a node "
                                    "that has 2"),
    # The first of two nodes has room for three of 0.55 by their sum, and its GPUs for two.
    ([2, 2], [0.55] * 4 + [0.45] * 4, "3 x 0.55 of a GPU, in this order, and needs 3 GPUs for it on a node that has 2"),
    ([0, 8, 8], [0.0] + [0.9] * 16 + [0.1] * 16, None),
    # Tenths whose sum is not 1 in floating point.
    ([1], [0.1] * 10, None),
])  # fmt: skip
def test_shares_must_fit_the_gpus_one_by_one(cluster, nodes, shares, needed):
    cluster([{"CPU": 64, "GPU": number} for number in nodes])
    bundles = [{"CPU": 1, "GPU": share} for share in shares]
    if needed is None:
        check_cluster_resources(bundles)
        return
    with pytest.raises(ValueError) as raised:
        check_cluster_resources(bundles)
    assert str(raised.value) == f"Ray gives out {needed}: {PAIRS}"
    check_cluster_resources(bundles, "SPREAD")


def test_before_ray_starts_this_machine_is_the_limit(monkeypatch):
    """`build_algo` starts Ray here, unless it joins a cluster."""
    module = "rllib_arpo.validation.resources"
    monkeypatch.setattr(f"{module}.ray.is_initialized", lambda: False)
    monkeypatch.setattr(f"{module}.find_bootstrap_address", lambda _: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    bundles = [{"CPU": 1000.0, "GPU": 1000.0}]
    with pytest.raises(ValueError, match=r"1000 GPUs in total,? and this machine has \d+: lower num_gpus_per_"):
        check_cluster_resources(bundles)
    with pytest.raises(ValueError, match=r"1000 CPUs in total,? and this machine has "):
        check_cluster_resources([{"CPU": 1000.0, "GPU": 0}])
    check_cluster_resources([{"CPU": 1.0}])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_cluster_resources(bundles)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(f"{module}.find_bootstrap_address", lambda _: "10.0.0.1:6379")
    with pytest.raises(ValueError, match="1000 GPUs in total"):
        check_cluster_resources(bundles)


@pytest.mark.parametrize("whole", [True, False])
def test_a_trial_of_tune_finds_relative_paths(ray_cluster, model_folder, tmp_path, monkeypatch, whole):
    """It runs in another folder; the configuration is an object, or a dict of its keys."""
    monkeypatch.chdir(tmp_path)
    parquet("rows.parquet", [row(), row()])
    (tmp_path / "tiny.v1").symlink_to(model_folder)
    paths = {"path": "rows.parquet", "tools": ["python"]}
    config = small_config("tiny.v1").environment("ParquetQuestions-v0", env_config=paths)
    config.evaluation(evaluation_config={"env_config": {}})
    keys = config.to_dict() | {"env_config": paths, "model_name_or_path": "tiny.v1"}
    found = tune.Tuner(
        "ARPO",
        param_space=config if whole else keys,
        run_config=tune.RunConfig(storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0),
    ).fit()
    assert not found.errors
