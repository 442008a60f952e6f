"""GLEN, the index: from a corpus to codes of words, and from a query to documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.encoders.word_pieces import EncoderPieces, encoder_pieces, plain, spread
from callslip.errors import BadSetting
from callslip.identifiers.keywords import Within, corpus_vocabulary, keyword_codes
from callslip.identifiers.table import Identifiers
from callslip.index import readers
from callslip.index.generative import GenerativeRetriever
from callslip.index.readers import ReadQuery, T5Reader
from callslip.index.retriever import Found
from callslip.methods.glen.equations import weight_cosine
from callslip.methods.glen.model import LexicalWriter
from callslip.methods.glen.pretrained import LexicalT5, LexicalTuned, T5Pieces
from callslip.methods.glen.search import WordSearch, order_by_weights, query_weights, word_reasons
from callslip.methods.glen.settings import PRESETS, GLENSettings
from callslip.methods.glen.training import Training
from callslip.runtime.device import seeded
from callslip.search.beam import Beams
from callslip.storage.rows import Parts
from callslip.training.batches import Inputs

VOCABULARY, WEIGHTS = "vocabulary.json", "weights.npy"


def no_vectors(count: int) -> np.ndarray:
    """Stands for the vectors of documents or queries that nothing asks for."""
    return np.zeros((count, 0), np.float32)


class GLEN(GenerativeRetriever):
    """Codes are the words that the model itself writes for a document."""

    Settings = GLENSettings
    presets = PRESETS
    search_settings = GenerativeRetriever.search_settings - {"history_weight", "diversity"}
    vocabulary: list[str]
    """The word of each token."""
    codes: np.ndarray
    """The code of each document, by row, [N, L]."""
    weights: np.ndarray
    """Identifier weights of each document, [N, L]."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.word_search = WordSearch()
        self.word_ids: list[int] = []  # T5's id of each word

    def build(self, corpus: Corpus) -> None:
        self.log = None
        self.read_corpus(corpus)
        pieces = self.pieces()
        self.vocabulary = self.choose_vocabulary(corpus, pieces)
        self.word_ids = pieces.ids(self.vocabulary) if isinstance(pieces, T5Pieces) else []
        keywords = self.keyword_codes(corpus, pieces)
        with seeded(self.settings.seed):
            self.new_model([len(self.vocabulary)] * self.settings.length)
            training = Training(self, corpus)
            training.learn_keywords(keywords)
            training.refine()
        self.codes, self.weights = self.coded(training.documents)
        self.identifiers = Identifiers(corpus.doc_ids, self.codes)

    def read_corpus(self, corpus: Corpus) -> None:
        """Choose the reader; the frozen encoder reads the corpus only if something will ask for its vectors."""
        s = self.settings
        self.reader = readers.reader_for(s, corpus, self.texts, self.rows)
        started = bool(s.start) and not isinstance(self.reader, T5Reader)
        asked = self.asks_vectors or started
        self.vectors = self.reader.encode_corpus(corpus) if asked else no_vectors(len(corpus))

    @property
    def asks_vectors(self) -> bool:
        """Whether the model or the ranking compares the vectors of documents and queries."""
        return self.reader.reads_vectors or not self.by_weights

    @property
    def has_vectors(self) -> bool:
        """Whether the index holds the documents' vectors by the frozen encoder."""
        return bool(self.vectors.shape[1])

    def document_inputs(self, documents: list[Document]) -> Inputs:
        """The documents of the corpus as the model reads them."""
        return self.reader.document_inputs(documents, self.vectors)

    # Words, and the model that writes them.

    def pieces(self) -> EncoderPieces | T5Pieces | None:
        """The word pieces that texts are split into; None is the default of `identifiers.keywords`."""
        if isinstance(self.reader, T5Reader):
            return T5Pieces(self.settings.seq2seq)
        return encoder_pieces(self.settings.encoder)

    def choose_vocabulary(self, corpus: Corpus, pieces: EncoderPieces | T5Pieces | None) -> list[str]:
        """The words that may be written: T5's own, or those of the corpus."""
        if isinstance(pieces, T5Pieces) and self.settings.vocabulary is None:
            return pieces.all()
        return corpus_vocabulary(corpus, pieces, self.settings.vocabulary)

    def keyword_codes(self, corpus: Corpus, pieces: EncoderPieces | T5Pieces | None) -> np.ndarray:
        """The heaviest words of each document as tokens of the vocabulary, [N, L]."""
        keywords = keyword_codes(corpus, self.settings.length, Within(self.vocabulary, pieces))
        number = {word: token for token, word in enumerate(self.vocabulary)}
        # A text without a piece of the vocabulary has a keyword that is not in it; any word will do.
        return np.array([number.get(word, 0) for word in keywords.vocabulary])[keywords.codes]

    def new_model(self, widths: Any, with_end: bool = False) -> None:
        """Make an untrained model: T5 as it is, or a decoder whose word embeddings start as the encoder has them."""
        s = self.settings
        if isinstance(self.reader, T5Reader):
            return super().new_model(widths, with_end)
        words = spread(self.texts.cached([plain(piece) for piece in self.vocabulary], "encoding words", "plain"))
        read = self.vectors if self.reader.reads_vectors else words  # given vectors may have another width
        parts = {part: part in s.start for part in ("residual", "pursuit", "strengths")}
        self.reader.shape = self.writer_shape() | parts | {
            "input_dim": read.shape[1], "words": len(words), "dim": words.shape[1], "length": s.length,
            "feedback": s.feedback,
        }  # fmt: skip
        writer = self.writer(self.reader.shape).eval()
        writer.begin_with(words, self.vectors.mean(axis=0) if parts["residual"] else None)
        if parts["strengths"]:
            writer.begin_strengths(self.vectors)
        self.reader.use(self.reader.join(self, writer))  # type: ignore[arg-type]
        self.model.eval()

    def writer(self, shape: dict[str, Any]) -> LexicalWriter:  # type: ignore[override]
        return LexicalWriter(**shape)

    def tuned_writer(self, writer: Any) -> LexicalTuned:
        s = self.settings
        return LexicalTuned(s.encoder, writer, s.train_encoder)

    def t5_writer(self) -> tuple[type[LexicalT5], dict[str, Any]]:
        return LexicalT5, {"codes": "words", "vocabulary": self.word_ids, "feedback": self.settings.feedback}

    def coded(self, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """What the model writes for documents, greedily (Eq. 2), and the weight of each word: [n, L] both."""
        codes, weights = self.model.likeliest_words(inputs, 1)
        return codes[:, :, 0], weights[:, :, 0]

    # Search.

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Every code has a document, so the k best codes hold the k best documents, unless buckets are limited."""
        vectors = self.reader.query_vectors(queries) if self.asks_vectors else no_vectors(len(queries))
        inputs = self.reader.inputs(queries, vectors)
        states = self.model.all_states(inputs).cpu().numpy()
        live = None if mask is None else self.live_nodes(mask)
        count = self.identifiers.unique if self.settings.bucket_limit else max(k, self.settings.beam)
        written = self.write(inputs if self.settings.feedback == "token" else states, count, live)
        read = [ReadQuery(*one) for one in zip(vectors, states, strict=True)]
        found = [self.collect(one, beams, mask, explain)[0] for one, beams in zip(read, written, strict=True)]
        return self.with_fresh(queries, vectors, found, mask, explain)

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        """The best codes for queries as the model reads them or, with hidden feedback, as states [B, L, D]."""
        exact = self.settings.decoding == "exact"
        queries = self.reader.tensor(inputs) if isinstance(inputs, np.ndarray) else self.reader.batch(inputs)
        return self.word_search.best(self.model, queries, self.identifiers, beam, live, exact)

    def rank(self, query: ReadQuery, rows: np.ndarray) -> np.ndarray:
        """How documents stand inside their bucket, by Eq. 9; or their similarity, where the ranking adds it."""
        if not self.by_weights:
            return super().rank(query, rows)
        return weight_cosine(self.query_weights(query, rows), self.weights[rows])

    @property
    def by_weights(self) -> bool:
        """Whether documents are ranked by codes and identifier weights alone, and not by similarity."""
        return self.settings.ranking not in ("sum", "union")

    def adjusted(self, names: frozenset[str]) -> None:
        if self.model is not None and self.asks_vectors and not self.has_vectors:
            raise BadSetting(
                f"ranking={self.settings.ranking} needs the vectors of the documents, which this index does not hold",
                f"Fit again with --set ranking={self.settings.ranking}, or use bucket or share.",
            )
        super().adjusted(names)

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
        return self.coded(self.reader.document_inputs(documents, vectors))[0]

    def prepare(self, documents: list[Document]) -> Parts:
        vectors = no_vectors(len(documents))
        if self.has_vectors:
            vectors = self.reader.encode_new(documents, self.vectors.shape[1])
        codes, weights = self.coded(self.reader.document_inputs(documents, vectors))
        return {"vectors": vectors.astype(self.vectors.stored), "codes": codes, "weights": weights}

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
