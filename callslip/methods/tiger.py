"""TIGER: codes by RQ-VAE of the items' texts, and a model that reads a history and writes the next item's code
(Rajput et al., 2023).

An extra level distinguishes items with the same code, so that a code is an item and the model's order of codes is the
ranking. On a corpus of texts it writes the code of the document that answers a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np

from callslip.corpus.documents import Corpus, Document
from callslip.identifiers.levels import places
from callslip.identifiers.makers import CodeMaker, code_maker
from callslip.index.generative import GenerativeRetriever
from callslip.index.settings import GenerativeSettings, HistoryQuerySettings, Ranking, SavedCodesSettings, T5Settings
from callslip.settings import check_range

if TYPE_CHECKING:
    from callslip.identifiers.rqvae import RQVAE


@dataclass(frozen=True)
class TIGERSettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """Settings of TIGER: the codes."""

    width: int = 256
    """Number of codewords in each level of the RQ-VAE."""
    length: int = 3
    """Number of levels of the RQ-VAE."""
    collisions: Literal["level", "bucket"] = "level"
    """Items of the same code: distinguished by one more `level`, as in the paper, or left in one `bucket` and
    ranked."""
    quantiser: Literal["rqvae", "vqvae"] = "rqvae"
    """Quantiser that makes the codes: `rqvae` codes residuals, level by level, as in the paper; `vqvae` codes parts of
    the latent vector, each by itself."""
    rqvae_epochs: int = 50
    """Training epochs of the RQ-VAE."""
    rqvae_latent: int = 32
    """Dimensions of the RQ-VAE's latent space."""
    ranking: Ranking = "bucket"
    """Order of hits: `bucket` is the model's order of codes, as in the paper; `sum` and `union` use the inner
    product of history and item, too."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "tokens"
    """With `seq2seq`: code tokens as new tokens of T5's vocabulary, or codebooks per level."""

    def check(self) -> None:
        check_range(self, width=1, length=1, rqvae_epochs=1, rqvae_latent=1)


class TIGER(GenerativeRetriever):
    """RQ-VAE codes, and a model that writes the next item's code."""

    Settings = TIGERSettings
    codes_near = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {"quick": {"epochs": 8, "decoder_width": 128}}

    def code_maker(self, documents: int) -> CodeMaker:
        s, dim = self.settings, self.vectors.shape[1]
        return code_maker(s.quantiser, length=s.length, width=s.width, dim=dim, latent=s.rqvae_latent, seed=s.seed)

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        self.maker = self.code_maker(len(corpus))
        codes = cast("RQVAE", self.maker).fit(self.vectors, epochs=self.settings.rqvae_epochs)
        if self.settings.collisions == "bucket":
            return codes
        return np.concatenate([codes, places(codes, self.settings.width)[:, None].astype(codes.dtype)], axis=1)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """New items share the full code of the nearest item with the same RQ-VAE tokens, since the model never learned
        to write another last token."""
        codes = super().assign(documents, vectors)
        if self.settings.collisions == "bucket":
            return codes
        place = [self._place(code, vector) for code, vector in zip(codes, vectors, strict=True)]
        return np.concatenate([codes, np.array(place, codes.dtype).reshape(-1, 1)], axis=1)

    def _place(self, code: np.ndarray, vector: np.ndarray) -> int:
        same = self.identifiers.prefix_slice(code.tolist())
        positions = np.arange(same.start, same.stop)
        if not len(positions):
            return 0
        nearest = int(np.argmax(self.vectors[self.identifiers.rows_at(positions)] @ vector))
        return int(self.identifiers.codes_at(positions[nearest : nearest + 1])[0, -1])

    def new_model(self, widths: Sequence[int], with_end: bool = False) -> None:
        """A model for all possible tokens, since the RQ-VAE may assign a new item a token that no item has yet."""
        super().new_model([self.settings.width] * len(widths), with_end)
