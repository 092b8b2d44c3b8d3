"""The options of `ARPOConfig.language_model`."""

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.engine import ENGINES
from rllib_arpo.options.option import Need, Option, Reader
from rllib_arpo.options.rules import Rule, a_dict, at_least, name_in, one_of, optional
from rllib_arpo.weights import WEIGHT_SYNCS

MODEL = Rule("the id or the folder of a model", lambda value: isinstance(value, str) and value != "", "str")


def _engines_have_gpus(config: AlgorithmConfig) -> bool:
    in_learner_process = config.num_env_runners == 0 and config.num_gpus_per_learner > 0
    return config.num_gpus_per_env_runner > 0 or in_learner_process


LANGUAGE_MODEL = {
    "model_name_or_path": Option(
        None, "a Hugging Face id or folder of a causal language model. Required.", MODEL, Reader.ENV_RUNNER
    ),
    "dtype": Option(
        "bfloat16",
        "compute dtype of engine and learner; the learner's master weights are fp32.",
        one_of("bfloat16", "float16", "float32", "float64"),
        Reader.ENV_RUNNER,
        needs=(
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
    ),
    "max_context_tokens": Option(
        4096, "the most tokens that prompt and response may have together.", at_least(1), Reader.ENV_RUNNER
    ),
    "engine": Option(
        "vllm",
        '"vllm", or "scripted", which has no model and calls the tools at random.',
        name_in(ENGINES),
        Reader.ENV_RUNNER,
    ),
    "engine_kwargs": Option(
        {}, "further arguments of the engine; for vLLM: its `EngineArgs`.", a_dict(), Reader.ENV_RUNNER
    ),
    "engine_num_threads": Option(
        None,
        "CPU threads of the engine; None takes what Ray allots to the env runner.",
        optional(at_least(1)),
        Reader.ENV_RUNNER,
    ),
    "weight_sync": Option(
        "auto",
        "how engines get the learner's weights: \"in_process_reload\" sends arrays (through Ray's object store "
        'between processes), "nccl" and "ipc" are vLLM\'s transfers between separate GPUs and on a shared one, and'
        ' "auto" takes "ipc" or "nccl" where they work, otherwise arrays.',
        name_in(WEIGHT_SYNCS),
        Reader.SHARED,
    ),
    "sleep_level": Option(
        0,
        "whether an engine that shares its GPU with the learner frees its memory during updates: 0: never; 1: "
        "yes, with its weights kept in the CPU's memory; 2: yes, without keeping them, since new ones follow.",
        one_of(0, 1, 2),
        Reader.SHARED,
        needs=(
            Need(
                "the engines have no GPU to share; set num_gpus_per_env_runner",
                lambda c: not c.sleep_level or c.engine != "vllm" or _engines_have_gpus(c),
                {"sleep_level": 1},
            ),
            Need(
                "with max_weight_lag the engines go on during the update",
                lambda c: not (c.sleep_level and c.max_weight_lag),
                {"sleep_level": 2, "max_weight_lag": 1, "num_env_runners": 1, "num_gpus_per_env_runner": 1},
            ),
        ),
    ),
    "lora": Option(
        None,
        'None trains all weights. A dict of keywords of `peft.LoraConfig`, such as {"r": 8, "lora_alpha": 16, '
        '"target_modules": "all-linear"}, trains only an adapter, which is all that is sent and saved. The frozen'
        " base is held in `dtype`, and is the reference of the KL.",
        optional(a_dict("a dict of keywords of peft.LoraConfig")),
        Reader.SHARED,
    ),
}
