"""GenRet: codes that the model itself learns, as a discrete auto-encoder of documents (Sun et al., NeurIPS 2023).

One model reads a text and writes a code: for a document it is the tokeniser, for a query the retriever. Codes are
learned level by level. At each level the model is warmed up, a codebook is made from its states by k-means with
guaranteed sizes, and model and codebook are trained so that the chosen row of the codebook distinguishes the document
from the others that share its prefix (reconstruction), that the document commits to its token, and that its queries
write it (retrieval); tokens are balanced while training (Sinkhorn). Then the level's tokens are frozen. Finally the
model learns to write whole codes.

In the paper's order: `settings`, `equations`, `model`, `training`, and `method`, which puts them together. Search is
that of every generative method.
"""

from callslip.identifiers.balancing import sinkhorn
from callslip.identifiers.kmeans import constrained_kmeans
from callslip.identifiers.quality import diversity
from callslip.methods.genret.equations import (
    commitment,
    initial_codebook,
    reassigned,
    reconstruction,
    retrieval,
    straight_through,
)
from callslip.methods.genret.method import GenRet
from callslip.methods.genret.model import CodebookWriter
from callslip.methods.genret.settings import GenRetSettings
from callslip.methods.genret.training import Tokenizer, Training, collapsed

__all__ = [
    "CodebookWriter",
    "GenRet",
    "GenRetSettings",
    "Tokenizer",
    "Training",
    "collapsed",
    "commitment",
    "constrained_kmeans",
    "diversity",
    "initial_codebook",
    "reassigned",
    "reconstruction",
    "retrieval",
    "sinkhorn",
    "straight_through",
]
