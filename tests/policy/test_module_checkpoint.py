"""What was trained is written first, whatever else of a model cannot be."""

import json
import pickle

import msgpack
import pyarrow.fs
import pytest

from rllib_arpo.policy import module_checkpoint
from rllib_arpo.policy.module_checkpoint import ADAPTER, HUGGINGFACE, MODULE, export_model, read_state, write_model
from tests.helpers.models import tiny_model


def test_a_contradictory_generation_configuration_costs_no_model(tmp_path, monkeypatch):
    """Checkpoints have it as it is, and are exported, whatever `save_pretrained` would say of it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = tiny_model(tmp_path / "model")
    contradictory = {"do_sample": False, "temperature": 0.6, "eos_token_id": [258, 256]}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(contradictory))
    monkeypatch.setattr(module_checkpoint, "check_all_files", lambda _folder: None)
    whole, adapted = tmp_path / "whole" / MODULE / HUGGINGFACE, tmp_path / "lora" / MODULE / ADAPTER
    causal_lm = AutoModelForCausalLM.from_pretrained(model)
    write_model(whole, {name: one.numpy() for name, one in causal_lm.state_dict().items()}, model)
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    get_peft_model(causal_lm, lora).save_pretrained(adapted)
    for checkpoint in ("whole", "lora"):
        export_model(tmp_path / checkpoint, tmp_path / "out" / checkpoint)
        written = json.loads((tmp_path / "out" / checkpoint / "generation_config.json").read_text())
        assert {key: written[key] for key in contradictory} == contradictory
        assert (tmp_path / "out" / checkpoint / "model.safetensors").is_file()


@pytest.mark.parametrize(("ending", "dumps"), [("pkl", pickle.dumps), ("msgpack", msgpack.packb)])
def test_states_of_both_formats_are_read_from_any_storage(ending, dumps, monkeypatch):
    monkeypatch.setattr(module_checkpoint, "try_import_msgpack", lambda error: msgpack)  # msgpack_numpy is optional.
    storage = pyarrow.fs._MockFileSystem()
    storage.create_dir("learner")
    with storage.open_output_stream(f"learner/state.{ending}") as stream:
        stream.write(dumps({"steps": {1: 2}}))
    assert read_state("learner", storage) == {"steps": {1: 2}}
