"""ASI and ASI++: codes that an indexer learns together with the decoder that writes them, end to end (Yang et al.,
2023; Liu et al., 2024).

An encoder gives each text a dense vector. The indexer gives the vector probabilities over the tokens of each level, and
the likeliest ones are a document's code; the decoder learns to write that code for the document's queries. All is
trained at once, and codes move while the decoder learns them; it may go on to learn when they stand still. ASI draws
the code of a query to that of its document and away from others. ASI++ adds three criteria that spread the codes: the
density of codes (Eq. 5), the use of the dense space (Eq. 6), and how much of a text its vector keeps (Eq. 9). A code
may belong to many documents.
"""

from callslip.methods.asi.training import *  # noqa: F403
