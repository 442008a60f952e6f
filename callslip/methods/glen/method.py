"""GLEN, the index: from a corpus to codes of words, and from a query to documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.encoders.word_pieces import EncoderPieces, encoder_pieces, linear_map, plain, spread
from callslip.identifiers.keywords import Within, corpus_vocabulary, keyword_codes
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever
from callslip.index.readers import ReadQuery
from callslip.index.retriever import Found
from callslip.methods.glen.equations import weight_cosine
from callslip.methods.glen.model import LexicalWriter
from callslip.methods.glen.search import WordSearch, order_by_weights, query_weights, word_reasons
from callslip.methods.glen.settings import PRESETS, GLENSettings
from callslip.methods.glen.training import Training
from callslip.runtime.seeds import seeded
from callslip.search.beam import Beams
from callslip.storage.rows import Parts
from callslip.training.examples import Inputs

VOCABULARY, WEIGHTS = "vocabulary.json", "weights.npy"


class GLEN(GenerativeRetriever):
    """Codes are the words that the model itself writes for a document."""

    Settings = GLENSettings
    presets = PRESETS
    search_settings = GenerativeRetriever.search_settings - {"history_weight"} | {"collision"}
    vocabulary: list[str]
    """The word of each token."""
    codes: np.ndarray
    """The code of each document, by row, [N, L]."""
    weights: np.ndarray
    """Identifier weights of each document, [N, L]."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.word_search = WordSearch()

    def build(self, corpus: Corpus) -> None:
        s, self.log = self.settings, None
        self.read_corpus(corpus)
        pieces = encoder_pieces(s.encoder)
        self.vocabulary = corpus_vocabulary(corpus, pieces, s.vocabulary)
        keywords = self.keyword_codes(corpus, pieces)
        with seeded(s.seed):
            self.new_words(pieces)
            training = Training(self, corpus)
            training.learn_keywords(keywords)
            training.refine()
        self.codes, self.weights = self.coded(self.vectors)
        self.identifiers = Identifiers(corpus.doc_ids, self.codes)

    def keyword_codes(self, corpus: Corpus, pieces: EncoderPieces | None) -> np.ndarray:
        """The heaviest words of each document as tokens of the vocabulary, [N, L]."""
        keywords = keyword_codes(corpus, self.settings.length, Within(self.vocabulary, pieces))
        number = {word: token for token, word in enumerate(self.vocabulary)}
        # A text without a piece of the vocabulary has a keyword that is not in it; any word will do.
        return np.array([number.get(word, 0) for word in keywords.vocabulary])[keywords.codes]

    def new_words(self, pieces: EncoderPieces | None) -> None:
        """Make an untrained model whose word embeddings start as the encoder has them."""
        s = self.settings
        encoded = spread(self.texts.cached([plain(piece) for piece in self.vocabulary], "encoding words", "plain"))
        table = spread(pieces.table(self.vocabulary)) if pieces is not None and s.embeddings == "table" else None
        begin = encoded if table is None else table
        self.reader.shape = self.writer_shape() | {
            "input_dim": self.vectors.shape[1], "words": len(begin), "dim": begin.shape[1], "length": s.length,
            "feedback": s.feedback,
        }  # fmt: skip
        model = self.writer(self.reader.shape)
        model.embeddings.requires_grad_(s.train_words)
        model.begin_with(begin, self.vectors.mean(axis=0), None if table is None else linear_map(encoded, table))
        self.reader.use(model)
        self.model.eval()
        if s.strengths:
            self.model.begin_strengths(self.vectors)

    def writer(self, shape: dict[str, Any]) -> LexicalWriter:  # type: ignore[override]
        return LexicalWriter(**shape)

    def coded(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the model writes for documents, greedily (Eq. 2), and the weight of each word: [n, L] both."""
        codes, weights = self.model.likeliest_words(vectors, 1)
        return codes[:, :, 0], weights[:, :, 0]

    # Search.

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Every code has a document, so the k best codes hold the k best documents, unless buckets are limited."""
        vectors = self.reader.query_vectors(queries)
        states = self.model.read(vectors).cpu().numpy()
        live = None if mask is None else self.live_nodes(mask)
        count = self.identifiers.unique if self.settings.bucket_limit else max(k, self.settings.beam)
        written = self.write(vectors if self.settings.feedback == "token" else states, count, live)
        asked = [ReadQuery(*one) for one in zip(vectors, states, strict=True)]
        return [self.collect(one, beams, mask, explain)[0] for one, beams in zip(asked, written, strict=True)]

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        """The best codes for queries given as vectors [B, D] or, with hidden feedback, as states [B, L, D]."""
        queries, exact = self.reader.batch(inputs), self.settings.decoding == "exact"
        return self.word_search.best(self.model, queries, self.identifiers, beam, live, exact)

    def rank(self, query: ReadQuery, rows: np.ndarray) -> np.ndarray:
        """How documents stand inside their bucket: by Eq. 9, or by similarity of vectors."""
        if not self.by_weights:
            return super().rank(query, rows)
        return weight_cosine(self.query_weights(query, rows), self.weights[rows])

    @property
    def by_weights(self) -> bool:
        """Whether collisions are ranked by identifier weights."""
        return self.settings.ranking in ("bucket", "share") and self.settings.collision == "weights"

    def query_weights(self, query: ReadQuery, rows: np.ndarray) -> np.ndarray:
        """What the query gives the words of documents' codes, [n, L]."""
        assert query.states is not None
        return query_weights(self.model, query.states, self.codes[rows])

    def order(
        self, query: ReadQuery, rows: np.ndarray, beam: np.ndarray, scores: np.ndarray | None, similarity: np.ndarray
    ) -> tuple[np.ndarray, int]:
        if scores is not None or not self.by_weights or self.settings.bucket_limit is not None:
            return super().order(query, rows, beam, scores, similarity)
        return order_by_weights(rows, beam, self.query_weights(query, rows), self.weights[rows]), len(rows)

    def collect(self, query: ReadQuery, beams: Beams, mask: np.ndarray | None, explain: bool) -> tuple[Found, int]:
        found, within = super().collect(query, beams, mask, explain)
        if found.why is not None:
            rows = np.asarray(found.rows)
            each = zip(self.codes[rows], self.query_weights(query, rows), self.weights[rows], strict=True)
            for why, (code, own, other) in zip(found.why, each, strict=True):
                why["words"] = word_reasons(self.vocabulary, code, own, other)
        return found, within

    # New documents, and the saved folder.

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        return self.coded(vectors)[0]

    def prepare(self, documents: list[Document]) -> Parts:
        vectors = self.reader.encode_new(documents, self.vectors.shape[1])
        codes, weights = self.coded(vectors)
        return {"vectors": vectors, "codes": codes, "weights": weights}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        super().extend(documents, parts)
        self.codes = np.concatenate([self.codes, parts["codes"]])
        self.weights = np.concatenate([self.weights, parts["weights"]])

    def keep(self, rows: np.ndarray) -> None:
        super().keep(rows)
        self.codes, self.weights = self.codes[rows], self.weights[rows]

    def save_files(self, folder: Path) -> None:
        super().save_files(folder)
        np.save(folder / WEIGHTS, self.weights, allow_pickle=False)
        (folder / VOCABULARY).write_text(json.dumps(self.vocabulary) + "\n", encoding="utf-8")

    def load_files(self, folder: Path) -> None:
        super().load_files(folder)
        self.weights = np.load(folder / WEIGHTS, allow_pickle=False)
        self.vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self.codes = self.identifiers.in_row_order()[1]
