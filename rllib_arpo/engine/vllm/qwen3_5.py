"""vLLM's classes for the text of Qwen3.5, which leave out the weights of the vision part."""

from vllm.model_executor.models import qwen3_5
from vllm.model_executor.models.utils import WeightsMapper

NO_VISION = WeightsMapper(orig_to_new_prefix={"model.visual.": None})


class Qwen3_5ForCausalLM(qwen3_5.Qwen3_5ForCausalLM):
    hf_to_vllm_mapper = qwen3_5.Qwen3_5ForCausalLM.hf_to_vllm_mapper | NO_VISION


class Qwen3_5MoeForCausalLM(qwen3_5.Qwen3_5MoeForCausalLM):
    hf_to_vllm_mapper = qwen3_5.Qwen3_5MoeForCausalLM.hf_to_vllm_mapper | NO_VISION
