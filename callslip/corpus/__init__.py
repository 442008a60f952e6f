"""Documents, queries and judgements; the formats they are read from; pseudo-queries to train on."""

from callslip.corpus.doc2query import doc2query
from callslip.corpus.documents import Corpus, Document, Judgements, Pair, Query, SkippedLines
from callslip.corpus.load import load_corpus
from callslip.corpus.pseudo_queries import document_frequencies, pseudo_queries
from callslip.corpus.queries import load_judgements, load_queries
from callslip.corpus.sequences import Sequences

__all__ = [
    "Corpus",
    "Document",
    "Judgements",
    "Pair",
    "Query",
    "Sequences",
    "SkippedLines",
    "doc2query",
    "document_frequencies",
    "load_corpus",
    "load_judgements",
    "load_queries",
    "pseudo_queries",
]
