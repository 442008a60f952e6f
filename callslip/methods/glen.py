"""GLEN: codes made of words, first the document's keywords, then what ranks it best (Lee et al., 2023).

Query and document go through one decoder that is fed its own hidden states, not the words it writes. First it learns
to write the heaviest words of a document (keyword phase), then codes follow the model: what it writes for a document is
the document's code, and it learns to rank by it (refinement phase). A query gives one table of scores, a word a column
and a level a row, so every code is scored exactly. Documents that share a code are ranked by how alike
the query and they weigh its words.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.corpus.documents import Corpus, Document, Query
from callslip.generative import GenerativeRetriever, Inputs
from callslip.identifiers.keywords import Within, corpus_vocabulary, keyword_codes
from callslip.identifiers.table import Identifiers
from callslip.methods.glen_settings import GLENSettings
from callslip.model.pieces import EncoderPieces, encoder_pieces, linear_map, plain, spread
from callslip.retriever import Found
from callslip.training.losses import code_cross_entropy
from callslip.training.negatives import Answers, number_texts, prefix_negatives

if TYPE_CHECKING:
    from callslip.model.lexical import LexicalWriter
    from callslip.search.beam import Beams

VOCABULARY, WEIGHTS = "vocabulary.json", "weights.npy"
HARD = 1e-5
"""The temperature that annealing ends at."""


# The equations. B texts, L levels, V words, D the width of embeddings.


def keyword_loss(logits: Tensor | Sequence[Tensor], code: Tensor) -> Tensor:
    """Eq. 4: cross-entropy of the keywords, summed over levels; `logits` [B, L, V], `code` [B, L]."""
    levels = list(logits.unbind(1)) if isinstance(logits, Tensor) else logits
    return code_cross_entropy(levels, code)


def identifier_embedding(h: Tensor, embeddings: Tensor, temperature: float, support: Tensor | None = None) -> Tensor:
    """Eq. 6: r = softmax(h E^T / temperature) E, the code as an embedding, differentiable; [B, L, D].

    `h` [B, L, D], `embeddings` [V, D]. With `support` [B, L, S] the softmax runs over those words alone.
    """
    if h.dim() != 3 or embeddings.dim() != 2 or h.shape[-1] != embeddings.shape[-1]:
        raise ValueError(f"states {tuple(h.shape)} and embeddings {tuple(embeddings.shape)} do not fit")
    if temperature <= 0 or (support is not None and support.shape[:2] != h.shape[:2]):
        raise ValueError(f"a temperature of {temperature}, or words for other states than {tuple(h.shape)}")
    if support is None:
        return (h @ embeddings.T / temperature).softmax(-1) @ embeddings
    some = functional.embedding(support, embeddings)  # [B, L, S, D]
    share = ((some @ h.unsqueeze(-1)).squeeze(-1) / temperature).softmax(-1)
    return (share.unsqueeze(-2) @ some).squeeze(-2)


def relevance(h_query: Tensor, r_doc: Tensor) -> Tensor:
    """Eq. 6: rel(q, d), the sum over levels of q_t · r_t; [Bq, L, D] and [Bd, L, D] -> [Bq, Bd]."""
    if h_query.dim() != 3 or r_doc.dim() != 3 or h_query.shape[1:] != r_doc.shape[1:]:
        raise ValueError(f"states {tuple(h_query.shape)} and identifiers {tuple(r_doc.shape)} do not fit")
    return h_query.flatten(1) @ r_doc.flatten(1).T


def pairwise_ranking(relevance_matrix: Tensor, positives: Tensor) -> Tensor:
    """Eq. 5: cross-entropy of each query's document among all documents of the batch, [Bq, Bd]; mean over queries.

    `positives` [Bq] is the column of each query's document; or bool [Bq, Bd] marks all that answer the query: each of
    them is told from those that do not, and their mean is the query's loss.
    """
    size = relevance_matrix.shape
    if positives.dtype != torch.bool:
        if relevance_matrix.dim() != 2 or positives.shape != size[:1]:
            raise ValueError(f"positives {tuple(positives.shape)} of relevances {tuple(size)}")
        return functional.cross_entropy(relevance_matrix, positives)
    if positives.shape != size or not bool(positives.any(dim=1).all()):
        raise ValueError(f"positives {tuple(positives.shape)} of relevances {tuple(size)}, at least one in each row")
    others = relevance_matrix.masked_fill(positives, -torch.inf).logsumexp(dim=1, keepdim=True)
    losses = torch.logaddexp(relevance_matrix, others) - relevance_matrix
    return (losses.masked_fill(~positives, 0).sum(dim=1) / positives.sum(dim=1)).mean()


def pointwise_retrieval(
    logits: Tensor | Sequence[Tensor], code: Tensor, w_query: Tensor, w_doc: Tensor, weight: float = 0.5
) -> Tensor:
    """Eq. 7: cross-entropy of the document's code given the query, plus `weight` times the cosine distance of the
    identifier weights w_t = h_t · e_(z_t); `logits` [B, L, V], `code`, `w_query` and `w_doc` [B, L]."""
    if not w_query.shape == w_doc.shape == code.shape:
        raise ValueError(f"weights {tuple(w_query.shape)} and {tuple(w_doc.shape)} of codes {tuple(code.shape)}")
    distance = 1 - functional.cosine_similarity(w_query, w_doc, dim=-1)
    return keyword_loss(logits, code) + weight * distance.mean()


def annealed_temperature(epoch: float) -> float:
    """Section 3.3.2: max(1e-5, exp(-epoch)), counted from 0."""
    return max(HARD, math.exp(-epoch))


def identifier_weights(h: Tensor, embeddings: Tensor, code: Tensor) -> Tensor:
    """Eq. 7: w_t = h_t · e_(z_t); [B, L, D] and codes [B, L] -> [B, L]."""
    if h.shape[:2] != code.shape:
        raise ValueError(f"states {tuple(h.shape)} of codes {tuple(code.shape)}")
    return (h * functional.embedding(code, embeddings)).sum(dim=-1)


def collision_order(w_query: Any, w_docs: Any) -> Any:
    """Eq. 9: documents of one bucket by the cosine of their identifier weights [n, L] with the query's [L], best
    first, ties by row. Tensors give a tensor, arrays an array."""
    query, docs = np.asarray(w_query), np.asarray(w_docs)
    order = np.argsort(-weight_cosine(query, docs), kind="stable")
    return torch.from_numpy(order) if isinstance(w_docs, Tensor) else order


def weight_cosine(w_query: np.ndarray, w_docs: np.ndarray) -> np.ndarray:
    """Eq. 9: cos(w^q, w^d), [n]; `w_query` is [L], or [n, L] where documents have different codes."""
    if w_docs.ndim != 2 or w_query.shape not in (w_docs.shape, w_docs.shape[1:]):
        raise ValueError(f"weights {w_query.shape} of the query and {w_docs.shape} of documents do not fit")
    length = np.linalg.norm(w_query, axis=-1) * np.linalg.norm(w_docs, axis=-1)
    return (w_query * w_docs).sum(axis=-1) / np.maximum(length, 1e-12)


# The method.


@dataclass
class Examples:
    """What is trained on: example i is the text `text[i]` (a row of `vectors`) and the document `row[i]`."""

    vectors: np.ndarray
    text: np.ndarray
    row: np.ndarray
    answers: Answers


@dataclass
class Current:
    """What an epoch of the refinement goes by: the temperature, each document's likeliest words and its negatives."""

    temperature: float = HARD
    words: np.ndarray = field(default_factory=lambda: np.zeros(0))
    negatives: np.ndarray = field(default_factory=lambda: np.zeros(0))


class GLEN(GenerativeRetriever):
    """Codes are the words that the model itself writes for a document."""

    Settings = GLENSettings
    search_settings = GenerativeRetriever.search_settings | {"collision"}
    settings: GLENSettings
    model: LexicalWriter  # type: ignore[assignment]
    vocabulary: list[str]
    """The word of each token."""
    codes: np.ndarray
    """The code of each document, by row, [N, L]."""
    weights: np.ndarray
    """Identifier weights of each document, [N, L]."""
    presets = {  # noqa: RUF012  (a class constant, never changed)
        "quick": {"keyword_epochs": 1, "epochs": 4, "decoder_width": 128},
        "no-keyword": {"keyword_epochs": 0},
        "no-annealing": {"annealing": False},
        "token-input": {"feedback": "token"},
        "no-pairwise": {"pairwise_weight": 0.0},
        "no-pointwise": {"pointwise_weight": 0.0},
        "random-negatives": {"negatives_by": "random"},
        "no-refinement": {"epochs": 0},
    }

    def _fit(self, corpus: Corpus) -> None:
        s = self.settings
        self.vectors = self.encode([d.content for d in corpus], "encoding documents")
        pieces = encoder_pieces(s.encoder)
        self.vocabulary = corpus_vocabulary(corpus, pieces, s.vocabulary)
        keywords = keyword_codes(corpus, s.length, Within(self.vocabulary, pieces))
        number = {word: token for token, word in enumerate(self.vocabulary)}
        # A text without a piece of the vocabulary has a keyword that is not in it; any word will do.
        codes = np.array([number.get(word, 0) for word in keywords.vocabulary])[keywords.codes]
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(s.seed)
            self.model = self.new_model(pieces)
            examples = self.labelled(corpus)
            self.learn_keywords(examples, codes)
            self.refine(examples, corpus.doc_ids)
        self.codes, self.weights = self.coded(self.vectors)
        self.identifiers = Identifiers(corpus.doc_ids, self.codes)

    def new_model(self, pieces: EncoderPieces | None = None) -> LexicalWriter:  # type: ignore[override]
        """An untrained writer whose words begin as the encoder has them."""
        from callslip.device import best_device

        s = self.settings
        encoded = spread(self.encode([plain(piece) for piece in self.vocabulary], "encoding words"))
        table = spread(pieces.table(self.vocabulary)) if pieces is not None and s.embeddings == "table" else None
        begin = encoded if table is None else table
        self._shape = {
            "input_dim": self.vectors.shape[1], "words": len(begin), "dim": begin.shape[1], "length": s.length,
            "width": s.decoder_width, "layers": s.decoder_layers, "heads": s.decoder_heads,
            "memory_slots": s.memory_slots, "dropout": s.dropout, "feedback": s.feedback,
        }  # fmt: skip
        model = self.writer(self._shape)
        model.embeddings.requires_grad_(s.train_words)
        model.begin_with(begin, self.vectors.mean(axis=0), None if table is None else linear_map(encoded, table))
        return model.to(best_device(s.device)).eval()

    def writer(self, shape: dict[str, Any]) -> LexicalWriter:  # type: ignore[override]
        from callslip.model.lexical import LexicalWriter

        return LexicalWriter(**shape)

    def labelled(self, corpus: Corpus) -> Examples:
        """The training texts and, as texts of themselves, the documents."""
        row_of, pairs = corpus.rows(), self.training_pairs(corpus)
        texts = [pair.query for pair in pairs]
        rows = [row_of[pair.doc_id] for pair in pairs]
        if self.settings.train_on_documents or not texts:
            texts += [document.content for document in corpus]
            rows += range(len(corpus))
        distinct, text = number_texts(texts)
        row = np.array(rows, dtype=np.int64)
        return Examples(self.encode(distinct, "encoding training texts"), text, row, Answers(text, row, len(corpus)))

    # Training: the two phases.

    def learn_keywords(self, examples: Examples, codes: np.ndarray) -> None:
        """Phase one: write the keywords of the document, from its text or from a query of it (Eq. 4)."""
        s, keyword = self.settings, torch.from_numpy(codes.astype(np.int64))

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            code = keyword[examples.row[chosen]].to(self._device)
            query, document = (
                self._noisy(vectors)
                for vectors in (examples.vectors[examples.text[chosen]], self.vectors[examples.row[chosen]])
            )
            return {
                "query keywords": keyword_loss(self.model(query, code), code),
                "document keywords": keyword_loss(self.model(document, code, documents=True), code),
            }

        self._train(examples, objective, s.keyword_epochs, s.keyword_learning_rate, "learning keywords")

    def refine(self, examples: Examples, doc_ids: list[str]) -> None:
        """Phase two: rank by codes that follow the model (Eq. 8). Each epoch codes the documents anew."""
        s, rng, current = self.settings, np.random.default_rng([self.settings.seed, 1]), Current()

        def renew(epoch: int) -> None:
            current.temperature = annealed_temperature(epoch) if s.annealing else HARD
            current.words = self.model.likeliest_words(self.vectors, s.support or 1)[0]
            if s.negatives_by == "random":
                current.negatives = rng.integers(0, len(doc_ids), (len(doc_ids), s.negatives))
            else:
                table = Identifiers(doc_ids, current.words[:, :, 0])
                current.negatives = prefix_negatives(table, s.negatives, rng)

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            text, row = examples.text[chosen], examples.row[chosen]
            distinct, place = np.unique(np.concatenate([row, current.negatives[row].ravel()]), return_inverse=True)
            positives = torch.from_numpy(examples.answers.among(text, distinct)).to(self._device)
            query, docs = self._noisy(examples.vectors[text]), self._given(self.vectors[distinct])
            words = None if s.support is None else self._given(current.words[distinct].astype(np.int64))
            own = torch.from_numpy(place[: len(row)])
            return self.ranking_terms(query, docs, own, positives, words, current.temperature)

        self._train(examples, objective, s.epochs, s.learning_rate, "refining codes", renew)

    def ranking_terms(
        self, query: Tensor, docs: Tensor, own: Tensor, positives: Tensor, words: Tensor | None, temperature: float
    ) -> dict[str, Tensor]:
        """Eq. 8 for queries [Bq, dim] and documents [Bd, dim]; `own` [Bq] is each query's document, `positives`
        [Bq, Bd] marks all that answer it, `words` [Bd, L, S] are the documents' likeliest."""
        s, model, terms = self.settings, self.model, {}
        h_query, h_doc = model.states(query), model.states(docs, documents=True)
        if s.pairwise_weight:
            r_doc = identifier_embedding(h_doc, model.embeddings, temperature, words)
            terms["pairwise"] = s.pairwise_weight * pairwise_ranking(relevance(h_query, r_doc), positives)
        if s.pointwise_weight:
            h_doc = h_doc[own]
            code = model.logits(h_doc.detach()).argmax(-1)
            if s.feedback == "token":
                h_query = model.states(query, code)  # teacher forcing
            w_query, w_doc = (identifier_weights(h, model.embeddings, code) for h in (h_query, h_doc))
            loss = pointwise_retrieval(model.logits(h_query), code, w_query, w_doc, s.distance_weight)
            terms["pointwise"] = s.pointwise_weight * loss
        return terms

    def _train(
        self, examples: Examples, objective: Any, epochs: int, rate: float, phase: str, renew: Any = None
    ) -> None:
        from callslip.training import batches
        from callslip.training.loop import train

        s, count = self.settings, len(examples.text)
        steps = batches.steps(min(count, s.epoch_pairs or count), s.batch_size)

        def epoch_batches(epoch: int) -> Any:
            if renew is not None:
                self.model.eval()
                renew(epoch)
                self.model.train()
            return itertools.islice(batches.shuffled(count, s.batch_size, s.seed, epoch), steps)

        self.log = train(
            self.model, epoch_batches, objective, epochs=epochs, steps_per_epoch=steps,
            learning_rate=rate, weight_decay=s.weight_decay, phase=phase, log=self.log,
        )  # fmt: skip
        self.model.eval()

    @property
    def _device(self) -> torch.device:
        return self.model.embeddings.device

    def _given(self, vectors: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(vectors)).to(self._device)

    def _noisy(self, vectors: np.ndarray) -> Tensor:
        given = self._given(vectors)
        return given + self.settings.noise * torch.randn_like(given) / given.shape[1] ** 0.5

    # Codes, and search.

    def coded(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the model writes for documents, greedily (Eq. 2), and the weight of each word: [n, L] both."""
        codes, weights = self.model.likeliest_words(vectors, 1)
        return codes[:, :, 0], weights[:, :, 0]

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        return self.coded(vectors)[0]

    def _add(self, documents: list[Document]) -> None:
        if documents:
            super()._add(documents)
            new = self.coded(self.vectors[-len(documents) :])
            self.codes, self.weights = np.concatenate([self.codes, new[0]]), np.concatenate([self.weights, new[1]])

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        """The decoder's states of queries, [B, L, D]; their vectors, where words are fed back."""
        return vectors if self.settings.feedback == "token" else self.model.read(vectors).cpu().numpy()

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        from callslip.search.codes import best_codes

        exact = self.settings.decoding == "exact" and self.settings.feedback == "hidden"
        return best_codes(self.model, self.batch(inputs), self.identifiers.trie(), beam, live, exact=exact)

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        """Every code has a document, so the k best codes hold the k best documents, unless buckets are limited."""
        vectors = self.encoder.encode([query.text for query in queries])
        states = self.model.read(vectors).cpu().numpy()
        live = None if mask is None else self.live_nodes(mask)
        count = self.identifiers.unique if self.settings.bucket_limit else max(k, self.settings.beam)
        written = self.write(vectors if self.settings.feedback == "token" else states, count, live)
        asked = np.concatenate([vectors, states.reshape(len(states), -1)], axis=1)
        return [self._collect(one, beams, mask, explain)[0] for one, beams in zip(asked, written, strict=True)]

    def rank(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """How documents stand inside their bucket; `query` is the query's vector followed by its states."""
        if self.settings.ranking != "bucket" or self.settings.collision == "similarity":
            return super().rank(query[: self.vectors.shape[1]], rows)
        return weight_cosine(self._query_weights(query, rows), self.weights[rows])

    def _query_weights(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What the query's states give the words of documents' codes, [n, L]."""
        states = query[self.vectors.shape[1] :].reshape(self.settings.length, -1)
        words = self.model.embeddings.detach().cpu().numpy()
        return np.einsum("nld,ld->nl", words[self.codes[rows]], states)

    def _collect(self, query: np.ndarray, beams: Beams, mask: np.ndarray | None, explain: bool) -> tuple[Found, int]:
        found, within = super()._collect(query, beams, mask, explain)
        if found.why is not None:
            rows = np.asarray(found.rows)
            each = zip(self.codes[rows], self._query_weights(query, rows), self.weights[rows], strict=True)
            for why, (code, own, other) in zip(found.why, each, strict=True):
                why["words"] = [
                    {"word": self.vocabulary[token], "query": round(float(a), 3), "document": round(float(b), 3)}
                    for token, a, b in zip(code, own, other, strict=True)
                ]
        return found, within

    # The saved folder.

    def _save(self, folder: Path) -> None:
        super()._save(folder)
        np.save(folder / WEIGHTS, self.weights, allow_pickle=False)
        (folder / VOCABULARY).write_text(json.dumps(self.vocabulary) + "\n", encoding="utf-8")

    def _load(self, folder: Path) -> None:
        super()._load(folder)
        self.weights = np.load(folder / WEIGHTS, allow_pickle=False)
        self.vocabulary = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self.codes = np.empty_like(self.identifiers.codes)
        self.codes[self.identifiers.rows] = self.identifiers.codes
