"""Vectors of texts by the encoder in the settings, which is loaded when the first text is encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from callslip.encoders.encoder import Encoder


class EncoderChoice(Protocol):
    """The settings of an encoder."""

    @property
    def encoder(self) -> str: ...
    @property
    def max_length(self) -> int | None: ...
    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> str | None: ...


class TextVectors:
    """Encodes texts: queries directly, documents through the cache."""

    def __init__(self, settings: EncoderChoice) -> None:
        self.settings = settings
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            from callslip.encoders.encoder import load_encoder

            s = self.settings
            self._encoder = load_encoder(s.encoder, device=s.device, max_length=s.max_length, backend=s.backend)
        return self._encoder

    def encode(self, texts: list[str]) -> np.ndarray:
        """Unit vectors of queries, [n, dim], without the cache."""
        return self.encoder.encode(texts)

    def cached(self, texts: list[str], progress: str) -> np.ndarray:
        """Unit vectors of documents or training texts, [n, dim]; cached, so that each text is encoded only once."""
        from callslip.encoders.vector_cache import cached_encode

        return cached_encode(self.encoder, texts, progress=progress)

    def adjust(self, settings: EncoderChoice) -> None:
        """Use other settings from the next text on."""
        self.settings, self._encoder = settings, None
