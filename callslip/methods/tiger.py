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
from callslip.generative import CodeMaker, GenerativeRetriever, GenerativeSettings
from callslip.identifiers.growth import places
from callslip.identifiers.rqvae import RQVAE
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
    ranking: Literal["bucket", "sum", "union"] = "bucket"
    """Order of hits: `bucket` is the model's order of codes, as in the paper; `sum` and `union` let the inner product
    of history and item have its say, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, width=1, length=1, rqvae_epochs=1, rqvae_latent=1)


class FittedRQVAE(RQVAE):
    """An RQ-VAE that knows how long to train."""

    epochs = 50

    def fit(self, vectors: np.ndarray, **options: Any) -> np.ndarray:
        return super().fit(vectors, **({"epochs": self.epochs} | options))


class TIGER(GenerativeRetriever):
    """RQ-VAE codes, and a history that writes them."""

    Settings = TIGERSettings
    settings: TIGERSettings
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"epochs": 8, "decoder_width": 128},
        "paper": {"ranker_weight": 0.0},
    }

    def code_maker(self, documents: int) -> CodeMaker:
        s = self.settings
        maker = FittedRQVAE(s.length, s.width, self.vectors.shape[1], latent=s.rqvae_latent, seed=s.seed)
        maker.epochs = s.rqvae_epochs
        return maker

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        return self._told_apart(super().make_codes(corpus))

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        return self._told_apart(super().assign(documents, vectors), new=True)

    def _told_apart(self, codes: np.ndarray, new: bool = False) -> np.ndarray:
        s = self.settings
        if s.collisions == "bucket":
            return codes
        place = places(codes, s.width, self.identifiers if new else None)
        return np.concatenate([codes, place[:, None].astype(codes.dtype)], axis=1)

    def new_model(self, widths: Sequence[int], with_end: bool = False) -> Any:
        """A writer of all tokens that there may ever be: a new item may take one that nobody has yet."""
        return super().new_model([self.settings.width] * len(widths), with_end)
