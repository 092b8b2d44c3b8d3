"""Dense re-ranking: passages ordered by the cosine between their embedding and the query's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

#: Passages that go through the encoder at once, and the tokens of a text that count.
BATCH_SIZE = 32
MAX_TOKENS = 512


class Reranker:
    """A Hugging Face encoder whose last hidden states are averaged over a text's tokens.

    It is loaded at the first use. One thread at a time uses it.

    Args:
        model: a name or a folder.
        device: "cpu", "cuda:0", ...
        query_prefix, passage_prefix: the texts that the encoder saw before each in its training: "query: " and
            "passage: " for E5.
    """

    def __init__(self, model: str, device: str = "cpu", query_prefix: str = "", passage_prefix: str = ""):
        self._name, self._device = model, device
        self._prefixes = query_prefix, passage_prefix
        self._lock = threading.Lock()
        self._loaded: Any = None

    def load(self) -> None:
        """Loads the encoder now."""
        with self._lock:
            self._tokenizer_and_model()

    def order(self, query: str, passages: Sequence[str]) -> list[int]:
        """The numbers of `passages`, the nearest to `query` first; equally near ones keep their order."""
        scores = self.scores(query, passages)
        # The same passage gets a different last digit at another place in a batch.
        return sorted(range(len(passages)), key=lambda i: -round(scores[i], 5))

    def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """The cosine of each passage, in -1 .. 1."""
        query_prefix, passage_prefix = self._prefixes
        texts = [query_prefix + query, *(passage_prefix + passage for passage in passages)]
        with self._lock:
            embedded = self._embed(texts)
        return (embedded[1:] @ embedded[0]).tolist()

    def _embed(self, texts: Sequence[str]) -> Any:
        """Embeddings of length 1, [number of texts, hidden size] fp32."""
        import torch

        tokenizer, model = self._tokenizer_and_model()
        max_tokens = min(
            MAX_TOKENS, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", MAX_TOKENS)
        )
        pieces = []
        for start in range(0, len(texts), BATCH_SIZE):
            batch = tokenizer(
                list(texts[start : start + BATCH_SIZE]),
                padding=True,
                truncation=True,
                max_length=max_tokens,
                return_tensors="pt",
            ).to(self._device)
            with torch.inference_mode():
                hidden = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
            pieces.append(torch.nn.functional.normalize(mean, dim=-1))
        return torch.cat(pieces).cpu()

    def _tokenizer_and_model(self) -> Any:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(self._name)
            self._loaded = tokenizer, AutoModel.from_pretrained(self._name).eval().to(self._device)
        return self._loaded


@functools.lru_cache(maxsize=2)
def shared_reranker(model: str, device: str, query_prefix: str, passage_prefix: str) -> Reranker:
    """One encoder for all tools of this process with the same settings."""
    return Reranker(model, device, query_prefix, passage_prefix)
