"""MTEB: evaluate methods with `mteb.evaluate`, on a task made of the embedded demo corpus. Needs callslip[mteb].

The tasks of the hub work in the same way: `mteb.evaluate(MTEBModel("bm25"), mteb.get_task("SciFact"))`.
"""

from datasets import Dataset
from mteb import evaluate
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata

import callslip
from callslip.adapters.mteb import MTEBModel


def local_task(corpus: callslip.Corpus, split: str = "test") -> AbsTaskRetrieval:
    """A retrieval task of MTEB on a corpus of ours, without the hub."""

    class Local(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="CallslipLocal",
            dataset={"path": "callslip/local", "revision": "local"},
            description="A corpus of this machine.",
            type="Retrieval",
            category="t2t",
            eval_splits=[split],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, *arguments: object, **options: object) -> None:
            queries, judged = corpus.split(split)
            rows = [{"id": d.doc_id, "title": d.title, "text": d.text} for d in corpus]
            asked = [{"id": query.query_id, "text": query.text} for query in queries.values()]
            data = {"corpus": Dataset.from_list(rows), "queries": Dataset.from_list(asked)}
            self.dataset = {"default": {split: {**data, "relevant_docs": judged, "top_ranked": None}}}
            self.data_loaded = True

    return Local()


def ndcg(method: str, corpus: callslip.Corpus) -> float:
    """nDCG@10 by MTEB."""
    found = evaluate(MTEBModel(method), local_task(corpus), cache=None, co2_tracker=False, show_progress_bar=False)
    return found.task_results[0].get_score()


if __name__ == "__main__":
    demo = callslip.load_corpus("demo")
    theirs = ndcg("bm25", demo)
    ours = callslip.evaluate(callslip.fit(demo, "bm25"), demo, measures="nDCG@10").measures["nDCG@10"].mean
    print(f"nDCG@10 of bm25: {theirs:.4f} by MTEB, {ours:.4f} by callslip")
    assert abs(theirs - ours) < 5e-5
