"""An untrained encoder: the mean of random vectors of hashed words. For tests and as a control.

Its vectors only show which words two texts share; it needs neither files nor torch, and is deterministic.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from callslip.errors import BadSetting, UnknownName

DEFAULTS = {"dim": 64, "seed": 0, "vocab": 8192}


def scratch_settings(spec: str) -> dict[str, int]:
    """`scratch` or `scratch:dim=64,seed=1,vocab=8192` as a dictionary."""
    found = dict(DEFAULTS)
    _, _, rest = spec.partition(":")
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in found:
            raise UnknownName("setting of the scratch encoder", key, DEFAULTS)
        if not value.isdecimal() or (key != "seed" and int(value) < 1):
            raise BadSetting(
                f"scratch encoder: {key} is {value!r}", f"Give a whole number, as in {key}={DEFAULTS[key]}."
            )
        found[key] = int(value)
    return found


class HashedWords:
    """Mean of the random vectors of a text's words; row 0 is the vector of a text without words."""

    def __init__(self, dim: int, seed: int, vocab: int) -> None:
        self.table = np.random.default_rng(seed).standard_normal((vocab + 1, dim)).astype(np.float32)
        self.vocab = vocab

    def tokens(self, text: str, max_length: int) -> list[int]:
        words = re.findall(r"\w+", text.lower())[:max_length]
        return [1 + zlib.crc32(word.encode("utf-8", "replace")) % self.vocab for word in words] or [0]

    def vectors(self, texts: Sequence[str], max_length: int) -> np.ndarray:
        rows = [self.table[self.tokens(text, max_length)].mean(axis=0) for text in texts]
        return np.stack(rows) if rows else np.zeros((0, self.table.shape[1]), np.float32)
