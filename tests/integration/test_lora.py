"""A run with LoRA: engine and learner agree, checkpoints resume, and the model that comes out is an ordinary one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.fs import LocalFileSystem

from rllib_arpo import ARPO
from rllib_arpo.commands import run_command
from rllib_arpo.files import write_checksums
from rllib_arpo.policy.module_checkpoint import export_model, write_model
from tests.helpers.configs import small_config
from tests.helpers.weights import TOKENS, engine_log_probs, learner_weights, move_adapter, peft_model

LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
MODULE = Path("learner_group/learner/rl_module/default_policy")


def log_probs(model) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0, :-1]
    return logits.log_softmax(-1)[torch.arange(len(TOKENS) - 1), TOKENS[1:]].numpy()


def load(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def test_engine_learner_checkpoint_and_exported_models_agree(ray_cluster, model_folder, tmp_path):
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


def test_a_resumed_run_takes_the_same_step(scripted, tmp_path):
    """Of whole models: test_resume_and_faults.py."""
    algorithm = scripted.language_model(lora=LORA).training(kl_coeff=0.1).build_algo()
    start = learner_weights(algorithm)
    algorithm.train()
    checkpoint = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    assert (Path(checkpoint) / MODULE / "adapter").is_dir()
    before = learner_weights(algorithm)
    algorithm.train()
    uninterrupted = learner_weights(algorithm)
    algorithm.save_model(tmp_path / "saved", dtype="bfloat16")
    algorithm.stop()
    assert load(tmp_path / "saved").dtype == torch.bfloat16
    assert any(not np.array_equal(start[name], before[name]) for name in start)
    assert any(not np.array_equal(before[name], uninterrupted[name]) for name in start)

    resumed = ARPO.from_checkpoint(checkpoint)
    for name, value in learner_weights(resumed).items():
        np.testing.assert_array_equal(value, before[name])
    resumed.train()
    for name, value in learner_weights(resumed).items():
        np.testing.assert_allclose(value, uninterrupted[name], rtol=0, atol=1e-7)
    resumed.stop()


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
