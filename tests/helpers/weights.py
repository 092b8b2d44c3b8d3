"""Compares what the engines of an algorithm compute with the learner's weights in a plain Hugging Face model."""

from pathlib import Path

import numpy as np
import torch

LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
#: Within a checkpoint: the folder of the module.
MODULE = Path("learner_group/learner/rl_module/default_policy")
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 256, 40)]


def weights_of(folder: str) -> dict[str, np.ndarray]:
    """All weights of a Hugging Face model, tied ones included."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: weight.numpy() for name, weight in model.state_dict().items()}


def load(folder) -> torch.nn.Module:
    """A Hugging Face model, in the type in which it was saved."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


def move_adapter(learner, seed: int = 1) -> None:
    """Gives the LoRA adapter of a learner random weights: the one of the start has no effect."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for tensor in learner.module["default_policy"]._adapter.tensors().values():
            tensor.normal_(std=0.1)
    learner._weight_version += 1


def peft_model(base, lora: dict, adapter: dict[str, np.ndarray]):
    """`base` with the adapter, by PEFT alone."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **lora))
    set_peft_model_state_dict(model, {name: torch.tensor(array) for name, array in adapter.items()})
    return model


def learner_weights(algorithm) -> dict[str, np.ndarray]:
    state = algorithm.learner_group.get_state(components="learner/rl_module")
    return state["learner"]["rl_module"]["default_policy"]


def log_probs(model: torch.nn.Module) -> np.ndarray:
    """Of `TOKENS[1:]`, by `transformers` alone."""
    with torch.no_grad():
        logits = model.float().eval()(torch.tensor([TOKENS])).logits[0, :-1]
    return logits.log_softmax(-1)[torch.arange(len(TOKENS) - 1), TOKENS[1:]].numpy()


def learner_log_probs(algorithm) -> np.ndarray:
    """The same under the learner's weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(algorithm.config.model_name_or_path))
    model.load_state_dict({k: torch.as_tensor(np.asarray(v)) for k, v in learner_weights(algorithm).items()})
    return log_probs(model)


def engine_log_probs(algorithm, group=None) -> list[np.ndarray]:
    """The same from every engine of a group of env runners (default: the training ones)."""
    group = group or algorithm.env_runner_group
    return group.foreach_env_runner(
        lambda runner: runner._call_engine("score", TOKENS), local_env_runner=group.num_remote_env_runners() == 0
    )


def set_learner_weights(algorithm, value: float) -> None:
    """Fills every parameter of every learner; the engines get them with the next push."""

    def fill(learner) -> None:
        for parameter in learner.module["default_policy"].parameters():
            parameter.data.fill_(value)
        learner._weight_version += 1

    algorithm.learner_group.foreach_learner(fill)
