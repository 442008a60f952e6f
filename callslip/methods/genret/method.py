"""GenRet, the index: codes are learned level by level, then the model learns to write whole codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.identifiers import levels_for
from callslip.identifiers.levels import places
from callslip.identifiers.table import Identifiers
from callslip.index.generative import GenerativeRetriever
from callslip.methods.genret.model import CodebookWriter
from callslip.methods.genret.settings import PRESETS, GenRetSettings
from callslip.methods.genret.training import Tokenizer, Training
from callslip.runtime.device import seeded
from callslip.training.batches import Texts


class GenRet(GenerativeRetriever):
    """Learns the codes, then writes them. Search is the default: a constrained beam."""

    Settings = GenRetSettings
    presets = PRESETS
    search_settings = GenerativeRetriever.search_settings - {"history_weight", "diversity"}

    @property
    def tokenizer(self) -> Tokenizer:
        """The model as the tokeniser of documents."""
        return Tokenizer(self)

    def build(self, corpus: Corpus) -> None:
        s, self.log = self.settings, None
        self.read_corpus(corpus)
        length = s.length or levels_for(len(corpus), s.width, s.leaf)
        extra = [s.width] if s.collisions == "level" else []
        with seeded(s.seed):
            self.new_model([s.width] * length + extra)
            examples = self.examples(corpus)
            documents = self.reader.document_inputs(list(corpus), self.vectors)
            texts = Texts.of_documents(documents, examples.inputs, examples.rows)
            codes = Training(self, texts).learn_codes(length)
            if extra:
                codes = np.concatenate([codes, places(codes, s.width)[:, None]], axis=1)
            self.identifiers = Identifiers(corpus.doc_ids, codes)
            self.train_model(examples, codes)
        self.begin(corpus)

    @property
    def codes_of_vectors(self) -> bool:
        return False

    def writer(self, shape: dict[str, Any]) -> CodebookWriter:
        return CodebookWriter(**shape)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        if self.settings.codes == "random":
            return super().assign(documents, vectors)  # it refuses
        length = self.identifiers.length - (self.settings.collisions == "level")
        codes = self.tokenizer.code(self.reader.document_inputs(documents, vectors), length)
        if length < self.identifiers.length:
            codes = np.concatenate([codes, places(codes, self.settings.width, self.identifiers)[:, None]], axis=1)
        return codes
