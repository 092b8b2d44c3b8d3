"""The text part of published Qwen3.5 models in vLLM, whose own class for text stops at the weights of the vision part.

vLLM calls `register` in each of its processes, since it is an entry point of the group `vllm.general_plugins`.
"""

from vllm import ModelRegistry


def register() -> None:
    for name in ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"):
        ModelRegistry.register_model(name, f"rllib_arpo.engine.vllm.qwen3_5:{name}")
