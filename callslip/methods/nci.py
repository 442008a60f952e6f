"""NCI: a decoder whose output weights depend on the prefix (Wang et al., 2022, Neural Corpus Indexer).

Codes are paths in a tree of k-means clusters, so a token has a different meaning after every prefix. The prefix-aware
weight-adaptive decoder has separate tokens and output weights for each level, and adapts these weights by a small
network that reads the prefix. Spans of the document, its title and its sentences are used as training queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.engines.engine import State
from callslip.decoders.t5 import T5CodeWriter, Tokens
from callslip.decoders.writer import CodeWriter, States
from callslip.errors import BadSetting
from callslip.identifiers import levels_for
from callslip.identifiers.makers import CodeMaker, code_maker
from callslip.index.generative import GenerativeRetriever
from callslip.index.settings import (
    GenerativeSettings,
    HistoryQuerySettings,
    SavedCodesSettings,
    T5Settings,
)
from callslip.settings import check_positive, check_range
from callslip.training.losses import code_cross_entropy


@dataclass(frozen=True)
class NCISettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """Settings of NCI: the tree, the adaptive decoder, and the consistency loss."""

    training_texts: tuple[str, ...] = ("document", "title", "sentences", "spans")
    """Texts of each document to train on: the whole `document`, and as pseudo-queries its title, lead, sentences,
    spans or keywords; empty for none. Spans are the paper's document-as-query."""
    width: int = 32
    """Tokens per level."""
    length: int | None = None
    """Number of levels; none chooses it so that about `leaf` documents share a code."""
    leaf: int = 5
    """Target number of documents per code when `length` is none."""
    collisions: Literal["bucket", "level"] = "bucket"
    """Documents of the same code: ranked in their `bucket`, or distinguished by one more `level`, the place in it, as
    in the paper."""
    adaptor_width: int = 64
    """Width of the network that reads the prefix."""
    adaptor_rank: int = 4
    """Rank of the network's change to a level's output weights, beside a factor per dimension; 0 for the factors
    alone."""
    consistency: Literal["none", "contrastive", "divergence"] = "none"
    """Consistency loss between two passes with different dropout: `contrastive` as in the paper, `divergence` of their
    predictions, or `none`, which trains in half the time."""
    consistency_weight: float = 0.15
    """Weight of the consistency loss (alpha)."""
    temperature: float = 1.0
    """Temperature of the contrastive consistency loss."""

    def check(self) -> None:
        check_range(self, width=1, length=1, leaf=1, adaptor_width=1, adaptor_rank=0, consistency_weight=0)
        check_positive(self, "temperature")
        if self.micro_batch is not None and self.consistency == "contrastive":
            raise BadSetting(
                "save_memory=micro_batch: consistency=contrastive compares the texts of a whole batch",
                "Leave one out, or use consistency=divergence.",
            )


# The equations. Shapes: ... is any batch, D the width of the decoder, R the rank, K the level's outputs.


def adapted_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, left: Tensor, right: Tensor
) -> Tensor:
    """Section 3.3: logits h W_ada with W_ada = A W, where A comes from the prefix; [..., K].

    `hidden` [..., D], `weight` [K, D] and `bias` [K] are the level's own. A = diag(1 + scale) + left right, with
    `scale` [..., D], `left` [..., D, R] and `right` [..., R, D]. h A is computed first, so that neither A nor W_ada is
    ever made.
    """
    if hidden.shape != scale.shape or left.shape[:-1] != hidden.shape or left.mT.shape != right.shape:
        raise ValueError(f"{hidden.shape}, {scale.shape}, {left.shape} and {right.shape} do not fit")
    turned = hidden * (1 + scale) + (hidden.unsqueeze(-2) @ left @ right).squeeze(-2)
    return functional.linear(turned, weight, bias)


def contrastive_consistency(first: Tensor, second: Tensor, temperature: float = 1.0) -> Tensor:
    """Section 3.4: contrastive loss (cosine) that pulls together two passes [B, D] over the same example.

    The mean over the 2B rows of the cross-entropy of the row's other pass among the 2B - 1 other rows.
    """
    if first.shape != second.shape or first.dim() != 2:
        raise ValueError(f"two passes of shapes {tuple(first.shape)} and {tuple(second.shape)}")
    both = functional.normalize(torch.cat([first, second]), dim=-1)
    near = (both @ both.t() / temperature).masked_fill(torch.eye(len(both), dtype=torch.bool, device=both.device), -1e9)
    other = torch.arange(len(both), device=both.device).roll(len(first))
    return functional.cross_entropy(near, other)


def divergence_consistency(first: Tensor, second: Tensor) -> Tensor:
    """Symmetric Kullback-Leibler divergence between the predictions of two passes, logits [B, K]; batch mean."""
    if first.shape != second.shape or first.dim() != 2:
        raise ValueError(f"two passes of shapes {tuple(first.shape)} and {tuple(second.shape)}")
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    return 0.5 * ((p.exp() - q.exp()) * (p - q)).sum(dim=-1).mean()


# The decoder.


@dataclass
class PrefixState:
    """The decoder's state, and the prefix network's state of each beam, [B, beams, adaptor width]."""

    decoder: State
    prefix: Tensor

    @property
    def written(self) -> int:
        return self.decoder.written

    def fork(self) -> PrefixState:
        return PrefixState(self.decoder.fork(), self.prefix)


class PrefixAware(nn.Module):
    """The part of a code writer that adapts its heads to the prefix, which a recurrent cell reads in parallel to the
    decoder."""

    heads: nn.ModuleList

    def add_adaptors(self, width: int, adaptor_width: int, adaptor_rank: int) -> None:
        """Add the network that reads the prefix, for decoder states of a `width`."""
        outputs: list[int] = [head.out_features for head in self.heads]  # type: ignore[union-attr, misc]
        self.adaptor_width, self.adaptor_rank = adaptor_width, adaptor_rank
        self.opening = nn.Linear(width, adaptor_width)
        self.prefix_tokens = nn.ModuleList(nn.Embedding(n, adaptor_width) for n in outputs[:-1])
        self.cell = nn.GRUCell(adaptor_width, adaptor_width)
        parts = {"scale": 1, "left": adaptor_rank, "right": adaptor_rank}
        self.adaptors = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(adaptor_width, size * width) for name, size in parts.items()})
            for _ in outputs
        )
        for (
            adaptor
        ) in self.adaptors:  # start without adaptation; `right` must not be zero, or `left` would get no gradient
            for name in ("scale", "left"):
                nn.init.zeros_(adaptor[name].weight)  # type: ignore[index]
                nn.init.zeros_(adaptor[name].bias)  # type: ignore[index]

    def adapted(self, states: Tensor, prefix: Tensor, codes: Tensor) -> list[Tensor]:
        """Logits of every level for decoder states [B, L, width], given the first state of the prefix network."""
        logits = []
        for level in range(len(self.heads)):
            if level:
                prefix = self.read_token(prefix, codes[:, level - 1], level - 1)
            logits.append(self.logits(states[:, level], prefix, level))
        return logits

    def before(self, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Initial state of the prefix network, from the query, [B, adaptor width]."""
        if mask is None:
            return torch.tanh(self.opening(memory.mean(dim=1)))
        seen = mask.unsqueeze(-1).to(memory.dtype)
        return torch.tanh(self.opening((memory * seen).sum(dim=1) / seen.sum(dim=1).clamp(min=1)))

    def read_token(self, prefix: Tensor, tokens: Tensor, level: int) -> Tensor:
        """State of the prefix network after a token of `level`: [n, adaptor width] and [n] -> [n, adaptor width]."""
        return self.cell(self.prefix_tokens[level](self.token_index(tokens, level)), prefix)  # type: ignore[operator]

    def logits(self, hidden: Tensor, prefix: Tensor, level: int) -> Tensor:
        """The level's logits for decoder states [..., width] under prefixes [..., adaptor width]."""
        adaptor: Any = self.adaptors[level]
        left = adaptor["left"](prefix).unflatten(-1, (hidden.shape[-1], self.adaptor_rank))
        right = adaptor["right"](prefix).unflatten(-1, (self.adaptor_rank, hidden.shape[-1]))
        head: Any = self.heads[level]
        return adapted_logits(hidden, head.weight, head.bias, adaptor["scale"](prefix), left, right)

    def begun(self, state: State, hidden: Tensor, prefix: Tensor) -> tuple[PrefixState, Tensor]:
        """The state of a search after the query was read, and the first level's log-probabilities."""
        both = PrefixState(state, prefix.unsqueeze(1))
        return both, self.logits(hidden, both.prefix, 0).log_softmax(-1)

    def advance(self, state: Any, parents: Tensor, tokens: Tensor) -> Tensor:
        level = state.written
        width = state.prefix.shape[-1]
        kept = state.prefix.gather(1, parents.unsqueeze(-1).expand(-1, -1, width))
        prefix = self.read_token(kept.reshape(-1, width), tokens.reshape(-1), level - 1)
        state.prefix = prefix.view(*parents.shape, width)
        hidden = self.step(state.decoder, parents, tokens)  # type: ignore[operator]
        return self.logits(hidden, state.prefix, level).log_softmax(-1)


class PrefixAwareWriter(PrefixAware, CodeWriter):
    """A code writer with adapted heads."""

    def __init__(
        self, input_dim: int, widths: Sequence[int], *, adaptor_width: int = 64, adaptor_rank: int = 4, **shape: Any
    ) -> None:
        super().__init__(input_dim, widths, **shape)
        self.add_adaptors(len(self.begin), adaptor_width, adaptor_rank)

    def forward(self, queries: Tensor | States, codes: Tensor) -> list[Tensor]:
        return self.adapted(self.hidden(queries, codes), self.before(*self.memory(queries)), codes)

    def start(self, queries: Tensor | States) -> tuple[Any, Tensor]:
        return self.begun(*self.read(queries), self.before(*self.memory(queries)))


class PrefixAwareT5(PrefixAware, T5CodeWriter):
    """A T5 with adapted heads."""

    shape = (*T5CodeWriter.shape, "adaptor_width", "adaptor_rank")

    def __init__(
        self, t5: Any, widths: Sequence[int], *, adaptor_width: int = 64, adaptor_rank: int = 4, **shape: Any
    ) -> None:
        super().__init__(t5, widths, **shape)
        self.add_adaptors(t5.config.d_model, adaptor_width, adaptor_rank)

    def forward(self, queries: Tokens | States, codes: Tensor) -> list[Tensor]:
        read = queries if isinstance(queries, States) else self.encode(queries)
        return self.adapted(self.hidden(read, codes), self.before(read.values, read.mask), codes)

    def start(self, queries: Tokens) -> tuple[Any, Tensor]:  # type: ignore[override]
        state, hidden, read = self.read(queries)
        return self.begun(state, hidden, self.before(read.values, read.mask))


# The method.


class NCI(GenerativeRetriever):
    """Codes by hierarchical k-means, and the adaptive decoder that writes them."""

    Settings = NCISettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"epochs": 8, "decoder_width": 128}}

    def code_maker(self, documents: int) -> CodeMaker:
        s = self.settings
        length = s.length or levels_for(documents, s.width, s.leaf)
        last: Any = {"leaf": "rank"} if s.collisions == "level" else {}
        return code_maker("hierarchical-kmeans", width=s.width, length=length + bool(last), seed=s.seed, **last)

    def writer_shape(self) -> dict[str, Any]:
        s = self.settings
        return super().writer_shape() | {"adaptor_width": s.adaptor_width, "adaptor_rank": s.adaptor_rank}

    def writer(self, shape: dict[str, Any]) -> PrefixAwareWriter:
        return PrefixAwareWriter(**shape)

    def t5_writer(self) -> tuple[type[T5CodeWriter], dict[str, Any]]:
        s = self.settings
        return PrefixAwareT5, {
            "codes": "codebooks", "adaptor_width": s.adaptor_width, "adaptor_rank": s.adaptor_rank,
        }  # fmt: skip

    @property
    def by_example(self) -> bool:
        return super().by_example and self.settings.consistency != "contrastive"

    def terms(self, query: Any, code: Tensor) -> dict[str, Tensor]:
        s = self.settings
        if s.consistency == "none" or not s.consistency_weight:
            return super().terms(query, code)
        first, second = self.model(query, code), self.model(query, code)
        generation = 0.5 * (code_cross_entropy(first, code) + code_cross_entropy(second, code))
        if s.consistency == "contrastive":
            agree = [contrastive_consistency(a, b, s.temperature) for a, b in zip(first, second, strict=True)]
        else:
            agree = [divergence_consistency(a, b) for a, b in zip(first, second, strict=True)]
        return {"generation": generation, "consistency": s.consistency_weight * torch.stack(agree).sum()}
