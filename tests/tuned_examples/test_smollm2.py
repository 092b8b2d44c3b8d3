"""The embedded model: converted once, faithfully, and safely when several processes ask for it."""

import threading

import pytest

from tuned_examples import smollm2 as models


@pytest.mark.slow
def test_the_converted_model_answers_a_simple_question():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    smollm2 = models.smollm2_135m_instruct()
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.eos_token == "<|im_end|>"
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(prompt["input_ids"][0]).endswith("of France?<|im_end|>\n<|im_start|>assistant\n")

    model = AutoModelForCausalLM.from_pretrained(smollm2)
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


def test_two_conversions_at_once_leave_one_complete_folder(tmp_path, monkeypatch):
    both_have_begun = threading.Barrier(2)

    def convert(gguf, folder):
        both_have_begun.wait(timeout=10)
        (folder / "model.safetensors").write_text("weights")

    monkeypatch.setattr(models, "_convert", convert)
    paths = []
    threads = [
        threading.Thread(target=lambda: paths.append(models.smollm2_135m_instruct(tmp_path / "cache")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = tmp_path / "cache" / "SmolLM2-135M-Instruct-0.1.2"
    assert paths == [str(expected), str(expected)]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["SmolLM2-135M-Instruct-0.1.2"]
    assert (expected / "model.safetensors").read_text() == "weights"


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def convert(gguf, folder):
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(models, "_convert", convert)
    with pytest.raises(OSError, match="disk full"):
        models.smollm2_135m_instruct(tmp_path)
    assert list(tmp_path.iterdir()) == []
