"""Items as URI's decoder reads them: texts as queries are read, items of a log by their vectors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from callslip.corpus.documents import Document

if TYPE_CHECKING:
    from callslip.methods.uri.method import URI


class TextItems:
    """Documents, which the decoder reads as it reads queries."""

    beginning = "parted"

    def __init__(self, index: URI, documents: Sequence[Document], vectors: np.ndarray) -> None:
        self.index = index
        self.inputs = index.reader.document_inputs(documents, vectors)

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, rows: np.ndarray) -> Any:
        """Some items as the decoder takes them."""
        return self.index.reader.batch(self.inputs, rows)

    def vectors(self) -> np.ndarray:
        """The vectors that items are clustered by, [N, dim]."""
        return self.index.vectors if self.index.vectors.shape[1] else self.index.reader.dense(self.inputs)


class LogItems:
    """Items of a log, by their vectors in the history encoder."""

    beginning = "clusters"

    def __init__(self, index: URI, count: int) -> None:
        self.index, self.count = index, count

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: np.ndarray) -> Any:
        model = self.index.model
        return model.read_items(model.items(self.index.reader.batch(rows) + 1))

    def vectors(self) -> np.ndarray:
        self.index.reader.forget_vectors()  # training has changed them
        return self.index.reader.document_vectors(self.index.vectors)


class NewLogItems(LogItems):
    """Items that the index does not have yet, by the vectors of their texts."""

    def __init__(self, index: URI, vectors: np.ndarray) -> None:
        super().__init__(index, len(vectors))
        table = copy.deepcopy(index.model.items)
        table.extend(torch.from_numpy(vectors))
        self.new = table.all()[-len(vectors) :].detach()

    def batch(self, rows: np.ndarray) -> Any:
        return self.index.model.read_items(self.new[rows])


Items = TextItems | LogItems


def new_items(index: URI, documents: Sequence[Document], vectors: np.ndarray) -> Items:
    """Documents that are added."""
    return NewLogItems(index, vectors) if index.reader.histories else TextItems(index, documents, vectors)


def items_of(index: URI, documents: Sequence[Document]) -> Items:
    """The documents that an index is built of."""
    if index.reader.histories:
        return LogItems(index, len(documents))
    return TextItems(index, documents, index.vectors)
