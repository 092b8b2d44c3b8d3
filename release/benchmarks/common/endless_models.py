"""Makes the benchmarks' models: SmolLM2-135M without an end-of-sequence token, and small random ones.

These models never end a sequence themselves, so both sides of a ratio have the same token counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Every model here has the token ids below this number.
NUM_BYTE_TOKENS = 256
_EOS_KEYS = ("eos_token", "eos_token_id")


def endless_smollm2(folder: Path) -> str:
    """Makes a copy of SmolLM2-135M-Instruct, with links, in which no token ends a sequence; returns the folder."""
    from tuned_examples.smollm2 import smollm2_135m_instruct

    folder.mkdir(parents=True)
    for file in Path(smollm2_135m_instruct()).iterdir():
        if file.name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            settings = {k: v for k, v in json.loads(file.read_text()).items() if k not in _EOS_KEYS}
            (folder / file.name).write_text(json.dumps(settings))
        else:
            (folder / file.name).symlink_to(file)
    return str(folder)


def endless_llama(
    folder: Path,
    *,
    hidden_size: int,
    num_layers: int,
    vocab_size: int,
    intermediate_size: int | None = None,
    num_key_value_heads: int = 1,
) -> str:
    """Saves a random fp32 Llama with a byte tokenizer; returns the folder.

    Heads have 64 dimensions, or half of a smaller `hidden_size`. The default MLPs are twice as wide as hidden states.
    """
    from transformers import LlamaConfig

    head_dim = min(64, hidden_size // 2)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size or 2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // head_dim,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _save(config, folder)


def endless_hybrid(folder: Path, *, hidden_size: int, num_layers: int, vocab_size: int, intermediate_size: int) -> str:
    """Saves a random fp32 Qwen3.5 (text), of whose layers every fourth has full attention; returns its folder."""
    from transformers import Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 192,
        head_dim=64,
        linear_num_key_heads=hidden_size // 192,
        linear_num_value_heads=hidden_size // 64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return _save(config, folder)


def _save(config: Any, folder: Path) -> str:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return str(folder)


def byte_tokenizer():
    """One token per byte; ids from 256 on decode to nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
