"""An encoder's own word pieces: how it cuts a text, and the embedding that it begins a piece with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from callslip.encoders.pretrained import open_checkpoint


class EncoderPieces:
    """The pieces of an encoder, by the name it goes by in the settings. Whole texts are cut, however long."""

    def __init__(self, spec: str) -> None:
        from tokenizers import Tokenizer

        self._checkpoint = open_checkpoint(spec)
        # A copy: the encoder's own tokenizer cuts texts off, and must go on doing so.
        self._reader = Tokenizer.from_str(self._checkpoint.tokenizer.to_str())
        self._reader.no_truncation()
        self._reader.no_padding()
        self._unknown = getattr(self._reader.model, "unk_token", None)

    def __call__(self, text: str) -> list[str]:
        return self.batch([text])[0]

    def batch(self, texts: Sequence[str]) -> list[list[str]]:
        """Pieces of many texts; what the encoder does not know is left out."""
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]  # a lone surrogate is no text
        encoded = self._reader.encode_batch(clean, add_special_tokens=False)
        return [[piece for piece in one.tokens if piece != self._unknown] for one in encoded]

    def table(self, pieces: Sequence[str]) -> np.ndarray:
        """The pieces' rows of the encoder's table of embeddings, [n, D]; zeros for a piece that is not its own."""
        weight = self._checkpoint.load_model().get_input_embeddings().weight.detach().float().numpy()
        rows = [self._reader.token_to_id(piece) for piece in pieces]
        found = weight[[0 if row is None else row for row in rows]]
        found[[row is None for row in rows]] = 0
        return found


def encoder_pieces(spec: str) -> EncoderPieces | None:
    """The word pieces of that encoder; none if it has no vocabulary, as the one from scratch."""
    return None if spec.partition(":")[0] == "scratch" else EncoderPieces(spec)


def plain(piece: str) -> str:
    """A piece as a text: without the marks of its place in a word."""
    return piece.removeprefix("##").removeprefix("Ġ")


def spread(rows: np.ndarray) -> np.ndarray:
    """Embeddings centred and of length sqrt(D), so that their products with states of length 1 spread by about 1."""
    rows = rows - rows.mean(axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.maximum(lengths, 1e-6) * rows.shape[1] ** 0.5).astype(np.float32)


def linear_map(x: np.ndarray, y: np.ndarray, ridge: float = 1.0) -> np.ndarray:
    """The matrix M, [Dx, Dy], that makes x M nearest to y by least squares, its size kept small by `ridge`."""
    found = np.linalg.solve(x.T @ x + ridge * len(x) * np.eye(x.shape[1]), x.T @ y)
    return (found / max(float(np.linalg.norm(found, 2)), 1e-9)).astype(np.float32)
