"""Queries that are histories of items: the settings, the examples, the model's reading of them, and what ranks items.

What the generative methods and the dense sequence model share. Texts know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Query
from callslip.corpus.sequences import Examples, Sequences, padded, runs
from callslip.errors import CallslipError
from callslip.settings import check_range

if TYPE_CHECKING:
    import torch

    from callslip.decoders.histories import HistoryEncoder, ItemTable, Read

SVD_DIM = 64
"""Dimensions of the vectors that stand in for texts where items have none."""


@dataclass(frozen=True)
class HistorySettings:
    """How histories of items are read."""

    items: Literal["id", "text", "both"] = "both"
    """How items of a history are known: by an embedding of their own (`id`), by their text's vector (`text`), or both.
    New items have no embedding: by `id` alone they can be found, and are passed over in histories."""
    history_length: int = 20
    """Items read of a history: the last ones."""
    history_width: int = 96
    """Width of the vectors of items and histories."""
    history_layers: int = 2
    """Layers of the transformer that reads a history."""
    history_heads: int = 2
    """Its attention heads."""
    history_dropout: float = 0.3
    """Its dropout."""
    history_memory: Literal["vector", "states"] = "vector"
    """What a decoder reads of a history: its one `vector` (all places of a sequence are then trained at once, which is
    several times as fast), or the `states` of all its items."""
    ranker_negatives: int = 1024
    """Random items that the right one is compared with in training, drawn anew for each batch; 0 is all items."""
    item_decay: float = 0.01
    """Weight decay of the items' vectors. They are most of the model, and learn single users by heart: against that 1
    is not too much where passes are many."""

    def __post_init__(self) -> None:
        check_range(self, history_length=1, history_width=1, history_layers=0, history_heads=1, ranker_negatives=0)
        check_range(self, history_dropout=0, item_decay=0)

    def decay_of(self, parameter: str, others: float) -> float:
        """The weight decay of a parameter by its name: that of items, or that of the others."""
        return self.item_decay if "items" in parameter.split(".") else others


@dataclass(frozen=True)
class HistoryShape:
    """The shape of a history encoder, as it is saved."""

    kind: Literal["set", "sequence"]
    count: int
    text_dim: int
    items: Literal["id", "text", "both"]
    width: int
    longest: int
    layers: int
    heads: int
    dropout: float
    memory: Literal["vector", "states"] = "vector"
    texts: bool = True
    """Whether items have texts; if not, what they have in common with users stands in for them."""

    @classmethod
    def of(cls, s: HistorySettings, kind: Literal["set", "sequence"], vectors: np.ndarray, texts: bool) -> HistoryShape:
        return cls(
            kind, len(vectors), vectors.shape[1], s.items, s.history_width, s.history_length, s.history_layers,
            s.history_heads, s.history_dropout, s.history_memory, texts,
        )  # fmt: skip

    def encoder(self, vectors: np.ndarray) -> HistoryEncoder:
        """An untrained encoder, given the items' vectors [count, text_dim]."""
        import torch

        from callslip.decoders.histories import HistoryEncoder, ItemTable

        items = ItemTable(self.count, self.width, self.items, self.text_dim)
        items.set_texts(torch.from_numpy(np.array(vectors, dtype=np.float32)))
        return HistoryEncoder(
            items, self.kind, longest=self.longest, layers=self.layers, heads=self.heads, dropout=self.dropout
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def has_histories(corpus: Corpus) -> bool:
    """Whether the train queries are histories of items; where there are none, whether all others are."""
    queries = corpus.split("train")[0] or corpus.queries
    return bool(queries) and all(query.history and not query.text for query in queries.values())


def training_sequences(corpus: Corpus) -> Sequences:
    """What may be trained on, or an error that says why there is nothing."""
    found = corpus.sequences()
    if not len(found) and not has_histories(corpus):
        raise CallslipError(
            "this corpus has no histories of items to train on", "Give a log of users and items, or queries=text."
        )
    if not len(found):
        raise CallslipError(
            "no user of this log has enough items to train on: the last two are held out",
            "Give a log with users of four items and more.",
        )
    return found


def training_examples(sequences: Sequences, kind: Literal["set", "sequence"], longest: int) -> Examples:
    """Histories and their items: what came next, or what else belongs to the set."""
    return sequences.sequential(longest) if kind == "sequence" else sequences.general(longest)


def has_texts(corpus: Corpus) -> bool:
    return any(document.content for document in corpus)


def interaction_vectors(sequences: Sequences, count: int, seed: int = 0) -> np.ndarray:
    """Vectors of items that have no text: unit rows of a truncated SVD of the users that have them, [count, dim]."""
    from scipy.sparse import csr_matrix
    from sklearn.utils.extmath import randomized_svd

    owner = np.repeat(np.arange(len(sequences)), np.diff(sequences.bounds))
    users = csr_matrix((np.ones(len(owner), np.float32), (sequences.items, owner)), shape=(count, len(sequences)))
    users.data[:] = 1  # bought twice is still bought
    found, weights, _ = randomized_svd(users, min(SVD_DIM, *users.shape), random_state=seed)
    vectors = np.zeros((count, SVD_DIM), np.float32)
    vectors[:, : found.shape[1]] = found * weights
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def numbers_of(
    queries: Sequence[Query], row_of: Mapping[str, int], longest: int, known: np.ndarray | None = None
) -> np.ndarray:
    """The histories of queries as item numbers [n, T]: row + 1; rows that are not `known` are left out."""
    asked = {item for query in queries for item in query.history}
    rows = {item: row_of[item] for item in asked if item in row_of}
    return padded(
        (query.history for query in queries),
        {item: row + 1 for item, row in rows.items() if known is None or known[row]},
        longest,
    )


def ranking_term(read: Read, target: torch.Tensor, items: ItemTable, negatives: int) -> torch.Tensor:
    """The right item (by row) among random items, or among all of them if `negatives` is 0, by inner product.

    Items of a set are not among the wrong ones: a set is a mean of its items and is like each of them, and what it
    would learn so as not to be is lost for telling other items apart.
    """
    import torch
    from torch.nn import functional

    from callslip.training.losses import sampled_softmax

    query = read.vector
    if not negatives or negatives >= items.count:
        scores = query @ items.all().T
        if read.members is not None:
            others = torch.where(read.members == target.unsqueeze(1) + 1, 0, read.members)
            scores = functional.pad(scores, (1, 0)).scatter(1, others, -torch.inf)[:, 1:]
        return functional.cross_entropy(scores, target)
    drawn = torch.randint(items.count, (negatives,), device=query.device)
    positive = (query * items(target + 1)).sum(dim=1)
    return sampled_softmax(positive, query @ items(drawn + 1).T, no_negatives(read, drawn.unsqueeze(0), target))


def no_negatives(read: Read, drawn: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Which of the items drawn, [1 or n, M] by row, are the right one after all or, of sets, a member; [n, M]."""
    same = drawn == target.unsqueeze(1)
    return same if read.members is None else same | (drawn.unsqueeze(2) + 1 == read.members.unsqueeze(1)).any(dim=2)


class Batches:
    """Examples of histories in batches, read with as little work as can be.

    Where the decoder reads one vector of a sequence, examples that go on with one another are read together: the last
    of a run holds all others. Otherwise every example is read by itself.
    """

    def __init__(self, shape: HistoryShape, histories: np.ndarray, documents: np.ndarray, batch_size: int) -> None:
        together = shape.kind == "sequence" and shape.memory == "vector"
        self.histories = histories
        self.bounds = runs(histories, documents) if together else np.arange(len(histories) + 1)
        self.together = together
        count = len(self.bounds) - 1
        self.lengths = np.count_nonzero(histories, axis=1)
        self.size = max(1, round(batch_size * count / max(1, len(histories))))

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return -(-(len(self.bounds) - 1) // self.size)

    def order(self, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """Numbers of runs, batch by batch."""
        from callslip.training.batches import by_length

        return by_length(self.lengths[self.bounds[1:] - 1], self.size, seed, epoch)

    def examples(self, numbers: np.ndarray) -> np.ndarray:
        """The examples of these runs."""
        return np.concatenate([np.arange(self.bounds[n], self.bounds[n + 1]) for n in numbers])

    def read(self, encoder: HistoryEncoder, numbers: np.ndarray) -> Read:
        """The histories of the examples of these runs, read."""
        import torch

        from callslip.decoders.histories import Read

        device = encoder.items.trained.device
        last = self.bounds[numbers + 1] - 1
        table = torch.from_numpy(self.histories[last]).to(device)
        if not self.together:
            return encoder(table)
        sizes = self.bounds[numbers + 1] - self.bounds[numbers]
        run = np.repeat(np.arange(len(numbers)), sizes)
        place = self.lengths[last][run] - 1 - (last[run] - self.examples(numbers))
        return Read(encoder.at(table, torch.from_numpy(run).to(device), torch.from_numpy(place).to(device)))
