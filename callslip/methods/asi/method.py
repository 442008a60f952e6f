"""ASI and ASI++, the index: from a corpus to learned codes, and from a query to documents."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from callslip.corpus.documents import Corpus, Document
from callslip.decoders.histories import Read
from callslip.decoders.t5 import T5CodeWriter
from callslip.decoders.tuned import TunedWriter
from callslip.decoders.writer import CodeWriter
from callslip.identifiers import random_codes
from callslip.identifiers.table import Identifiers
from callslip.index import readers
from callslip.index.generative import GenerativeRetriever
from callslip.methods.asi.indexers import Indexer, make_indexer
from callslip.methods.asi.model import GaussianHead, IndexedWriter
from callslip.methods.asi.search import free_search
from callslip.methods.asi.settings import PRESETS, ASISettings
from callslip.methods.asi.training import Training
from callslip.runtime.device import seeded
from callslip.search.beam import Beams
from callslip.training.batches import Inputs, Texts
from callslip.training.loop import alone

INDEXER_SHAPE: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 256, "dropout": 0.2},
    "pq": {"epsilon": 0.003, "iterations": 100},
    "rq": {"epsilon": 0.003, "iterations": 100},
}
"""Width and dropout of the networks; softness and iterations of the quantisers' Sinkhorn. The paper's, but for the
width."""


class ASI(GenerativeRetriever):
    """Learns codes and how to write them at once."""

    Settings = ASISettings
    presets = PRESETS
    search_settings = GenerativeRetriever.search_settings - {"history_weight", "diversity"}

    def build(self, corpus: Corpus) -> None:
        s, self.log = self.settings, None
        self.read_corpus(corpus)
        with seeded(s.seed):
            self.new_model([s.width] * s.length)
            documents, examples = self.reader.document_inputs(list(corpus), self.vectors), self.examples(corpus)
            training = Training(self, Texts.of_documents(documents, examples.inputs, examples.rows))
            if s.codes == "random":
                codes = random_codes(len(corpus), s.length, s.width, seed=s.seed)
                training.learn_to_write(codes, s.epochs + s.writing_epochs)
            else:
                if s.indexer_start == "clusters":
                    self.indexer.begin(self.reader.dense(documents), s.seed)
                training.learn_codes()
                codes = self.codes(documents)
                # Encoder, head and indexer stay frozen: they give new documents their codes, as they gave these.
                with alone(self.model, self.decoder):
                    training.learn_to_write(codes, s.writing_epochs)
            self.identifiers = Identifiers(corpus.doc_ids, codes)
        self.begin(corpus)

    @property
    def codes_of_vectors(self) -> bool:
        return False

    def writer_shape(self) -> dict[str, Any]:
        indexer = self.settings.indexer
        return super().writer_shape() | {"indexer": indexer, "indexing": INDEXER_SHAPE[indexer]}

    def writer(self, shape: dict[str, Any]) -> IndexedWriter:  # type: ignore[override]
        own = dict(shape)
        dim, widths = shape["input_dim"], shape["widths"]
        indexer = make_indexer(own.pop("indexer"), dim, len(widths), widths[0], **own.pop("indexing"))
        head = GaussianHead(dim)
        return IndexedWriter(head, indexer, CodeWriter(**own))

    def t5_model(self, writer: T5CodeWriter) -> IndexedWriter:
        if not isinstance(writer, T5CodeWriter):
            raise readers.no_encoder()
        name, dim, widths = self.settings.indexer, writer.t5.config.d_model, writer.widths
        indexer = make_indexer(name, dim, len(widths), widths[0], **INDEXER_SHAPE[name])
        return IndexedWriter(GaussianHead(dim), indexer, writer)

    @property
    def indexed(self) -> IndexedWriter:
        """The model without a fine-tuned encoder before it."""
        return cast(IndexedWriter, self.model.writer if isinstance(self.model, TunedWriter) else self.model)

    @property
    def indexer(self) -> Indexer:
        return cast(Indexer, self.indexed.indexer)

    @property
    def decoder(self) -> nn.Module:
        """The part that writes codes and does not read texts."""
        writer = self.indexed.writer
        return writer.decoding if isinstance(writer, T5CodeWriter) else writer

    def read(self, batch: Any) -> Tensor | Read:
        """A batch as the indexed writer reads it."""
        return self.reader.encoded(batch)

    def learning_share(self, parameter: str, rate: float) -> float:
        s, name = self.settings, parameter.removeprefix("writer.")
        own = {"indexer": s.indexer_learning_rate, "head": s.head_learning_rate}.get(name.split(".")[0])
        return super().learning_share(parameter, rate) if own is None else own / max(rate, 1e-12)

    @torch.no_grad()
    def codes(self, inputs: Inputs) -> np.ndarray:
        """The codes of texts, [N, L], in one pass."""
        training, size = self.model.training, self.reader.block
        self.model.eval()  # an encoder that is being trained has dropout
        blocks = [np.arange(n, min(n + size, len(inputs))) for n in range(0, len(inputs), size)]
        batches = (self.read(self.reader.batch(inputs, block)) for block in blocks)
        codes = np.concatenate([self.indexed.codes(batch).cpu().numpy() for batch in batches])
        self.model.train(training)
        return codes

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        if self.settings.codes == "random":
            return super().assign(documents, vectors)  # it refuses
        return self.codes(self.reader.document_inputs(documents, vectors))

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        """With `decoding=free`, an unconstrained beam; where too few known codes are left for k hits, the search asks
        again with a wider beam, which is constrained; so is one that has room for all codes, which cannot be wider."""
        if self.settings.decoding != "free" or beam > self.settings.beam or beam >= self.identifiers.unique:
            return super().write(inputs, beam, live)
        return free_search(self.model, self.reader.batch(inputs), self.identifiers.trie(), beam, live)
