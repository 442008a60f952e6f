"""GLEN: codes made of words, first the document's keywords, then what ranks it best (Lee et al., 2023).

Query and document go through one decoder that is fed its own hidden states, not the words it writes. First it learns
to write the heaviest words of a document (keyword phase), then codes follow the model: what it writes for a document is
the document's code, and it learns to rank by it (refinement phase). A query gives one table of scores, a word a column
and a level a row, so every code is scored exactly. Documents that share a code are ranked by how alike
the query and they weigh its words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from callslip.corpus.documents import Corpus
from callslip.encoders.word_pieces import EncoderPieces, encoder_pieces, linear_map, plain, spread
from callslip.errors import BadSetting
from callslip.identifiers.keywords import Within, corpus_vocabulary, keyword_codes
from callslip.identifiers.table import Identifiers
from callslip.methods.glen.search import WordCodeRetriever, WordCodeSettings, weight_cosine
from callslip.settings import check_range
from callslip.training.losses import code_cross_entropy
from callslip.training.negatives import Answers, number_texts, prefix_negatives

if TYPE_CHECKING:
    from callslip.methods.glen.model import LexicalWriter

HARD = 1e-5
"""The temperature that annealing ends at."""


@dataclass(frozen=True)
class GLENSettings(WordCodeSettings):
    """GLEN's own: the two phases, the losses of the second, and its negatives."""

    embeddings: Literal["encoded", "table"] = "encoded"
    """Where the words' embeddings begin: each piece `encoded` as a text, which puts words where texts are; or its row
    in the encoder's own `table` of word pieces, to which a linear map then takes the texts."""
    train_words: bool = False
    """Whether the words' embeddings are trained, too. In a short training a few words then draw all documents."""
    strengths: bool = True
    """Whether a query's levels begin the stronger, the more documents' words weigh there on the whole: the first words
    of a code are its heaviest. Otherwise all levels begin alike."""
    keyword_epochs: int = 1
    """Passes of the keyword phase; 0 leaves it out."""
    keyword_learning_rate: float = 2e-6
    """Peak learning rate of the keyword phase."""
    epochs: int = 3
    """Passes of the refinement phase; the temperature falls with each."""
    learning_rate: float = 5e-5
    """Peak learning rate of the refinement phase."""
    noise: float = 0.1
    """Length of the random vector added to each text's unit vector in training; documents in refinement have none."""
    epoch_pairs: int | None = 4000
    """Training texts drawn for each pass, of both phases; none is all of them."""
    batch_size: int = 128
    """Examples per step."""
    decoder_width: int = 128
    """Width of the decoder."""
    decoder_layers: int = 1
    """Layers of the decoder."""
    pairwise_weight: float = 1.0
    """Weight of the pairwise ranking loss."""
    ranking_temperature: float = 10.0
    """What relevances are divided by in the pairwise loss. They grow with `length`; where they are many times larger
    than 1, a query learns from its worst mistake alone."""
    pointwise_weight: float = 0.001
    """Weight of the pointwise retrieval loss."""
    distance_weight: float = 0.5
    """Weight, inside the pointwise loss, of the distance of identifier weights."""
    annealing: bool = True
    """Whether the temperature of Eq. 6 falls from 1; otherwise it is 1e-5 from the start."""
    support: int | None = 8
    """Words that a document chooses from in refinement, and the softmax of Eq. 6 runs over: its likeliest at each level
    when the epoch began; none is all."""
    negatives: int = 1
    """Hard negatives of each example at each step; those of the whole batch are shared."""
    negatives_by: Literal["prefix", "random"] = "prefix"
    """Where they come from: documents that share the longest prefix of the current code, or anywhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, keyword_epochs=0, keyword_learning_rate=0, epoch_pairs=1)
        check_range(self, pairwise_weight=0, pointwise_weight=0, distance_weight=0, support=1, negatives=0)
        if self.ranking_temperature <= 0:
            raise BadSetting(f"setting 'ranking_temperature' is {self.ranking_temperature}", "Use more than 0.")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"length": 8, "vocabulary": 2048, "epoch_pairs": 1000},
    "paper": {
        "length": 3,
        "vocabulary": None,
        "embeddings": "table",
        "train_words": True,
        "decoder_width": 768,
        "decoder_layers": 12,
        "decoder_heads": 12,
        "keyword_epochs": 20,
        "keyword_learning_rate": 2e-4,
        "epochs": 12,
        "learning_rate": 5e-5,
        "weight_decay": 1e-4,
        "epoch_pairs": None,
        "ranking_temperature": 1.0,
        "pointwise_weight": 0.5,
        "strengths": False,
        "support": None,
        "negatives": 8,
    },
    "no-keyword": {"keyword_epochs": 0},
    "no-annealing": {"annealing": False},
    "token-input": {"feedback": "token"},
    "no-pairwise": {"pairwise_weight": 0.0},
    "no-pointwise": {"pointwise_weight": 0.0},
    "random-negatives": {"negatives_by": "random"},
    "no-refinement": {"epochs": 0},
}

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


class GLEN(WordCodeRetriever):
    """Codes are the words that the model itself writes for a document."""

    Settings = GLENSettings
    settings: GLENSettings
    presets = PRESETS

    def _fit(self, corpus: Corpus) -> None:
        s, self.log = self.settings, None
        self.vectors = self.encode([d.content for d in corpus], "encoding documents")
        pieces = encoder_pieces(s.encoder)
        self.vocabulary = corpus_vocabulary(corpus, pieces, s.vocabulary)
        keywords = keyword_codes(corpus, s.length, Within(self.vocabulary, pieces))
        number = {word: token for token, word in enumerate(self.vocabulary)}
        # A text without a piece of the vocabulary has a keyword that is not in it; any word will do.
        codes = np.array([number.get(word, 0) for word in keywords.vocabulary])[keywords.codes]
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(s.seed)
            self.model = self.new_words(pieces)
            examples = self.labelled(corpus)
            self.learn_keywords(examples, codes)
            self.refine(examples, corpus.doc_ids)
        self.codes, self.weights = self.coded(self.vectors)
        self.identifiers = Identifiers(corpus.doc_ids, self.codes)

    def new_words(self, pieces: EncoderPieces | None) -> LexicalWriter:
        """An untrained writer whose words begin as the encoder has them."""
        from callslip.runtime.device import best_device

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
        model = model.to(best_device(s.device)).eval()
        if s.strengths:
            model.begin_strengths(self.vectors)
        return model

    def writer(self, shape: dict[str, Any]) -> LexicalWriter:  # type: ignore[override]
        from callslip.methods.glen.model import LexicalWriter

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
                self.noisy(self.batch(vectors))
                for vectors in (examples.vectors[examples.text[chosen]], self.vectors[examples.row[chosen]])
            )
            return {
                "query keywords": keyword_loss(self.model(query, code), code),
                "document keywords": keyword_loss(self.model(document, code, documents=True), code),
            }

        self._train(examples, objective, s.keyword_epochs, s.keyword_learning_rate, "learning keywords")

    def refine(self, examples: Examples, doc_ids: list[str]) -> None:
        """Phase two: rank by codes that follow the model (Eq. 8). Each epoch codes the documents anew."""
        s, current = self.settings, Current()

        def renew(epoch: int) -> None:
            current.temperature = annealed_temperature(epoch) if s.annealing else HARD
            name = f"refining codes: epoch {epoch}"
            held = self.checkpoints.recall(name) if self.checkpoints is not None else None
            if held is None:
                held = self.renewed(doc_ids, epoch)
                if self.checkpoints is not None:
                    self.checkpoints.remember(name, **held)
            current.words, current.negatives = held["words"], held["negatives"]

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            text, row = examples.text[chosen], examples.row[chosen]
            distinct, place = np.unique(np.concatenate([row, current.negatives[row].ravel()]), return_inverse=True)
            positives = torch.from_numpy(examples.answers.among(text, distinct)).to(self._device)
            query, docs = self.noisy(self.batch(examples.vectors[text])), self.batch(self.vectors[distinct])
            words = None if s.support is None else self.batch(current.words[distinct].astype(np.int64))
            own = torch.from_numpy(place[: len(row)])
            return self.ranking_terms(query, docs, own, positives, words, current.temperature)

        self._train(examples, objective, s.epochs, s.learning_rate, "refining codes", renew)

    def renewed(self, doc_ids: list[str], epoch: int) -> dict[str, np.ndarray]:
        """The documents' likeliest words as the model has them now, and their negatives by the codes that these are."""
        s, rng = self.settings, np.random.default_rng([self.settings.seed, 1, epoch])
        words = self.model.likeliest_words(self.vectors, s.support or 1)[0]
        if s.negatives_by == "random":
            return {"words": words, "negatives": rng.integers(0, len(doc_ids), (len(doc_ids), s.negatives))}
        table = Identifiers(doc_ids, words[:, :, 0])
        return {"words": words, "negatives": prefix_negatives(table, s.negatives, rng)}

    def ranking_terms(
        self, query: Tensor, docs: Tensor, own: Tensor, positives: Tensor, words: Tensor | None, temperature: float
    ) -> dict[str, Tensor]:
        """Eq. 8 for queries [Bq, dim] and documents [Bd, dim]; `own` [Bq] is each query's document, `positives`
        [Bq, Bd] marks all that answer it, `words` [Bd, L, S] are the documents' likeliest."""
        s, model, terms = self.settings, self.model, {}
        h_query, h_doc = model.states(query), model.states(docs, documents=True, among=words)
        if s.pairwise_weight:
            r_doc = identifier_embedding(h_doc, model.embeddings, temperature, words)
            scores = relevance(h_query, r_doc) / s.ranking_temperature
            terms["pairwise"] = s.pairwise_weight * pairwise_ranking(scores, positives)
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
            learning_rate=rate, weight_decay=s.weight_decay, phase=phase, log=self.log, checkpoints=self.checkpoints,
        )  # fmt: skip
        self.model.eval()

    @property
    def _device(self) -> torch.device:
        return self.model.embeddings.device
