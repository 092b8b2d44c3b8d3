"""Declares the options of `ARPOConfig.language_model`."""

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.engine import ENGINES
from rllib_arpo.options.option import Need, Reader, option
from rllib_arpo.options.rules import Rule, a_dict, at_least, name_in, one_of, optional
from rllib_arpo.weights import WEIGHT_SYNCS

MODEL = Rule("the id or folder of a model", lambda value: isinstance(value, str) and value != "", "str")


def _engines_have_gpus(config: AlgorithmConfig) -> bool:
    in_learner_process = config.num_env_runners == 0 and config.num_gpus_per_learner > 0
    return config.num_gpus_per_env_runner > 0 or in_learner_process


LANGUAGE_MODEL = {
    "model_name_or_path": option(
        None, "Hugging Face id or folder of a causal language model; required.", MODEL, Reader.ENV_RUNNER
    ),
    "dtype": option(
        "bfloat16",
        "engine and learner compute in this dtype; the learner keeps fp32 master weights.",
        one_of("bfloat16", "float16", "float32", "float64"),
        Reader.ENV_RUNNER,
        Need(
            "gradients would underflow, since the loss is not scaled; use 'bfloat16'",
            lambda c: c.in_evaluation or c.dtype != "float16",
            {"dtype": "float16"},
        ),
        Need(
            "vLLM computes in bfloat16, float16 or float32",
            lambda c: c.engine != "vllm" or c.dtype != "float64",
            {"dtype": "float64"},
        ),
    ),
    "max_context_tokens": option(
        4096, "maximum tokens of prompt and response together.", at_least(1), Reader.ENV_RUNNER
    ),
    "engine": option(
        "vllm",
        '"vllm", or "scripted", which has no model and calls the tools at random.',
        name_in(ENGINES),
        Reader.ENV_RUNNER,
    ),
    "engine_kwargs": option({}, "more engine arguments; for vLLM its `EngineArgs`.", a_dict(), Reader.ENV_RUNNER),
    "engine_num_threads": option(
        None,
        "CPU threads of the engine; None: as many as Ray gives the env runner.",
        optional(at_least(1)),
        Reader.ENV_RUNNER,
    ),
    "weight_sync": option(
        "auto",
        'how engines get new weights. "in_process_reload": as arrays; "nccl", "ipc": by vLLM between separate GPUs, or '
        'on a shared one; "auto": by vLLM if that works, otherwise as arrays.',
        name_in(WEIGHT_SYNCS),
        Reader.SHARED,
    ),
    "sleep_level": option(
        0,
        "whether an engine on the learner's GPU frees its memory during updates. 0: no; 1: yes, keeping its weights in "
        "CPU memory; 2: yes, dropping its old weights.",
        one_of(0, 1, 2),
        Reader.SHARED,
        Need(
            "the engines have no GPU to share; set num_gpus_per_env_runner",
            lambda c: not c.sleep_level or c.engine != "vllm" or _engines_have_gpus(c),
            {"sleep_level": 1},
        ),
        Need(
            "with max_weight_lag the engines sample during updates, so they cannot sleep",
            lambda c: not (c.sleep_level and c.max_weight_lag),
            {"sleep_level": 2, "max_weight_lag": 1, "num_env_runners": 1, "num_gpus_per_env_runner": 1},
        ),
    ),
    "lora": option(
        None,
        'None trains all weights. A dict for `peft.LoraConfig`, such as {"r": 8, "lora_alpha": 16, "target_modules": '
        '"all-linear"}, trains an adapter, and only this is sent and saved.',
        optional(a_dict("a dict of peft.LoraConfig keywords")),
        Reader.SHARED,
    ),
}
