"""A maker of codes: the signs of the first differences from the mean, in groups of bits."""

import numpy as np


class Signs:
    """Codes of `length` tokens of two bits, by the vector's first numbers."""

    def __init__(self, width, length, seed):
        self.length, self.mean = length, np.zeros(0)

    def fit(self, vectors):
        self.mean = vectors.mean(axis=0)
        return self.assign(vectors)

    def assign(self, vectors):
        bits = (vectors > self.mean)[:, : 2 * self.length].reshape(len(vectors), self.length, 2)
        return (bits * [2, 1]).sum(axis=2).astype(np.int32)

    def state(self):
        return {"mean": self.mean, "length": np.array(self.length)}

    @classmethod
    def from_state(cls, state):
        made = cls(4, int(state["length"]), 0)
        made.mean = state["mean"]
        return made
