"""GLEN: codes made of words, first the document's keywords, then what ranks it best (Lee et al., EMNLP 2023).

Query and document go through one decoder that is fed its own hidden states, not the words it writes. First it learns
to write the heaviest words of a document (keyword phase); then codes follow the model: what it writes for a document is
the document's code, and it learns to rank by it (refinement phase). A query gives one table of scores, a word a column
and a level a row, so every code is scored exactly. Documents that share a code are ranked by how similarly the query
and they weigh its words.

In the paper's order: `settings`, `equations`, `model` (a small decoder over vectors), `pretrained` (T5, as in the
paper, and a fine-tuned encoder), `training`, `search`, and `method`, which puts them together.
"""

from callslip.identifiers.keywords import keyword_codes
from callslip.methods.glen.equations import (
    annealed_temperature,
    collision_order,
    identifier_embedding,
    identifier_weights,
    keyword_loss,
    pairwise_ranking,
    pointwise_retrieval,
    relevance,
    weight_cosine,
)
from callslip.methods.glen.method import GLEN
from callslip.methods.glen.model import LexicalWriter
from callslip.methods.glen.pretrained import LexicalT5
from callslip.methods.glen.settings import GLENSettings
from callslip.methods.glen.training import Training

__all__ = [
    "GLEN",
    "GLENSettings",
    "LexicalT5",
    "LexicalWriter",
    "Training",
    "annealed_temperature",
    "collision_order",
    "identifier_embedding",
    "identifier_weights",
    "keyword_codes",
    "keyword_loss",
    "pairwise_ranking",
    "pointwise_retrieval",
    "relevance",
    "weight_cosine",
]
