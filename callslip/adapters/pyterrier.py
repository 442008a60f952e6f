"""PyTerrier: an index as a transformer of pipelines, and `fit` as an indexer. Needs no Java.

from callslip.adapters.pyterrier import CallslipIndexer, CallslipRetriever
index = CallslipIndexer("my-index", method="bm25").index(dataset.get_corpus_iter())
pt.Experiment([CallslipRetriever(index)], topics, qrels, ["ndcg_cut_10"])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from callslip.api import fit, load
from callslip.corpus.documents import Corpus, Document, Query
from callslip.errors import MissingExtra
from callslip.index.retriever import Retriever

try:
    import pandas as pd
    import pyterrier as pt
except ImportError:
    raise MissingExtra("callslip.adapters.pyterrier", "pyterrier") from None

COLUMNS = ["docno", "score", "rank"]


class CallslipRetriever(pt.Transformer):
    """Searches an index: qid and query in; docno, score and rank (from 0) out, with the text if `text` is set."""

    def __init__(self, index: Retriever | str | Path, k: int = 1000, *, text: bool = False) -> None:
        self.index = index if isinstance(index, Retriever) else load(index)
        self.k, self.text = k, text

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(topics, extra_columns=["query"])
        more = COLUMNS + (["title", "text"] if self.text else [])
        kept = [column for column in topics.columns if column not in more]
        asked = [Query(str(row["qid"]), str(row["query"])) for row in topics.to_dict("records")]
        found = self.index.search_batch(asked, min(self.k, max(1, len(self.index))), texts=self.text) if asked else []
        rows = []
        for topic, hits in zip(topics[kept].itertuples(index=False), found, strict=True):
            for hit in hits:
                own = (hit.doc_id, hit.score, hit.rank - 1)
                rows.append((*topic, *own, hit.title, hit.text) if self.text else (*topic, *own))
        return pd.DataFrame(rows, columns=[*kept, *more])


class CallslipIndexer(pt.Indexer):
    """Fits an index on dictionaries with docno, text and perhaps title, and saves it; other fields are metadata."""

    def __init__(
        self, path: str | Path, method: str | type[Retriever] = "bm25", settings: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.method, self.settings = path, method, settings

    def index(self, iter: Iterable[Mapping[str, Any]], **options: Any) -> Retriever:
        documents = []
        for row in iter:
            more = {name: value for name, value in row.items() if name not in ("docno", "text", "title")}
            documents.append(Document(str(row["docno"]), row.get("text") or "", row.get("title") or "", more))
        return fit(Corpus(documents), self.method, self.path, settings=self.settings)
