"""URI: one decoder that is the indexer of items and the retriever of queries (ICLR 2025).

The decoder gives a distribution over a level's tokens, for a query and for an item alike. Level by level it is trained
so that the two agree (what the paper calls E-step and M-step, both at once), items commit themselves to a token, and
tokens are used evenly; then every item is assigned a token of the level, and no token more items than its share. So the
index is built by the model that will search it, out of the queries that items have in common, and not by clusters of
vectors. Finally the decoder learns to write whole codes, and a ranker learns to order the documents of the buckets.

In the paper's order: `settings`, `equations`, `model`, `items`, `ranker`, `training`, and `method`, which puts them
together. Search is that of every generative method.
"""

from callslip.identifiers.balancing import balanced_assignment
from callslip.identifiers.quality import average_partition_entropy
from callslip.methods.uri.equations import balance, commitment, e_step, m_step, memory, ranking
from callslip.methods.uri.method import URI
from callslip.methods.uri.model import Ranker, UnifiedWriter
from callslip.methods.uri.settings import URISettings
from callslip.methods.uri.training import Indexer, Training

__all__ = [
    "URI",
    "Indexer",
    "Ranker",
    "Training",
    "URISettings",
    "UnifiedWriter",
    "average_partition_entropy",
    "balance",
    "balanced_assignment",
    "commitment",
    "e_step",
    "m_step",
    "memory",
    "ranking",
]
