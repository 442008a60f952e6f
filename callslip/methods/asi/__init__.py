"""ASI and ASI++: codes that an indexer learns together with the decoder that writes them, end to end (Yang et al.,
2023; Liu et al., 2024).

An encoder gives each text a dense vector. The indexer maps the vector to probabilities over the tokens of each level,
and the likeliest ones are a document's code; the decoder learns to write that code for the document's queries. All is
trained jointly, so codes move while the decoder learns them; it may go on to learn once they are frozen. ASI draws the
code of a query to that of its document and away from others. ASI++ adds three criteria that spread the codes: the
density of codes (Eq. 5), the use of the dense space (Eq. 6), and how much of a text its vector keeps (Eq. 9). A code
may belong to many documents.

In the paper's order: `settings`, `equations`, `indexers`, `model`, `training`, `search`, and `method`, which puts them
together.
"""

from callslip.methods.asi.equations import (
    bottleneck,
    code_distance,
    criteria_weight,
    discrete_contrastive,
    distribution_density,
    generation_loss,
    information_bottleneck,
)
from callslip.methods.asi.indexers import make_indexer
from callslip.methods.asi.method import ASI
from callslip.methods.asi.model import IndexedWriter
from callslip.methods.asi.settings import ASISettings
from callslip.methods.asi.training import Training

__all__ = [
    "ASI",
    "ASISettings",
    "IndexedWriter",
    "Training",
    "bottleneck",
    "code_distance",
    "criteria_weight",
    "discrete_contrastive",
    "distribution_density",
    "generation_loss",
    "information_bottleneck",
    "make_indexer",
]
