"""GLEN: codes made of words, first the document's keywords, then what ranks it best (Lee et al., 2023).

Query and document go through one decoder that is fed its own hidden states, not the words it writes. First it learns
to write the heaviest words of a document (keyword phase), then codes follow the model: what it writes for a document is
the document's code, and it learns to rank by it (refinement phase). A query gives one table of scores, a word a column
and a level a row, so every code is scored exactly. Documents that share a code are ranked by how alike
the query and they weigh its words.
"""

from callslip.methods.glen.training import *  # noqa: F403
