"""GLEN's search (Section 3.4): exact scoring of all codes by one table, and collisions ranked by identifier weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from callslip.identifiers.table import Identifiers
from callslip.methods.glen.equations import collision_order
from callslip.methods.glen.model import LexicalWriter
from callslip.search.beam import Beams
from callslip.search.candidates import best_codes
from callslip.search.exact import table_search


class WordSearch:
    """Finds the codes whose words a query gives most weight."""

    def __init__(self) -> None:
        self._leaves: tuple[Identifiers, np.ndarray] | None = None

    def best(
        self,
        model: LexicalWriter,
        queries: Tensor,
        identifiers: Identifiers,
        count: int,
        live: list[np.ndarray] | None,
        exact: bool,
    ) -> list[Beams]:
        """The `count` best codes for each query: states [B, L, D], or vectors where words are fed back."""
        trie = identifiers.trie()
        if not exact or model.feedback == "token":
            return best_codes(model, queries, trie, count, live)
        with torch.inference_mode():
            tables = model.table(queries)
        return table_search(tables, trie, count, live, leaves=self.leaves(identifiers))

    def leaves(self, identifiers: Identifiers) -> np.ndarray:
        """The code of every leaf of the trie, in columns, laid out once for each table of identifiers, [leaves, L]."""
        if self._leaves is None or self._leaves[0] is not identifiers:
            columns = np.asfortranarray(identifiers.codes[identifiers.buckets()[:-1]])
            self._leaves = (identifiers, columns)
        return self._leaves[1]


def query_weights(model: LexicalWriter, states: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Identifier weights of a query, given its states [L, D], for the words of documents' codes [n, L]: [n, L]."""
    words = model.embeddings.detach().cpu().numpy()
    return np.einsum("nld,ld->nl", words[codes], states)


def order_by_weights(rows: np.ndarray, beam: np.ndarray, w_query: np.ndarray, w_docs: np.ndarray) -> np.ndarray:
    """Candidates in the order of their codes (`beam` [n] is the place of each one's code), and inside a bucket by
    Eq. 9; `w_query` and `w_docs` are [n, L]."""
    order = []
    by_row = np.argsort(rows, kind="stable")
    for place in np.unique(beam):
        bucket = by_row[beam[by_row] == place]
        order.append(bucket[collision_order(w_query[bucket[0]], w_docs[bucket])])
    return np.concatenate(order) if order else np.zeros(0, np.int64)


def word_reasons(
    vocabulary: list[str], code: np.ndarray, w_query: np.ndarray, w_doc: np.ndarray
) -> list[dict[str, Any]]:
    """The words of a document's code, with what query and document give each."""
    return [
        {"word": vocabulary[token], "query": round(float(a), 3), "document": round(float(b), 3)}
        for token, a, b in zip(code, w_query, w_doc, strict=True)
    ]
