"""Tied-Atomic: one token per document, its embedding the model's own output for the text (Nguyen and Yates, 2023).

L = 1 and K = N: to write a code is to choose one of N tokens by the dot product of the decoder's last hidden state with
their embeddings. Here an embedding is no parameter but the state that the same model gives the document's text, so a
new document is one forward pass from being found. Which makes it dense retrieval, as the paper says.
"""

from callslip.methods.tied_atomic.training import *  # noqa: F403
