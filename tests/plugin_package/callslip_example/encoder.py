"""An encoder: how often each letter occurs."""

import numpy as np

from callslip.encoders import Encoder


class Letters(Encoder):
    """26 counts."""

    name, dim, max_length, fingerprint, worth_caching = "letters", 26, 512, "letters 1", False

    def _batches(self, texts, batch_size):
        for row, text in enumerate(texts):
            yield [row], np.array([[text.lower().count(chr(97 + n)) for n in range(26)]], np.float32)


def letters(spec):
    return Letters()
