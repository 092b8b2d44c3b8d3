"""The models of the check: random weights of a given shape, made where they are needed, since nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from release.benchmarks.common.models import byte_tokenizer
from release.gpu_parts.sizes import Shape
from tuned_examples.smollm2 import cached_folder

#: Standard deviation of the matrices, and of the embedding, which is the head as well: its logits then differ by some
#: nats, as those of trained models do. With 0.02 all words would be equally likely, and no probe would see an error.
STD, EMBEDDING_STD = 0.02, 0.1
MAX_POSITIONS = 4096


def random_qwen2(shape: Shape, work: Path, seed: int = 0) -> str:
    """The folder of a random model in bfloat16, below `work`; no token ends its sequences."""
    sizes = f"{shape.hidden_size}x{shape.num_layers}-{shape.vocab_size}"
    return cached_folder(f"qwen2-{sizes}-{seed}", lambda folder: _make(folder, shape, seed), work / "models")


def _make(folder: Path, shape: Shape, seed: int) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)

    def draw(name: str, like: torch.Tensor) -> torch.Tensor:
        if like.ndim == 1:  # norms and biases
            return torch.full(like.shape, float(name.endswith("norm.weight")), dtype=torch.bfloat16)
        std = EMBEDDING_STD if "embed_tokens" in name else STD
        drawn = torch.empty(like.shape, dtype=torch.bfloat16, device=device)
        return drawn.normal_(std=std, generator=generator).cpu()

    weights = {name: draw(name, parameter) for name, parameter in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
