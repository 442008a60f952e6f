"""An encoder's word pieces, and vectors of words as embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from callslip.encoders.encoder import EncoderSpec, checkpoint_of


class EncoderPieces:
    """The tokenizer of an encoder, by its name in the settings, without truncation."""

    def __init__(self, spec: str) -> None:
        from tokenizers import Tokenizer

        # A copy, because the encoder's own tokenizer must keep its truncation.
        self._reader = Tokenizer.from_str(checkpoint_of(EncoderSpec.parse(spec)).tokenizer.to_str())
        self._reader.no_truncation()
        self._reader.no_padding()
        self._unknown = getattr(self._reader.model, "unk_token", None)

    def __call__(self, text: str) -> list[str]:
        return self.batch([text])[0]

    def batch(self, texts: Sequence[str]) -> list[list[str]]:
        """Pieces of many texts, without unknown ones."""
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # replaces lone surrogates
        encoded = self._reader.encode_batch(clean, add_special_tokens=False)
        return [[piece for piece in one.tokens if piece != self._unknown] for one in encoded]


def encoder_pieces(spec: str) -> EncoderPieces | None:
    """The word pieces of an encoder, or None if it has no vocabulary, like `scratch`."""
    return None if spec.partition(":")[0] == "scratch" else EncoderPieces(spec)


def plain(piece: str) -> str:
    """A piece as text, without the markers of its position in a word."""
    return piece.removeprefix("##").removeprefix("Ġ")


def spread(rows: np.ndarray) -> np.ndarray:
    """Embeddings centred and scaled to norm sqrt(D), so that their products with unit states have a standard deviation
    of about 1."""
    rows = rows - rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.maximum(lengths, 1e-6) * rows.shape[1] ** 0.5).astype(np.float32)
