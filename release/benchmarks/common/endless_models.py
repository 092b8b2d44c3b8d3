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


def random_model(
    folder: Path,
    architecture: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
    embedding_std: float | None = None,
    **keys: Any,
) -> str:
    """Saves a random causal LM with tied embeddings and a byte tokenizer; returns the folder.

    Args:
        architecture: a model type of transformers; `keys` are of its configuration.
        embedding_std: of the embedding, which is the head as well; None: that of all matrices.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shared = {"max_position_embeddings": 4096, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(architecture, **(shared | keys))
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
        if embedding_std is not None:
            torch.nn.init.normal_(model.get_input_embeddings().weight, std=embedding_std)
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
