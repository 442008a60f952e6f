"""URI: one decoder that is the indexer of items and the retriever of queries (ICLR 2025).

The decoder gives a distribution over a level's tokens, for a query and for an item alike. Level by level it is trained
so that the two agree (what the paper calls E-step and M-step, both at once), items commit themselves to a token, and
tokens are used evenly; then every item is given a token of the level, none more items than its share. So the index is
built by what will be searched with, out of the queries that items have in common, and not by clusters of vectors. Last
of all the decoder learns to write whole codes, and a ranker learns to order what lies in the buckets.
"""

from callslip.methods.uri.training import *  # noqa: F403
