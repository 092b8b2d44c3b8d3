"""Tiny random causal LMs with a working tokenizer, saved as Hugging Face folders, in place of real models."""

import os

import torch

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
#: Ids 0..255 are single bytes (in the byte-level alphabet's order), the special tokens follow.
TOKENIZER_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: Of each token two of four experts. vLLM's CPU kernel needs sizes that 32 divides, and pads the 48.
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
SHARED_EXPERT = {"shared_expert_intermediate_size": 32}
#: A layer with a state, and one with full attention. vLLM's CPU kernel needs heads of 128.
STATES = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
#: A layer whose window is shorter than most paths, and one with full attention.
WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
#: Model type -> keys beside those that all have.
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3_moe": MIXTURE,
    "qwen3_next": STATES | MIXTURE | SHARED_EXPERT,
    "qwen3_5_text": STATES,
    "qwen3_5_moe_text": STATES | MIXTURE | SHARED_EXPERT,
    "gemma3_text": WINDOWS,
    "mistral": {"sliding_window": None},
    "ministral3": {"sliding_window": 6},
    "olmo3": WINDOWS,
    "qwen2": {},
    "exaone4": WINDOWS,
    "smollm3": WINDOWS | {"use_sliding_window": True},
}


def byte_tokenizer():
    """A fast tokenizer with one token per byte: any text encodes and decodes exactly; ChatML, eos = <|im_end|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: token_id for token_id, character in enumerate(alphabet)}
    vocab |= {token: len(alphabet) + i for i, token in enumerate(SPECIAL_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def tiny_model(
    folder,
    architecture: str = "llama",
    tie_word_embeddings: bool = True,
    vocab_size: int = TOKENIZER_SIZE,
    seed: int = 0,
    max_position_embeddings: int = 2048,
    num_layers: int = 2,
    **changes: object,
) -> str:
    """Saves a random fp32 model (hidden 64, 2 heads of 32, one of them for K/V) with its tokenizer; returns the folder.

    Args:
        architecture: a model type such as "llama"; `FAMILIES` has the keys of some.
        vocab_size: V; rows above TOKENIZER_SIZE are padding, as real models have it.
        seed: of the weights: the same seed gives the same model.
        changes: other keys of the configuration.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if vocab_size < TOKENIZER_SIZE:
        raise ValueError(f"vocab_size {vocab_size} is smaller than the tokenizer's {TOKENIZER_SIZE}.")
    tokenizer = byte_tokenizer()
    keys = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        # Far above the usual 0.02, so that the distributions differ from token to token.
        "initializer_range": 0.2,
    }
    config = AutoConfig.for_model(
        architecture,
        vocab_size=vocab_size,
        num_hidden_layers=num_layers,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **(keys | FAMILIES.get(architecture, {}) | changes),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(os.fspath(folder))
    tokenizer.save_pretrained(os.fspath(folder))
    return os.fspath(folder)


def tiny_vision_language_model(folder) -> str:
    """Saves a random Qwen3.5 as it is published, with a vision part; returns the folder."""
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    tokenizer = byte_tokenizer()
    text = {
        "vocab_size": TOKENIZER_SIZE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "initializer_range": 0.2,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "model_type": "qwen3_5_text",
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    config = AutoConfig.for_model(
        "qwen3_5", text_config=text | STATES, vision_config=vision | {"num_position_embeddings": 16}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3_5ForConditionalGeneration(config).save_pretrained(os.fspath(folder))
    tokenizer.save_pretrained(os.fspath(folder))
    return os.fspath(folder)
