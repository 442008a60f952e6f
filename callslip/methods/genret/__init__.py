"""GenRet: codes that the model itself learns, as a discrete auto-encoder of documents (Sun et al., 2023).

One model reads a text and writes a code: for a document it is the tokeniser, for a query the retriever. Codes are
learned level by level. At each level the model is warmed up, a codebook is made from its states by k-means with
guaranteed sizes, and model and codebook are trained so that the chosen row of the codebook tells the document from the
others that share its prefix (reconstruction), that the document commits to its token, and that its queries write it
(retrieval); tokens are shared out evenly while training (Sinkhorn). Then the level's tokens are fixed. Last of all the
model learns to write whole codes.
"""

from callslip.methods.genret.training import *  # noqa: F403
