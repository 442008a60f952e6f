"""Codes of words: a model that writes words, exact search by its table, and shared codes ranked by weights.

What GLEN needs of an index once its model is trained; how the model is trained is in `methods/glen.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from callslip.corpus.documents import Document, Query
from callslip.errors import BadSetting
from callslip.index.generative import GenerativeRetriever, Inputs
from callslip.index.retriever import Found
from callslip.index.settings import GenerativeSettings, Ranking
from callslip.settings import check_range
from callslip.storage.rows import Parts

if TYPE_CHECKING:
    from torch import Tensor

    from callslip.methods.glen.model import LexicalWriter
    from callslip.search.beam import Beams

VOCABULARY, WEIGHTS = "vocabulary.json", "weights.npy"


@dataclass(frozen=True)
class WordCodeSettings(GenerativeSettings):
    """Words of a code, and the order inside a bucket."""

    length: int = 16
    """Words of a code. The paper's 3 suits models that are trained for long; a short training wants more."""
    vocabulary: int | None = None
    """Word pieces that may be written: those with a letter that occur in most documents; none is all of the corpus."""
    feedback: Literal["hidden", "token"] = "hidden"
    """What the decoder is fed: its last hidden state, or the word it wrote; then search is by beam, never exact."""
    beam: int = 100
    """Codes kept while writing, with `decoding=beam`."""
    decoding: Literal["beam", "exact"] = "exact"
    """`exact` scores every code by one table; `beam` search prunes."""
    ranking: Ranking = "bucket"
    """Order of hits: `bucket` keeps the model's order of codes, with `collision` inside each; `share` divides the
    probability of each among its documents first; `sum` adds the code's log-probability and `similarity_weight` times
    the similarity of vectors; `union` is the similarity alone."""
    collision: Literal["weights", "similarity"] = "weights"
    """Order inside a bucket: by the identifier weights of query and document, or by similarity of vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codes_from is not None:
            raise BadSetting(
                "setting 'codes_from': this method makes its own codes, of words",
                "Leave it out, or use it with uri or dsi-semantic.",
            )
        check_range(self, length=1, vocabulary=1)
        if self.train_encoder != "none":
            raise BadSetting("setting 'train_encoder': words are embedded by the encoder as it is", "Leave it out.")
        if self.seq2seq is not None:
            raise BadSetting("setting 'seq2seq': words have a decoder of their own, which is not T5", "Leave it out.")


def weight_cosine(w_query: np.ndarray, w_docs: np.ndarray) -> np.ndarray:
    """Eq. 9: cos(w^q, w^d), [n]; `w_query` is [L], or [n, L] where documents have different codes."""
    if w_docs.ndim != 2 or w_query.shape not in (w_docs.shape, w_docs.shape[1:]):
        raise ValueError(f"weights {w_query.shape} of the query and {w_docs.shape} of documents do not fit")
    length = np.linalg.norm(w_query, axis=-1) * np.linalg.norm(w_docs, axis=-1)
    return (w_query * w_docs).sum(axis=-1) / np.maximum(length, 1e-12)


class WordCodeRetriever(GenerativeRetriever):
    """Writes words for a query and for a document, and finds the documents whose words the query gives most weight."""

    Settings = WordCodeSettings
    search_settings = GenerativeRetriever.search_settings | {"collision"}
    settings: WordCodeSettings
    takes_histories = False
    model: LexicalWriter  # type: ignore[assignment]
    vocabulary: list[str]
    """The word of each token."""
    codes: np.ndarray
    """The code of each document, by row, [N, L]."""
    weights: np.ndarray
    """Identifier weights of each document, [N, L]."""

    def coded(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the model writes for documents, greedily (Eq. 2), and the weight of each word: [n, L] both."""
        codes, weights = self.model.likeliest_words(vectors, 1)
        return codes[:, :, 0], weights[:, :, 0]

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        return self.coded(vectors)[0]

    def _prepare(self, documents: list[Document]) -> Parts:
        vectors = self.encode([d.content for d in documents], "encoding new documents")
        codes, weights = self.coded(vectors)
        return {"vectors": vectors, "codes": codes, "weights": weights}

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        super()._extend(documents, parts)
        self.codes = np.concatenate([self.codes, parts["codes"]])
        self.weights = np.concatenate([self.weights, parts["weights"]])

    def _keep(self, rows: np.ndarray) -> None:
        super()._keep(rows)
        self.codes, self.weights = self.codes[rows], self.weights[rows]

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        """The decoder's states of queries, [B, L, D]; their vectors, where words are fed back."""
        return vectors if self.settings.feedback == "token" else self.model.read(vectors).cpu().numpy()

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        from callslip.search.decode import best_codes
        from callslip.search.exact import table_search

        queries, trie = self.batch(inputs), self.identifiers.trie()
        if self.settings.decoding == "beam" or self.settings.feedback == "token":
            return best_codes(self.model, queries, trie, beam, live)
        return table_search(self._tables(queries), trie, beam, live, leaves=self._leaves())

    def _tables(self, queries: Tensor) -> list[Tensor]:
        import torch

        with torch.inference_mode():
            return self.model.table(queries)

    def _leaves(self) -> np.ndarray:
        """The code of every leaf of the trie, laid out once for each table of identifiers, [leaves, L]."""
        kept = getattr(self, "_kept_leaves", None)
        if kept is None or kept[0] is not self.identifiers:
            columns = np.asfortranarray(self.identifiers.codes[self.identifiers.buckets()[:-1]])
            kept = self._kept_leaves = (self.identifiers, columns)
        return kept[1]

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Every code has a document, so the k best codes hold the k best documents, unless buckets are limited."""
        vectors = self.encoder.encode([query.text for query in queries])
        states = self.model.read(vectors).cpu().numpy()
        live = None if mask is None else self.live_nodes(mask)
        count = self.identifiers.unique if self.settings.bucket_limit else max(k, self.settings.beam)
        written = self.write(vectors if self.settings.feedback == "token" else states, count, live)
        asked = np.concatenate([vectors, states.reshape(len(states), -1)], axis=1)
        return [self._collect(one, beams, mask, explain)[0] for one, beams in zip(asked, written, strict=True)]

    def rank(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """How documents stand inside their bucket; `query` is the query's vector followed by its states."""
        if self.settings.ranking in ("sum", "union") or self.settings.collision == "similarity":
            return super().rank(query[: self.vectors.shape[1]], rows)
        return weight_cosine(self._query_weights(query, rows), self.weights[rows])

    def _query_weights(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What the query's states give the words of documents' codes, [n, L]."""
        states = query[self.vectors.shape[1] :].reshape(self.settings.length, -1)
        words = self.model.embeddings.detach().cpu().numpy()
        return np.einsum("nld,ld->nl", words[self.codes[rows]], states)

    def _collect(self, query: np.ndarray, beams: Beams, mask: np.ndarray | None, explain: bool) -> tuple[Found, int]:
        found, within = super()._collect(query, beams, mask, explain)
        if found.why is not None:
            rows = np.asarray(found.rows)
            each = zip(self.codes[rows], self._query_weights(query, rows), self.weights[rows], strict=True)
            for why, (code, own, other) in zip(found.why, each, strict=True):
                why["words"] = [
                    {"word": self.vocabulary[token], "query": round(float(a), 3), "document": round(float(b), 3)}
                    for token, a, b in zip(code, own, other, strict=True)
                ]
        return found, within

    # The saved folder.

    def _save(self, folder: Path) -> None:
        super()._save(folder)
        np.save(folder / WEIGHTS, self.weights, allow_pickle=False)
        (folder / VOCABULARY).write_text(json.dumps(self.vocabulary) + "\n", encoding="utf-8")

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        self.weights = np.load(folder / WEIGHTS, allow_pickle=False)
        self.vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self.codes = np.empty_like(self.identifiers.codes)
        self.codes[self.identifiers.rows] = self.identifiers.codes
