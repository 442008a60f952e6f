"""Entries of the ir_datasets catalogue, with a tiny one put into it for the test."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from callslip.corpus import Document, load_corpus
from callslip.errors import BadInput, CallslipError, MissingExtra, UnknownName

ir_datasets = pytest.importorskip("ir_datasets")
from ir_datasets.datasets.base import Dataset  # noqa: E402
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericDoc, GenericQuery, TrecQrel  # noqa: E402


class Paper(NamedTuple):
    doc_id: str
    title: str
    text: str
    url: str


class Page(NamedTuple):
    doc_id: str
    headline: str
    body: str

    def default_text(self):
        return f"{self.headline} {self.body}"


class Docs(BaseDocs):
    def __init__(self, docs):
        self.docs = docs

    def docs_iter(self):
        return iter(self.docs)

    def docs_count(self):
        return len(self.docs)


class Queries(BaseQueries):
    def __init__(self, queries):
        self.queries = queries

    def queries_iter(self):
        return iter(self.queries)


class Qrels(BaseQrels):
    def __init__(self, qrels):
        self.qrels = qrels

    def qrels_iter(self):
        return iter(self.qrels)


class Broken(BaseDocs):
    def docs_iter(self):
        raise ConnectionError("no network")

    def docs_count(self):
        return 1


@pytest.fixture
def catalogue(monkeypatch):
    docs = Docs([Paper("d1", "T", "one", "u"), Page("d2", "Head", "two")])
    queries = Queries([GenericQuery("q1", "what")])
    test, train = Qrels([TrecQrel("q1", "d2", 1, "0")]), Qrels([TrecQrel("q1", "d1", 2, "0")])
    stray = Qrels([TrecQrel("q1", "d2", 1, "0"), TrecQrel("q1", "d9", 1, "0")])
    entries = {
        "tiny": Dataset(docs),
        "tiny/test": Dataset(docs, queries, test),
        "tiny/train": Dataset(docs, queries, train),
        "stray/dev": Dataset(docs, queries, stray),
        "broken": Dataset(Broken()),
        "no-docs": Dataset(queries),
        "generic": Dataset(Docs([GenericDoc("g", "text")])),
    }
    monkeypatch.setattr(ir_datasets.registry, "_registered", entries)
    monkeypatch.setattr(ir_datasets.registry, "_patterns", [])


def test_documents_queries_and_judgements_of_an_entry(catalogue):
    corpus = load_corpus("ir_datasets:tiny/test")
    assert corpus.documents == [
        Document("d1", "one", "T", {"url": "u"}),
        Document("d2", "Head two", "", {"headline": "Head", "body": "two"}),
    ]
    assert corpus.judgements == {"test": {"q1": {"d2": 1}}}
    assert corpus.queries["q1"].text == "what"
    assert corpus.name == "tiny/test"


def test_an_entry_without_judgements_takes_those_of_its_parts(catalogue):
    assert load_corpus("ir_datasets:tiny").judgements == {
        "train": {"q1": {"d1": 2}},
        "test": {"q1": {"d2": 1}},
    }
    assert load_corpus("ir_datasets:generic").documents == [Document("g", "text")]


def test_what_can_go_wrong(catalogue, monkeypatch):
    with pytest.raises(UnknownName, match="Did you mean 'tiny/test'"):
        load_corpus("ir_datasets:tiny/tset")
    with pytest.raises(CallslipError, match="no network"):
        load_corpus("ir_datasets:broken")
    with pytest.raises(CallslipError, match="no documents"):
        load_corpus("ir_datasets:no-docs")
    with pytest.raises(BadInput, match="no document has the id 'd9'"):
        load_corpus("ir_datasets:stray/dev")
    corpus = load_corpus("ir_datasets:stray/dev", skip_bad=True)
    assert (corpus.judgements, corpus.skipped.count) == ({"dev": {"q1": {"d2": 1}}}, 1)
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingExtra, match=r"callslip\[data\]"):
        load_corpus("ir_datasets:tiny")
