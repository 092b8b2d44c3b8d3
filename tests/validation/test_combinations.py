"""Keys that must fit together: those of the tree, of overlap, of the update, of engines and learners."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest
import ray
from packaging.version import Version

from rllib_arpo.core.branching import BRANCHING_RULES, BranchingRule
from rllib_arpo.engine.vllm_versions import vllm_version
from tests.helpers.configs import small_config
from tests.helpers.models import tiny_model
from tests.validation.sentences import message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_rollouts": 1}, "num_initial_rollouts=2: must not exceed num_rollouts=1."),
        (
            {"branching": "random"},
            "random_fork_probability=None: branching='random' needs a probability; it has no default.",
        ),
        (
            {"branch_width": "wide", "pre_monitoring_sensitivity": 1.0},
            "branch_width='wide': not with pre_monitoring_sensitivity, whose N differs between questions.",
        ),
        ({"max_weight_lag": 1}, "max_weight_lag=1: needs num_env_runners >= 1."),
        (
            {"max_weight_lag": 1, "num_env_runners": 1, "deterministic": True},
            "deterministic=True: with max_weight_lag=1 new weights arrive in the middle of trajectories, so that "
            "trees depend on timing.",
        ),
        (
            {"baseline": "tree", "branching": "never"},
            "baseline='tree': with branching='never' a tree has one leaf; use 'group', which is the same.",
        ),
        (
            {"baseline": "node_values", "returns": "to_go"},
            "returns='to_go': not with baseline='node_values'; use 'group' or 'batch'.",
        ),
        (
            {"baseline": "value", "max_tool_calls": 0},
            "baseline='value': max_tool_calls=0 leaves only prompts, whose values are the means of their groups.",
        ),
        (
            {"baseline": "value", "max_resample_rounds": 1},
            "baseline='value': not with max_resample_rounds, which takes equal returns for no signal.",
        ),
        ({"value_decay": 0.5}, "value_decay=0.5: belongs to baseline='value', not to 'group'."),
        (
            {"entropy_advantage_coeff": 0.2},
            "entropy_advantage_coeff=0.2: needs record_entropies='all', the entropy of every token.",
        ),
        (
            {"keep_clipped_gradient": True},
            "keep_clipped_gradient=True: an update of a single step clips nothing; set a questions_per_minibatch "
            "below questions_per_batch, or num_epochs > 1.",
        ),
        (
            {"entropy_baseline_quantile": 0.5},
            "entropy_baseline_quantile=0.5: belongs to entropy_baseline='running', not to 'initial'.",
        ),
        (
            {"entropy_baseline_questions": 9},
            "entropy_baseline_questions=9: needs entropy_baseline='running', branch_threshold='auto', "
            "branch_width='planned', a rollout_budget or a pre_monitoring_sensitivity.",
        ),
        (
            {"branch_threshold": "auto", "entropy_baseline": "running"},
            "branch_threshold='auto': entropy_baseline='running' moves already; set its entropy_baseline_quantile.",
        ),
        (
            {"branch_threshold": "auto", "branching": "probability"},
            "branch_threshold='auto': belongs to branching='threshold', not to 'probability'.",
        ),
        (
            {"branch_width": "planned", "pre_monitoring_sensitivity": 1.0},
            "branch_width='planned': not with pre_monitoring_sensitivity, whose N differs between questions.",
        ),
        (
            {"branch_width": "planned", "branching": "probability"},
            "branch_width='planned': branching='probability' draws each child by itself, whatever their number.",
        ),
        (
            {"branch_width": "planned", "branching": "never"},
            "branch_width='planned': branching='never' forks nothing.",
        ),
        (
            {"branch_width": "planned", "num_initial_rollouts": 1},
            "branch_width='planned': compares paths from the prompt, and num_initial_rollouts=1 has none to compare.",
        ),
        ({"branch_share": 0.3}, "branch_share=0.3: belongs to branch_threshold='auto'."),
        (
            {"rollout_budget": {"tool_calls": 9}, "branch_width": "wide"},
            "branch_width='wide': shares M among the first forks; with a rollout_budget give a number.",
        ),
        (
            {"rollout_budget": {"tool_calls": 9}, "pre_monitoring_sensitivity": 1.0},
            "rollout_budget: not with pre_monitoring_sensitivity, which chooses N by M.",
        ),
        (
            {"rollout_budget": {"tool_calls": 9}, "max_tool_calls": 0},
            "rollout_budget={'tool_calls': 9}: max_tool_calls=0 lets nobody spend it.",
        ),
        (
            {"entropy_baseline": "running", "branching": "always"},
            "entropy_baseline='running': branching='always' does not look at the entropy.",
        ),
        (
            {"consecutive_fork_penalty": 0.1, "branching": "random", "random_fork_probability": 0.5},
            "consecutive_fork_penalty=0.1: branching='random' has no P.",
        ),
        (
            {"branching": "random", "random_fork_probability": 0.5, "budget_allocation": "ranked"},
            "budget_allocation='ranked': branching='random' must ignore the entropy.",
        ),
        (
            {"max_tokens_per_pass": 500},
            "max_tokens_per_pass=500: must be at least max_context_tokens=1024, so that one trajectory fits into a "
            "pass.",
        ),
        ({"max_response_tokens": 2000}, "max_response_tokens=2000: must not exceed max_context_tokens=1024."),
        (
            {"kl_in_reward": True, "kl_coeff": 0.1},
            "kl_in_reward=True: needs branching='never', since a reward-to-go differs between siblings.",
        ),
        ({"kl_in_reward": True, "branching": "never"}, "kl_in_reward=True: needs a kl_coeff > 0."),
        (
            {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked_over_tree"},
            "consecutive_fork_penalty=0.1: with budget_allocation='ranked_over_tree' a node may be decided before "
            "those above it.",
        ),
        (
            {"random_fork_probability": 0.0, "branching": "always"},
            "random_fork_probability=0.0: belongs to branching='random', not to 'always'.",
        ),
        (
            {"dtype": "float16"},
            "dtype='float16': gradients would underflow, since the loss is not scaled; use 'bfloat16'.",
        ),
        (
            {"optimizer_offload": True},
            "optimizer_offload=True: the learners have no GPU; set num_gpus_per_learner.",
        ),
        (
            {"num_learners": 2, "num_gpus_per_learner": 0.5},
            "num_gpus_per_learner=0.5: Ray may put several of the 2 learners on one GPU, which NCCL refuses; use "
            "num_learners=0, or more than 0.5.",
        ),
        (
            {"sharding": "fsdp2", "num_learners": 1},
            "sharding='fsdp2': needs learners to share the model, num_learners >= 2 and not 1.",
        ),
        ({"weight_sync": "ipc"}, "weight_sync='ipc': needs engine='vllm', not 'scripted'."),
        (
            {"weight_sync": "ipc", "engine": "vllm"},
            "weight_sync='ipc': needs engines in other processes than the learner's, num_env_runners >= 1.",
        ),
        (
            {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1, "max_weight_lag": 1},
            "weight_sync='nccl': needs idle engines; with max_weight_lag use 'in_process_reload'.",
        ),
        (
            {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 1},
            "weight_sync='nccl': needs separate GPUs, at least one each, not num_gpus_per_learner=0 and "
            "num_gpus_per_env_runner=1.",
        ),
        (
            {"weight_sync": "ipc", "engine": "vllm", "num_env_runners": 1, "num_gpus_per_env_runner": 0.5},
            "weight_sync='ipc': needs a GPU that is shared, fractions of one, not num_gpus_per_learner=0 and "
            "num_gpus_per_env_runner=0.5.",
        ),
        (
            {
                "weight_sync": "ipc",
                "engine": "vllm",
                "num_env_runners": 2,
                "num_gpus_per_env_runner": 0.4,
                "num_gpus_per_learner": 0.5,
            },
            "weight_sync='ipc': needs learner and engines on one GPU, and 2 engines have no room: "
            "num_gpus_per_learner=0.5 and num_gpus_per_env_runner=0.4.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"pipeline_parallel_size": 2}},
            "engine_kwargs['pipeline_parallel_size']=2: a tree is forked between two tokens, and pipeline stages work "
            "on several steps at once; use tensor_parallel_size.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"enable_return_routed_experts": True}},
            "engine_kwargs['enable_return_routed_experts']=True: the learner chooses the experts of a token by itself, "
            "whatever the engine chose.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"skip_tokenizer_init": True}},
            "engine_kwargs['skip_tokenizer_init']=True: stop strings are found with the tokenizer.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"disable_log_stats": False}},
            "engine_kwargs['disable_log_stats']=False: the engine does not write vLLM's statistics.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 2}, "num_gpus_per_env_runner": 1},
            "engine_kwargs['tensor_parallel_size']=2: needs as many GPUs in every env runner, and "
            "num_gpus_per_env_runner=1.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"tensor_parallel_size": 1.5}},
            "engine_kwargs['tensor_parallel_size']=1.5: must be an integer >= 1.",
        ),
        (
            {"engine": "vllm", "engine_kwargs": {"logprobs_mode": "raw_logits"}},
            "engine_kwargs may not set 'logprobs_mode': it follows from the configuration.",
        ),
        (
            {"engine": "vllm", "sleep_level": 1},
            "sleep_level=1: the engines have no GPU to share; set num_gpus_per_env_runner.",
        ),
        (
            {"sleep_level": 2, "max_weight_lag": 1, "num_env_runners": 1},
            "sleep_level=2: with max_weight_lag the engines go on during the update.",
        ),
        (
            {"engine_kwargs": {"top_p": 0.9}},
            "engine_kwargs['top_p']: training samples from the whole distribution, without top_p.",
        ),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    assert message(small_config(model_folder).update_from_dict(changes)) == expected


def test_what_belongs_to_a_rule_follows_from_the_registry(model_folder, monkeypatch):
    rule = BranchingRule(lambda node, params, rng: 0, "at some nodes", options=("random_fork_probability",))
    monkeypatch.setitem(BRANCHING_RULES, "own", rule)
    changes = {"branching": "own", "random_fork_probability": 0.5, "budget_allocation": "ranked"}
    for other, expected in (
        ({}, "budget_allocation='ranked': branching='own' must ignore the entropy."),
        (
            {"random_fork_probability": None},
            "random_fork_probability=None: branching='own' needs a probability; it has no default.",
        ),
        (
            {"branching": "always"},
            "random_fork_probability=0.5: belongs to branching='random' or 'own', not to 'always'.",
        ),
    ):
        assert message(small_config(model_folder).update_from_dict(changes | other)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked"},
        {"random_fork_probability": 0.3, "branching": "random", "budget_allocation": "random_over_tree"},
        # "never" switches all of it off, for baselines.
        {"random_fork_probability": 0.3, "branching": "never"},
    ],
)
def test_what_belongs_together_is_valid(model_folder, changes):
    small_config(model_folder).update_from_dict(changes).validate()
    assert not ray.is_initialized()


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_learners_that_share_the_model_may_send_it(model_folder, unknown_cluster, sharding):
    small_config(model_folder).update_from_dict(
        {
            "sharding": sharding,
            "num_learners": 2,
            "num_gpus_per_learner": 1,
            "weight_sync": "nccl",
            "engine": "vllm",
            "num_env_runners": 1,
            "num_gpus_per_env_runner": 1,
        }
    ).validate()


def test_the_weight_transfer_of_an_older_vllm_is_refused(model_folder, monkeypatch):
    changes = {"weight_sync": "nccl", "engine": "vllm", "num_env_runners": 1}
    config = small_config(model_folder).update_from_dict(
        {**changes, "num_gpus_per_learner": 1, "num_gpus_per_env_runner": 1}
    )
    assert vllm_version() >= Version("0.32")
    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", lambda build: {"vllm": "0.26.0"}[build])
    assert message(config) == (
        "weight_sync='nccl': needs vLLM 0.32 or newer, and 0.26.0 is installed; use 'in_process_reload'."
    )


def test_an_older_vllm_may_not_start_a_step_ahead(model_folder, monkeypatch):
    def config(ahead):
        return small_config(model_folder, engine="vllm", async_scheduling=ahead)

    for ahead in (True, False, None):
        config(ahead).validate()
    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", lambda build: {"vllm": "0.26.0"}[build])
    config(False).validate()
    for ahead in (True, None):
        assert message(config(ahead)) == (
            f"engine_kwargs['async_scheduling']={ahead}: needs vLLM 0.32 or newer, and 0.26.0 is installed."
        )


def test_a_mixture_of_experts_needs_a_newer_vllm(tmp_path, monkeypatch):
    folder = tiny_model(tmp_path, "qwen3_moe")
    for engine in ("vllm", "scripted"):
        small_config(folder, engine=engine).validate()
    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", lambda build: {"vllm": "0.26.0"}[build])
    assert message(small_config(folder, engine="vllm")) == (
        f"model_name_or_path={folder!r}: a mixture of 4 experts needs vLLM 0.32 or newer, and 0.26.0 is installed."
    )


def test_a_driver_without_vllm_leaves_its_version_to_the_engines(monkeypatch):
    def missing(build: str) -> str:
        raise PackageNotFoundError(build)

    monkeypatch.setattr("rllib_arpo.engine.vllm_versions.version", missing)
    assert vllm_version() is None
