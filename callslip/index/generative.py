"""GenerativeRetriever: documents get codes, a model is trained to write them, search lets it write.

The default is the two-stage way: first `make_codes`, then `train_model`. A method overrides what its paper does
differently; nothing is here that only one method needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from callslip.corpus.documents import Corpus, Document, Pair, Query
from callslip.errors import Unsupported
from callslip.identifiers.maker import CodeMaker as CodeMaker
from callslip.identifiers.table import Identifiers
from callslip.index.histories import (
    Batches,
    HistoryShape,
    has_histories,
    has_texts,
    interaction_vectors,
    ranking_term,
    training_examples,
    training_sequences,
)
from callslip.index.readers import Inputs as Inputs
from callslip.index.readers import WriterRetriever
from callslip.index.retriever import Found
from callslip.index.settings import GenerativeSettings as GenerativeSettings  # methods take these from here
from callslip.index.settings import Ranking as Ranking
from callslip.search import candidates
from callslip.storage.rows import Parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from callslip.identifiers.trie import Trie
    from callslip.search.beam import Beams


class GenerativeRetriever(WriterRetriever):
    """Writes codes for a query, and returns the documents that bear them."""

    search_settings = frozenset(
        {"beam", "decoding", "ranking", "similarity_weight", "history_weight", "bucket_limit", "backend", "device"}
    )

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._node_masks: list[tuple[np.ndarray, Trie, list[np.ndarray]]] = []

    # The two stages of the default fit.

    def _fit(self, corpus: Corpus) -> None:
        import torch

        self.check_seq2seq()
        self.log = None
        self.read_corpus(corpus)
        given = self.given_codes(corpus)
        codes = self.make_codes(corpus) if given is None else given
        self.identifiers = Identifiers(corpus.doc_ids, codes)
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(self.settings.seed)
            self.model = self.new_model(self.identifiers.widths, with_end=bool((codes < 0).any()))
            examples, rows = self.examples(corpus)
            self.train_model(examples, codes[rows], rows)

    def read_corpus(self, corpus: Corpus) -> None:
        """Settle what queries are, texts or histories, and make a vector of every document."""
        s, self.history = self.settings, None
        kind = s.queries
        if kind == "auto":
            kind = "sequence" if has_histories(corpus) and self.could_read(histories=True) else "text"
        if kind != "text":
            training_sequences(corpus)  # or an error: a log of users with too few items is no corpus of texts
        texts = kind == "text" or has_texts(corpus)
        if texts:
            self.vectors = self.encode([d.content for d in corpus], "encoding documents")
        else:
            self.vectors = interaction_vectors(training_sequences(corpus), len(corpus), s.seed)
        if kind != "text":
            self.history = HistoryShape.of(s, kind, self.vectors, texts)

    def given_codes(self, corpus: Corpus) -> np.ndarray | None:
        """The codes of the index that the settings name, [N, L]; none if they name none."""
        from callslip.storage.saved_codes import given_codes

        self.maker = None  # nothing here could code a new document as that index would
        return None if self.settings.codes_from is None else given_codes(self.settings.codes_from, corpus.doc_ids)

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        """A code for each document of the corpus, [N, L]."""
        self.maker = self.code_maker(len(corpus))
        if self.maker is None:
            raise NotImplementedError("a method gives its codes by `make_codes` or by `code_maker`")
        return self.maker.fit(self.vectors)

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """Codes for documents that the model was not trained on, [n, L]."""
        if self.maker is not None:
            return self.maker.assign(vectors)
        raise Unsupported(
            f"{self.method} cannot code documents that it was not trained on",
            f"Fit again with them: callslip fit CORPUS --method {self.method} --out DIR; or use dsi-semantic.",
        )

    def rank(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """How near the documents of a bucket are to the query: inner products of vectors."""
        return (self.vectors if self.history is None else self.item_vectors())[rows] @ query

    def examples(self, corpus: Corpus) -> tuple[Inputs, np.ndarray]:
        """Training examples: texts as the model reads them (vectors, or token ids) or histories, and the row of the
        document that each one belongs to."""
        if self.history is not None:
            some = training_examples(training_sequences(corpus), self.history.kind, self.history.longest)
            return some.histories, some.targets
        row_of = corpus.rows()
        pairs = self.training_pairs(corpus)
        rows = np.array([row_of[pair.doc_id] for pair in pairs], dtype=np.int64)
        texts = [pair.query for pair in pairs]
        documents = self.settings.train_on_documents
        if documents:
            rows = np.concatenate([rows, np.arange(len(corpus))])
        if self.reads_text:
            texts += [document.content for document in corpus] if documents else []
            return self._reader.tokenize(texts, self.settings.seq2seq_length), rows
        vectors = self.encode(texts, "encoding training texts")
        return np.concatenate([vectors, self.vectors]) if documents else vectors, rows

    def training_pairs(self, corpus: Corpus) -> list[Pair]:
        """Texts to train on, each with its document: pseudo-queries, then judged queries."""
        from callslip.training.texts import training_pairs

        s = self.settings
        return training_pairs(
            corpus,
            kinds=s.pseudo_queries,
            doc2query=s.doc2query,
            doc2query_per_document=s.doc2query_per_document,
            judged=s.train_on_queries,
            repeat=s.query_repeat,
            seed=s.seed,
            device=s.device,
        )

    def train_model(
        self,
        examples: Inputs,
        codes: np.ndarray,
        documents: np.ndarray | None = None,
        *,
        phase: str = "training the decoder",
        epochs: int | None = None,
    ) -> None:
        """Stage two: teach the model to write each example's code; and, of histories, which of all documents is meant:
        `documents` are their rows. As many `epochs` as the settings say, unless others are given."""
        import torch

        from callslip.training import batches
        from callslip.training.loop import train

        s = self.settings
        device = next(self.model.parameters()).device
        y = torch.from_numpy(codes.astype(np.int64))
        some = None
        if self.history is not None and documents is not None:
            some = Batches(self.history, cast("np.ndarray", examples), documents, s.batch_size)

        def objective(rows: np.ndarray, progress: float) -> dict[str, torch.Tensor]:
            if some is None:
                return self.terms(self.noisy(self.batch(examples, rows)), y[rows].to(device))
            read, rows = some.read(self.histories.encoder, rows), some.examples(rows)
            terms = self.terms(read, y[rows].to(device))
            if s.ranker_weight:
                target = torch.from_numpy(cast("np.ndarray", documents)[rows]).to(device)
                ranked = ranking_term(read, target, self.histories.items, s.ranker_negatives)
                terms["ranking"] = s.ranker_weight * ranked
            return terms

        def order(epoch: int) -> Iterator[np.ndarray]:
            if some is None:
                return batches.shuffled(len(examples), s.batch_size, s.seed, epoch)
            return some.order(s.seed, epoch)

        self.log = train(
            self.model,
            order,
            objective,
            epochs=s.epochs if epochs is None else epochs,
            steps_per_epoch=batches.steps(len(examples), s.batch_size) if some is None else len(some),
            learning_rate=s.learning_rate,
            weight_decay=self.decay,
            phase=phase,
            log=self.log,
            share=self.learning_share,
            checkpoints=self.checkpoints,
        )

    def noisy(self, batch: Any, noise: float | None = None) -> Any:
        """Vectors with the random vectors that training adds (of length `noise`, or the setting's); token ids and
        histories as they are."""
        import torch

        noise = self.settings.noise if noise is None else noise
        if not noise or not isinstance(batch, torch.Tensor) or not batch.is_floating_point():
            return batch
        return batch + noise * torch.randn_like(batch) / batch.shape[1] ** 0.5

    def terms(self, query: Any, code: torch.Tensor) -> dict[str, torch.Tensor]:
        """The objective of a batch: named terms, already weighted."""
        from callslip.training.losses import code_cross_entropy

        return {"generation": code_cross_entropy(self.model(query, code), code)}

    # Search.

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        vectors = self.query_vectors(queries)
        inputs = self.inputs(queries, vectors)
        live = None if mask is None else self.live_nodes(mask)
        found: dict[int, Found] = {}
        waiting, beam = np.arange(len(queries)), max(1, self.settings.beam)
        while len(waiting):
            some = [inputs[n] for n in waiting] if isinstance(inputs, list) else inputs[waiting]
            all_beams = self.write(some, beam, live)
            for number, beams in zip(waiting, all_beams, strict=True):
                one, within = self._collect(vectors[number], beams, mask, explain)
                if within >= k or beam >= self.identifiers.unique:
                    found[int(number)] = one
            waiting = np.array([n for n in waiting if int(n) not in found], dtype=np.int64)
            beam = min(4 * beam, self.identifiers.unique)  # too few documents in those buckets: write more codes
        return [found[number] for number in range(len(queries))]

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        """Let the model write its `beam` best codes for each query, as `inputs` gave them."""
        from callslip.search.decode import best_codes

        exact = self.settings.decoding == "exact"
        return best_codes(self.model, self.batch(inputs), self.identifiers.trie(), beam, live, exact=exact)

    def live_nodes(self, mask: np.ndarray) -> list[np.ndarray]:
        """A mask of rows as masks of the trie's nodes; those of the last few masks are kept."""
        trie = self.identifiers.trie()
        for known, of, nodes in self._node_masks:
            if known is mask and of is trie:
                return nodes
        nodes = trie.live(mask[self.identifiers.rows])
        self._node_masks = [(mask, trie, nodes), *self._node_masks[:3]]
        return nodes

    def _collect(self, query: np.ndarray, beams: Beams, mask: np.ndarray | None, explain: bool) -> tuple[Found, int]:
        """The documents of the beams' buckets, ranked, and how many of them are within their bucket's limit."""
        rows, beam = candidates.candidates(beams, self.identifiers, mask)
        similarity = self.rank(query, rows)
        s = self.settings
        weight = s.similarity_weight if self.history is None else s.history_weight
        scores = beams.scores[beam]
        sizes = candidates.sizes(beams, self.identifiers, self._alive) if explain or s.ranking == "share" else None
        if s.ranking == "share" and sizes is not None:
            scores = scores - np.log(sizes)[beam]
        elif s.ranking == "sum":
            scores = scores + weight * similarity
        elif s.ranking == "union":
            scores = similarity
        by_code = s.ranking == "bucket"
        order, within = candidates.merged(rows, beam, None if by_code else scores, similarity, s.bucket_limit)
        rows, beam, similarity, scores = rows[order], beam[order], similarity[order], scores[order]
        why = None
        if explain and sizes is not None:
            why = [
                {
                    "code_score": float(beams.scores[b]),
                    "level_scores": [round(float(v), 4) for v in beams.levels[b]],
                    "similarity": float(value),
                    "beam_rank": int(b) + 1,
                    "bucket_size": int(sizes[b]),
                }
                for b, value in zip(beam, similarity, strict=True)
            ]
        return Found(rows, scores, beams.codes[beam], why), within

    # A living index.

    def _prepare(self, documents: list[Document]) -> Parts:
        if self.history is not None and not self.history.texts:
            vectors = np.zeros((len(documents), self.vectors.shape[1]), np.float32)  # nobody has them yet
        else:
            vectors = self.encode([d.content for d in documents], "encoding new documents")
        return {"vectors": vectors, "codes": self.assign(documents, vectors)}

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        import torch

        # A deleted document keeps its row, and a new one may have its name.
        held, names = self.identifiers, [d.doc_id for d in documents]
        again = {n: f"deleted {n} {held.rows[held.position_of(n)]}" for n in names if n in held}
        self.identifiers = (held.renamed(again) if again else held).with_added(names, parts["codes"])
        self.vectors = np.concatenate([self.vectors, parts["vectors"]])
        if self.history is not None:
            self.histories.items.extend(torch.from_numpy(parts["vectors"]))
            self._item_vectors = None

    def _keep(self, rows: np.ndarray) -> None:
        doc_ids, codes = self.identifiers.in_row_order()
        self.identifiers = Identifiers([doc_ids[row] for row in rows.tolist()], codes[rows])
        self.vectors = self.vectors[rows]
        if self.history is not None:
            import torch

            self.histories.items.keep(torch.from_numpy(rows))
            self._item_vectors = None

    def _codes(self) -> np.ndarray | None:
        return self.identifiers.in_row_order()[1]
