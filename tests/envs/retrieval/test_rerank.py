from concurrent.futures import ThreadPoolExecutor

import pytest

from rllib_arpo.envs.retrieval.rerank import Reranker
from rllib_arpo.envs.tools.search import SearchTool
from tests.helpers.calls import call
from tests.helpers.models import byte_tokenizer

PASSAGES = [f"{word} " * count for word in ("danube", "tower", "käse", "x") for count in (1, 3, 12)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    """A tiny random BERT with a tokenizer of bytes."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = byte_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=48,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def slow_scores(folder: str, query: str, passages: list[str]) -> list[float]:
    """The same cosines, one text at a time and without padding."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    vectors = []
    for text in (query, *passages):
        token_ids = tokenizer.encode(text)[:48]
        with torch.no_grad():
            hidden = model(torch.tensor([token_ids])).last_hidden_state[0]
        vectors.append(sum(hidden) / len(token_ids))
    norms = [float((vector * vector).sum()) ** 0.5 for vector in vectors]
    products = [float((vectors[0] * vector).sum()) for vector in vectors[1:]]
    return [product / (norms[0] * norm) for product, norm in zip(products, norms[1:], strict=True)]


def test_scores_and_order_are_those_of_the_slow_twin(encoder):
    expected = slow_scores(encoder, "a tower", PASSAGES)
    reranker = Reranker(encoder)
    # Batches do not matter.
    assert reranker.scores("a tower", PASSAGES * 6) == pytest.approx(expected * 6, abs=1e-5)
    assert reranker.order("a", ["same"] * 5) == [0, 1, 2, 3, 4]
    assert reranker.order("a tower", PASSAGES) == sorted(range(len(PASSAGES)), key=lambda i: -round(expected[i], 5))
    assert len({round(score, 3) for score in expected}) > 6


def test_prefixes_are_put_before_the_texts(encoder):
    plain, prefixed = Reranker(encoder), Reranker(encoder, "cpu", "query: ", "passage: ")
    expected = plain.scores("query: a", [f"passage: {passage}" for passage in PASSAGES])
    assert prefixed.scores("a", PASSAGES) == expected


def test_threads_share_an_encoder(encoder):
    reranker, expected = Reranker(encoder), Reranker(encoder).order("a tower", PASSAGES)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: reranker.order("a tower", PASSAGES), range(40)))
    assert found == [expected] * 40


def test_search_shows_the_best_of_the_candidates(encoder):
    documents = [{"text": f"common {passage.strip()}"} for passage in PASSAGES]
    texts = [document["text"] for document in documents]
    settings = {"documents": documents, "rerank_model": encoder, "top_k": 4}
    found = call(SearchTool(**settings), "common").text.splitlines()
    scores = slow_scores(encoder, "common", texts)
    assert found == [texts[i] for i in sorted(range(len(texts)), key=lambda i: -round(scores[i], 5))[:4]]
    few = SearchTool(**settings, rerank_candidates=1)
    lexical = SearchTool(documents=documents, top_k=4)
    few, lexical = (call(tool, "common").text.splitlines() for tool in (few, lexical))
    assert sorted(few) == sorted(lexical)
    assert call(SearchTool(**settings), "unknown").text == "Nothing found."


def test_wrong_settings_are_named(encoder):
    documents = [{"text": "a"}]
    with pytest.raises(ValueError, match="rerank_candidates must be at least 1, not 0"):
        SearchTool(documents=documents, rerank_model=encoder, rerank_candidates=0)
    with pytest.raises(ValueError, match="rerank_prefixes must be two texts"):
        SearchTool(documents=documents, rerank_model=encoder, rerank_prefixes="query: ")
