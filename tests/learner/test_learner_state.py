"""What a learner saves and restores, and when its weights count as other ones."""

from pathlib import Path

import pytest
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rllib_arpo.policy.llm_rl_module import LLMRLModule
from tests.helpers.damage import flip_a_bit
from tests.learner.builders import build_learner, causal_lm, make_batch, make_config


@pytest.mark.parametrize("pattern", ["state.pkl", "**/*.safetensors", "checksums.json"])
def test_a_flipped_bit_is_not_restored(model, tmp_path, pattern):
    learner = build_learner(make_config(model))
    path = learner.save_to_path(tmp_path / "state")
    before = learner.weight_version
    learner.restore_from_path(path)
    assert learner.weight_version == before + 1
    [file] = Path(path).glob(pattern)
    flip_a_bit(file)
    with pytest.raises(ValueError, match=f"^{path}/.* is (not the file that was saved|missing)"):
        learner.restore_from_path(path)
    Path(path, "checksums.json").unlink()
    with pytest.raises(ValueError, match=f"^{path}/checksums.json is missing: {path} is not a whole checkpoint"):
        learner.restore_from_path(path)
    assert learner.weight_version == before + 1


def test_the_configurations_settings_of_adam_win_over_those_of_a_restored_state(model, questions):
    old = make_config(model, adam_betas=(0.5, 0.6), weight_decay=0.3)
    first = build_learner(old)
    first.update(make_batch(old, questions[:2]))
    second = build_learner(make_config(model, adam_betas=(0.8, 0.9), weight_decay=0.1))
    second.set_state(first.get_state())
    [group] = second.get_optimizer(DEFAULT_MODULE_ID).param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.9), 0.1)
    moments = [state["exp_avg"] for state in second.get_optimizer(DEFAULT_MODULE_ID).state.values()]
    assert any(moment.any() for moment in moments)


class WithHead(LLMRLModule):
    """A user's module with one more layer."""

    def setup(self):
        super().setup()
        self.head = torch.nn.Linear(2, 2)
        self.head.bias.requires_grad_(False)


class WithFrozenHead(WithHead):
    def setup(self):
        super().setup()
        self.head.requires_grad_(False)


@pytest.mark.parametrize(("lora", "part"), [(None, "`causal_lm`"), ({"r": 2}, "the LoRA adapter")])
def test_a_trained_parameter_that_no_checkpoint_has_is_refused(model, lora, part):
    config = make_config(model).language_model(lora=lora)
    config.rl_module(rl_module_spec=RLModuleSpec(WithHead))
    with pytest.raises(ValueError, match=rf"^WithHead: trains 'head.weight' \(1 such parameters\).*weights of {part}:"):
        build_learner(config)
    config.rl_module(rl_module_spec=RLModuleSpec(WithFrozenHead))
    assert isinstance(build_learner(config).module[DEFAULT_MODULE_ID], WithFrozenHead)


def test_each_change_of_the_weights_makes_one_new_version(model, questions):
    config = make_config(model)
    learner = build_learner(config)
    assert learner.weight_version == learner.weight_version == 0
    learner.update(make_batch(config, questions[:2]))
    assert learner.weight_version == learner.weight_snapshot().version == 1
    with torch.no_grad():
        causal_lm(learner).lm_head.weight.mul_(2.0)
    assert learner.weight_version == learner.weight_version == 2
    module = learner.module[DEFAULT_MODULE_ID]
    module.set_state(module.get_state())
    assert learner.weight_version == 3
