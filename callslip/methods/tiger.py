"""TIGER: codes by RQ-VAE of the items' texts, and a model that reads a history and writes the next item's code
(Rajput et al., 2023).

One more level tells items of the same code apart, so that a code is an item and the model's order of codes is the
ranking. On a corpus of texts it writes the code of the document that answers a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.identifiers.levels import places
from callslip.identifiers.rqvae import RQVAE
from callslip.index.generative import GenerativeRetriever, GenerativeSettings, Ranking
from callslip.settings import check_range


@dataclass(frozen=True)
class TIGERSettings(GenerativeSettings):
    """TIGER's own: the codes."""

    width: int = 256
    """Codewords of each of the RQ-VAE's levels."""
    length: int = 3
    """Levels of the RQ-VAE."""
    collisions: Literal["level", "bucket"] = "level"
    """Items of the same code: told apart by one more `level`, as in the paper, or left in one `bucket` and ranked."""
    rqvae_epochs: int = 50
    """Passes of the RQ-VAE over the items' vectors."""
    rqvae_latent: int = 32
    """Dimensions of what it quantises."""
    ranking: Ranking = "bucket"
    """Order of hits: `bucket` is the model's order of codes, as in the paper; `sum` and `union` let the inner product
    of history and item have its say, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, width=1, length=1, rqvae_epochs=1, rqvae_latent=1)


class TIGER(GenerativeRetriever):
    """RQ-VAE codes, and a history that writes them."""

    Settings = TIGERSettings
    settings: TIGERSettings
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"epochs": 8, "decoder_width": 128},
        "paper": {"ranker_weight": 0.0},
    }

    def code_maker(self, documents: int) -> RQVAE:
        s = self.settings
        return RQVAE(s.length, s.width, self.vectors.shape[1], latent=s.rqvae_latent, seed=s.seed)

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        self.maker = maker = self.code_maker(len(corpus))
        codes = maker.fit(self.vectors, epochs=self.settings.rqvae_epochs)
        if self.settings.collisions == "bucket":
            return codes
        return np.concatenate([codes, places(codes, self.settings.width)[:, None].astype(codes.dtype)], axis=1)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """New items share the whole code of the nearest item with their tokens: the model wrote no other place."""
        codes = super().assign(documents, vectors)
        if self.settings.collisions == "bucket":
            return codes
        place = [self._place(code, vector) for code, vector in zip(codes, vectors, strict=True)]
        return np.concatenate([codes, np.array(place, codes.dtype).reshape(-1, 1)], axis=1)

    def _place(self, code: np.ndarray, vector: np.ndarray) -> int:
        same = self.identifiers.prefix_slice(code.tolist())
        rows = self.identifiers.rows[same]
        if not len(rows):
            return 0
        return int(self.identifiers.codes[same][int(np.argmax(self.vectors[rows] @ vector)), -1])

    def new_model(self, widths: Sequence[int], with_end: bool = False) -> Any:
        """A writer of all tokens that there may ever be: the RQ-VAE may give a new item one that nobody has yet."""
        return super().new_model([self.settings.width] * len(widths), with_end)
