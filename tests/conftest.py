"""What all tests share. Encoded vectors go to a cache of the test run's own, never to the user's."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
from small_topics import TOPICS

# Before anything imports torch: other busy processes make two spinning threads far slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["CALLSLIP_CACHE"] = tempfile.mkdtemp(prefix="callslip-test-cache-")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))  # for `reference`

from callslip.corpus.documents import Corpus, Document, Query


@pytest.fixture(scope="session")
def small_corpus() -> Corpus:
    """Forty documents on four topics, each with a word of its own, and a query for every one."""
    documents, queries = [], {}
    train: dict[str, dict[str, int]] = {}
    test: dict[str, dict[str, int]] = {}
    for topic, words in TOPICS.items():
        for number in range(10):
            word, other, own = words[number % 5], words[(number + 1) % 5], f"{topic}{number}"
            doc_id = f"{topic}/{number}"
            text = f"The {word} is a {topic}. Unlike the {other}, it bears the mark {own}. Nobody knows why."
            metadata = {"topic": topic, "even": number % 2 == 0}
            documents.append(Document(doc_id, text, f"About {word} {own}", metadata))
            for split, phrase in ((train, "which {0} has the mark {1}"), (test, "where is the {0} with {1}")):
                query_id = f"{'t' if split is train else 'q'}-{doc_id}"
                queries[query_id] = Query(query_id, phrase.format(word, own))
                split[query_id] = {doc_id: 1}
    return Corpus(documents, queries, {"train": train, "test": test}, name="small")


@pytest.fixture(scope="session")
def tiny(small_corpus, tmp_path_factory) -> dict[str, str]:
    """Folders of a tiny BERT, T5 and mT5 whose words are those of the small corpus."""
    from small_bert import save_small_bert
    from small_t5 import save_small_t5

    texts = [document.content for document in small_corpus] + [query.text for query in small_corpus.queries.values()]
    words = sorted({word.strip(".,") for text in texts for word in text.split()})
    return {
        "BERT": str(save_small_bert(tmp_path_factory.mktemp("bert"), words)),
        "T5": str(save_small_t5(tmp_path_factory.mktemp("t5"), words)),
        "mT5": str(save_small_t5(tmp_path_factory.mktemp("mt5"), words, multilingual=True)),
    }


@pytest.fixture
def spy(monkeypatch):
    """spy(owner, name) -> a list that gets the arguments of each call by name, with its `result`."""
    from training_spies import spy_on  # imports torch

    return partial(spy_on, monkeypatch)
