"""URI, the index: built by the decoder that searches it, with a ranker for the documents of the buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.decoders.histories import HistoryEncoder
from callslip.decoders.writer import CodeWriter
from callslip.identifiers import levels_for
from callslip.identifiers.levels import renamed
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever
from callslip.index.readers import HistoryReader, ReadQuery
from callslip.methods.uri.items import new_items
from callslip.methods.uri.model import UnifiedWriter
from callslip.methods.uri.ranker import RANKER, OwnRanker, TextRanker
from callslip.methods.uri.settings import PRESETS, URISettings
from callslip.methods.uri.training import Indexer, Training
from callslip.runtime.device import seeded
from callslip.training.loop import TrainingLog


class URI(GenerativeRetriever):
    """Builds the index with the decoder that searches it."""

    Settings = URISettings
    presets = PRESETS

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.ranker: TextRanker | None = None
        """The ranker of texts; histories are ranked by their encoder's own vectors."""

    def build(self, corpus: Corpus) -> None:
        s, self.ranker, self.log = self.settings, None, TrainingLog()
        self.read_corpus(corpus)
        given = self.saved_codes(corpus)
        length = s.length or levels_for(len(corpus), s.width, s.leaf)
        widths = [s.width] * length if given is None else [int(top) + 1 for top in given.max(axis=0)]
        with seeded(s.seed):
            self.new_model(widths, with_end=given is not None and bool((given < 0).any()))
            training = Training(self, corpus)
            codes = training.learn_codes(length) if given is None else given
            if s.renaming != "none":
                codes = renamed(codes, s.renaming, widths[-1], s.seed)
            training.log_codes(codes, widths)
            self.identifiers = Identifiers(corpus.doc_ids, codes)
            training.learn_to_write(codes)
            self.train_ranker(corpus, training)
        self.begin(corpus)

    def train_ranker(self, corpus: Corpus, training: Training) -> None:
        """Section 4.3: the ranker, once the decoder is trained. Histories have one only if it has its own encoder."""
        if isinstance(self.reader, HistoryReader):
            if self.settings.ranker_encoder == "own":
                self.reader.new_ranking_encoder(self)
                OwnRanker(self, self.reader).train(training.examples)
        elif self.asks_vectors and not self.begins_tied:  # which ranks by codes, not by vectors
            self.ranker = TextRanker(self.vectors.shape[1])
            self.ranker.train(self, corpus, training.examples)

    @property
    def codes_of_vectors(self) -> bool:
        return False

    def history_writer(self, encoder: HistoryEncoder, writer: CodeWriter) -> UnifiedWriter:
        return UnifiedWriter(encoder, writer)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """The tokens that the decoder finds most probable, also where a leaf is full."""
        if self.settings.codes == "random":
            return super().assign(documents, vectors)  # it refuses
        return Indexer(self, new_items(self, documents, vectors)).code(self.identifiers.length)

    def rank(self, query: ReadQuery, rows: np.ndarray) -> np.ndarray:
        if self.ranker is None:
            return super().rank(query, rows)
        return self.ranker.scores(query.vector, self.vectors[rows])

    def save_files(self, folder: Path) -> None:
        super().save_files(folder)
        if self.ranker is not None:
            self.ranker.save(folder)
        if isinstance(self.reader, HistoryReader) and self.reader.ranking_encoder is not None:
            OwnRanker(self, self.reader).save(folder)

    def load_files(self, folder: Path) -> None:
        super().load_files(folder)
        self.ranker = None
        if (folder / RANKER).exists():
            if isinstance(self.reader, HistoryReader):
                self.reader.new_ranking_encoder(self)
                OwnRanker(self, self.reader).load(folder)
                return
            self.ranker = TextRanker(self.vectors.shape[1])
            self.ranker.load(folder)
