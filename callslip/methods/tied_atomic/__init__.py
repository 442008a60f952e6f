"""Tied-Atomic: one token per document, its embedding the model's own output for the text (Nguyen and Yates, 2023).

L = 1 and K = N: to write a code is to choose one of N tokens by the dot product of the decoder's last hidden state with
their embeddings. Here an embedding is not a parameter but the state that the same model gives the document's text, so a
new document is one forward pass away from being found. That makes it dense retrieval, as the paper says.

In the paper's order: `settings`, `equations`, `model`, `training`, and `method`, which puts them together and searches.
"""

from callslip.methods.tied_atomic.equations import contrastive, margin_mse
from callslip.methods.tied_atomic.method import TiedAtomic
from callslip.methods.tied_atomic.model import T5State, TiedReader
from callslip.methods.tied_atomic.settings import TiedAtomicSettings
from callslip.methods.tied_atomic.training import ScoredTexts, Training

__all__ = [
    "ScoredTexts",
    "T5State",
    "TiedAtomic",
    "TiedAtomicSettings",
    "TiedReader",
    "Training",
    "contrastive",
    "margin_mse",
]
