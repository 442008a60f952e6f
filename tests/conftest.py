"""What all tests share. Encoded vectors go to a cache of the test run's own, never to the user's."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from small_topics import TOPICS

# Before anything imports torch: other busy processes make two spinning threads far slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["CALLSLIP_CACHE"] = tempfile.mkdtemp(prefix="callslip-test-cache-")
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))  # for `reference`

from callslip.corpus.documents import Corpus, Document, Query
from callslip.identifiers import vector_table


@pytest.fixture(scope="module")
def whole_precision():
    """Indexes hold float32, so that tests of a training can compare its numbers with the vectors that it has seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_table, "HELD", np.float32)
        yield


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


@pytest.fixture(scope="session")
def log() -> Corpus:
    """A small log with structure."""
    from small_log import small_log

    return small_log()


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    """saved(…) -> the folder of what the module's own `fitted(…)` gives, saved once."""

    @cache
    def save(*which: str) -> Path:
        path = tmp_path_factory.mktemp("saved") / "index"
        fitted(*which).save(path)
        return path

    return save


@pytest.fixture
def living(saved, tmp_path):
    """living(…) -> a copy of a saved index, open, for tests that change it."""
    from callslip import api

    def copy(*which: str):
        shutil.copytree(saved(*which), tmp_path / "living")
        return api.load(tmp_path / "living")

    return copy


@pytest.fixture(scope="module")
def beir(small_corpus, tmp_path_factory) -> Path:
    """The small corpus as a BEIR folder."""
    folder = tmp_path_factory.mktemp("beir")
    rows = [{"_id": d.doc_id, "title": d.title, "text": d.text, "metadata": dict(d.metadata)} for d in small_corpus]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"_id": query.query_id, "text": query.text} for query in small_corpus.queries.values()]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (folder / "qrels").mkdir()
    for split, judged in small_corpus.judgements.items():
        lines = [f"{query}\t{doc}\t{grade}\n" for query, grades in judged.items() for doc, grade in grades.items()]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


@pytest.fixture
def spy(monkeypatch):
    """spy(owner, name) -> a list that gets the arguments of each call by name, with its `result`."""
    from training_spies import spy_on  # imports torch

    return partial(spy_on, monkeypatch)
