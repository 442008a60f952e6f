"""A method: the number of words that query and document share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from callslip import Retriever
from callslip.index.retriever import Found


def words_of(text: str) -> list[str]:
    return sorted(set(re.findall(r"\w+", text.lower())))


@dataclass(frozen=True)
class OverlapSettings:
    """Settings of the overlap."""

    least: int = 1
    """Number of words that a document must share with the query."""


class Overlap(Retriever):
    """Ranks documents by the number of words that they share with the query."""

    Settings = OverlapSettings
    presets = {"strict": {"least": 2}}  # noqa: RUF012

    def build(self, corpus):
        self.words = [words_of(document.content) for document in corpus]

    def find(self, queries, k, mask, explain):
        found = []
        for query in queries:
            asked = set(words_of(query.text))
            shared = np.array([len(asked.intersection(words)) for words in self.words])
            if mask is not None:
                shared = np.where(mask, shared, -1)
            rows = np.argsort(-shared, kind="stable")
            rows = rows[shared[rows] >= self.settings.least][:k]
            found.append(Found(rows, shared[rows].astype(float)))
        return found

    def prepare(self, documents):
        return {}

    def extend(self, documents, parts):
        self.words += [words_of(document.content) for document in documents]

    def keep(self, rows):
        self.words = [self.words[row] for row in rows]

    def save_files(self, folder: Path):
        (folder / "words.json").write_text(json.dumps(self.words), encoding="utf-8")

    def load_files(self, folder: Path):
        self.words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
