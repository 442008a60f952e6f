"""Tied-Atomic: one token per document, its embedding the model's own output for the text (Nguyen and Yates, 2023).

L = 1 and K = N: to write a code is to choose one of N tokens by the dot product of the decoder's last hidden state with
their embeddings. Here an embedding is no parameter but the state that the same model gives the document's text, so a
new document is one forward pass from being found. Which makes it dense retrieval, as the paper says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from callslip.corpus.documents import Corpus, Pair, Query
from callslip.errors import BadSetting
from callslip.index.retriever import Found
from callslip.index.vectors import VectorRetriever, VectorSettings
from callslip.settings import check_range
from callslip.training import batches
from callslip.training.margins import products, scores_at
from callslip.training.negatives import Answers, draw, hard_candidates, number_texts

if TYPE_CHECKING:
    from torch import Tensor

    from callslip.methods.tied_atomic.model import TiedReader
    from callslip.search.bm25 import WordIndex
    from callslip.training.loop import TrainingLog
    from callslip.training.teachers import CrossEncoder

MODEL, MODEL_SHAPE, TRAINING = "model.safetensors", "model.json", "training.jsonl"
BLOCK = 4096
"""Texts that the model reads at a time when it is not trained."""


@dataclass(frozen=True)
class TiedAtomicSettings(VectorSettings):
    """The model, what it is trained on, its negatives and its teacher."""

    pseudo_queries: tuple[str, ...] = ("title", "sentences")
    """Texts made from each document to train on: title, lead, sentences, spans, keywords; empty for none."""
    doc2query: str | None = None
    """A Hugging Face sequence-to-sequence checkpoint (name or path) that writes further pseudo-queries."""
    doc2query_per_document: int = 5
    """How many queries it writes for each document."""
    train_on_queries: bool = True
    """Whether the judged queries of the train split are training examples."""
    query_repeat: int | None = None
    """How many times a judged query is seen per epoch: it is rarer than pseudo-queries, and nearer to real ones. None
    makes judged queries a third as many as the others, where they are fewer."""
    decoder_width: int = 256
    """Width of the decoder."""
    decoder_layers: int = 1
    """Layers of the decoder."""
    decoder_heads: int = 4
    """Attention heads of the decoder."""
    memory_slots: int = 2
    """Vectors that the decoder's cross-attention reads, made from the text's one vector."""
    dropout: float = 0.1
    """Dropout in the decoder."""
    noise: float = 0.5
    """Length of the random vector added to each text's unit vector in training."""
    negatives: int = 1
    """Hard negatives drawn for each example at each step; those of the whole batch are shared."""
    negatives_from: int = 100
    """How many of BM25's best documents they are drawn from, the answers left out."""
    temperature: float = 0.05
    """What dot products are divided by before the softmax, in training."""
    contrastive_weight: float = 1.0
    """Weight of the contrastive term."""
    teacher: str | None = None
    """Whose margins are to be learned (MarginMSE): none, dense (the encoder itself), bm25, or a Hugging Face
    cross-encoder by name or path."""
    teacher_weight: float = 1.0
    """Weight of the MarginMSE term."""
    teacher_negatives: int = 4
    """Hard negatives of each example that the teacher scores, once, before training."""
    teacher_scale: float | None = None
    """What the teacher's margins are multiplied by; none makes them spread as those of the untrained model."""
    epochs: int = 2
    """Passes over the training texts."""
    batch_size: int = 256
    """Examples per step."""
    learning_rate: float = 2e-4
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    seed: int = 0
    """Random seed of weights, batches and negatives."""
    device: str | None = None
    """cpu, cuda, mps; none is the best there is."""

    def __post_init__(self) -> None:
        check_range(self, decoder_width=1, decoder_layers=1, decoder_heads=1, memory_slots=1, batch_size=1)
        check_range(self, negatives_from=1, teacher_negatives=1, doc2query_per_document=1, neighbours=1, effort=1)
        check_range(self, dropout=0, noise=0, epochs=0, learning_rate=0, weight_decay=0, query_repeat=0, seed=0)
        check_range(self, negatives=0, contrastive_weight=0, teacher_weight=0)
        if self.dropout >= 1:
            raise BadSetting(f"setting 'dropout' is {self.dropout}", "Use less than 1.")
        if self.temperature <= 0:
            raise BadSetting(f"setting 'temperature' is {self.temperature}", "Use more than 0.")


# The paper's two objectives.


def contrastive(
    h_query: Tensor, h_positive: Tensor, h_negatives: Tensor, temperature: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """Eq. 2's softmax over the documents of the batch instead of all: the cross-entropy of each query's own document.

    `h_query`, `h_positive` [B, D]; `h_negatives` [B, M, D]. The documents are the B positives and all B·M negatives.
    `known` [B, B + B·M] marks those that answer the query too: they are left out, the query's own positive never.
    """
    import torch
    from torch.nn import functional

    _check_states(h_query, h_positive)
    size, width = h_query.shape
    if h_negatives.ndim != 3 or h_negatives.shape[::2] != (size, width):
        raise BadSetting(f"negatives of shape {list(h_negatives.shape)}", f"They must be [{size}, M, {width}].")
    documents = torch.cat([h_positive, h_negatives.flatten(0, 1)])
    scores = h_query @ documents.T / temperature
    own = torch.arange(size, device=scores.device)
    if known is not None:
        if known.shape != scores.shape:
            raise BadSetting(f"known answers of shape {list(known.shape)}", f"They must be {list(scores.shape)}.")
        others = known.bool().clone()
        others[own, own] = False
        scores = scores.masked_fill(others, -torch.inf)
    return functional.cross_entropy(scores, own)


def margin_mse(h_query: Tensor, h_positive: Tensor, h_negative: Tensor, teacher_margin: Tensor) -> Tensor:
    """MarginMSE: mean squared error of q·d⁺ − q·d⁻ against the teacher's margin. States [B, D], margins [B]."""
    from torch.nn import functional

    _check_states(h_query, h_positive)
    _check_states(h_query, h_negative)
    if teacher_margin.shape != h_query.shape[:1]:
        raise BadSetting(f"margins of shape {list(teacher_margin.shape)}", f"They must be [{len(h_query)}].")
    margin = (h_query * (h_positive - h_negative)).sum(dim=-1)
    return functional.mse_loss(margin, teacher_margin)


def _check_states(h_query: Tensor, h_document: Tensor) -> None:
    if h_query.ndim != 2 or not len(h_query) or h_query.shape != h_document.shape:
        raise BadSetting(
            f"states of queries {list(h_query.shape)} and documents {list(h_document.shape)}",
            "Both must be [B, D], with at least one row.",
        )


# What is trained on.


@dataclass
class Examples:
    """What is trained on: example i is the text `text[i]` (a row of `vectors`) and the document `row[i]`."""

    vectors: np.ndarray
    text: np.ndarray
    row: np.ndarray
    answers: Answers
    candidates: np.ndarray
    """Hard negatives of each text, [texts, negatives_from]."""
    judged: np.ndarray | None = None
    """Hard negatives of each example that the teacher scored, [examples, teacher_negatives]."""
    margins: np.ndarray | None = None
    """What the teacher thinks the example's document is better by than each of them."""


# The method.


class TiedAtomic(VectorRetriever):
    """Ranks documents by the dot product of their states with the query's. Documents' states are frozen at search."""

    Settings = TiedAtomicSettings
    search_settings = frozenset({"effort", "backend", "device"})
    settings: TiedAtomicSettings
    presets = {"quick": {"epochs": 1}}  # noqa: RUF012  (a class constant, never changed)

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.log: TrainingLog | None = None

    def _fit(self, corpus: Corpus) -> None:
        import torch

        teacher = self._open_teacher()  # a wrong name should not cost the encoding
        vectors = self.encode([document.content for document in corpus], "encoding documents")
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(self.settings.seed)
            self.model = self.new_model(vectors.shape[1])
            pairs = self.training_pairs(corpus) if self.settings.epochs else []
            if pairs:
                self.train_model(self.examples(corpus, pairs, vectors, teacher), vectors)
        self.index(self.project(vectors))

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

    def new_model(self, dim: int) -> TiedReader:
        """An untrained reader of the shape that the settings ask for."""
        from callslip.methods.tied_atomic.model import TiedReader
        from callslip.runtime.device import best_device

        s = self.settings
        self._shape: dict[str, Any] = {
            "dim": dim,
            "width": s.decoder_width,
            "layers": s.decoder_layers,
            "heads": s.decoder_heads,
            "memory_slots": s.memory_slots,
            "dropout": s.dropout,
        }
        return TiedReader(**self._shape).to(best_device(s.device)).eval()

    def examples(
        self, corpus: Corpus, pairs: Sequence[Pair], documents: np.ndarray, teacher: CrossEncoder | None
    ) -> Examples:
        """The pairs with their vectors, BM25's hard negatives, and what the teacher says of some of them."""
        from callslip.search.bm25 import WordIndex

        s, row_of = self.settings, corpus.rows()
        texts, text = number_texts([pair.query for pair in pairs])
        row = np.array([row_of[pair.doc_id] for pair in pairs], dtype=np.int64)
        vectors = self.encode(texts, "encoding training texts")
        words = WordIndex().index([document.content for document in corpus])
        answers = Answers(text, row, len(corpus))
        found = Examples(
            vectors, text, row, answers, hard_candidates(words.scores_of(texts), answers, s.negatives_from)
        )
        if s.teacher is not None:
            rng = np.random.default_rng([s.seed, 1])
            judged = draw(found.candidates[text], s.teacher_negatives, len(corpus), rng)
            contents = [document.content for document in corpus]
            rows = np.concatenate([row[:, None], judged], axis=1)
            scores = self._ask(teacher, words, texts, contents, found, rows, documents)
            found.judged, found.margins = judged, scores[:, :1] - scores[:, 1:]
            found.margins *= self._margin_scale(found, documents)
        return found

    def _open_teacher(self) -> CrossEncoder | None:
        from callslip.training.teachers import CrossEncoder

        s = self.settings
        return None if s.teacher in (None, "dense", "bm25") else CrossEncoder(str(s.teacher), device=s.device)

    def _ask(
        self,
        teacher: CrossEncoder | None,
        words: WordIndex,
        texts: list[str],
        contents: list[str],
        examples: Examples,
        rows: np.ndarray,
        documents: np.ndarray,
    ) -> np.ndarray:
        """The teacher's scores of the documents `rows` [examples, c] for each example's text."""
        if teacher is not None:
            asked = [texts[n] for n in np.repeat(examples.text, rows.shape[1])]
            return teacher.scores(asked, [contents[n] for n in rows.flat]).reshape(rows.shape)
        if self.settings.teacher == "dense":
            return products(examples.vectors[examples.text], documents, rows)
        return scores_at(words.scores_of(texts), examples.text, rows)

    def _margin_scale(self, examples: Examples, documents: np.ndarray) -> float:
        """Teachers count in units of their own; the model's are dot products divided by the temperature."""
        s = self.settings
        if s.teacher_scale is not None:
            return s.teacher_scale
        assert examples.judged is not None and examples.margins is not None
        rows = np.concatenate([examples.row[:, None], examples.judged], axis=1)
        scores = products(examples.vectors[examples.text], documents, rows)
        untrained = float(np.std(scores[:, :1] - scores[:, 1:])) / s.temperature
        return untrained / max(float(np.std(examples.margins)), 1e-9)

    def train_model(self, examples: Examples, documents: np.ndarray) -> None:
        """Draw queries to their documents, and the others away; or to where the teacher has them."""
        import torch

        from callslip.training.loop import train

        s, device = self.settings, next(self.model.parameters()).device
        rng = np.random.default_rng([s.seed, 2])

        def states(vectors: np.ndarray) -> Tensor:
            given = torch.from_numpy(np.ascontiguousarray(vectors)).to(device)
            noise = s.noise * torch.randn_like(given) / given.shape[1] ** 0.5 if s.noise else 0.0
            return self.model(given + noise)

        def objective(chosen: np.ndarray, progress: float) -> dict[str, Tensor]:
            text, row = examples.text[chosen], examples.row[chosen]
            hard = draw(examples.candidates[text], s.negatives, len(documents), rng)
            margins, taught = None, np.zeros(0, dtype=np.int64)
            if examples.judged is not None and examples.margins is not None:
                pick = np.arange(len(chosen)), rng.integers(0, s.teacher_negatives, len(chosen))
                taught = examples.judged[chosen][pick]
                margins = torch.from_numpy(examples.margins[chosen][pick]).to(device)
            rows = np.concatenate([row, hard.ravel(), taught])
            distinct, place = np.unique(rows, return_inverse=True)  # a document is read once per step
            query, read = states(examples.vectors[text]), states(documents[distinct])[torch.from_numpy(place)]
            positive, rest, negative = read.split([len(row), hard.size, len(taught)])
            terms = {}
            if s.contrastive_weight:
                known = torch.from_numpy(examples.answers.among(text, rows[: len(row) + hard.size])).to(device)
                rest = rest.reshape(len(row), s.negatives, read.shape[1])
                terms["contrastive"] = s.contrastive_weight * contrastive(query, positive, rest, s.temperature, known)
            if margins is not None:
                scaled = query / s.temperature
                terms["margin"] = s.teacher_weight * margin_mse(scaled, positive, negative, margins)
            return terms

        self.log = train(
            self.model,
            lambda epoch: batches.shuffled(len(examples.text), s.batch_size, s.seed, epoch),
            objective,
            epochs=s.epochs,
            steps_per_epoch=batches.steps(len(examples.text), s.batch_size),
            learning_rate=s.learning_rate,
            weight_decay=s.weight_decay,
            phase="training the decoder",
            checkpoints=self.checkpoints,
            generators=[rng],
        )

    # Search: the decoding step, which is dense retrieval.

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """The model's states of texts, given the encoder's vectors."""
        import torch

        device = next(self.model.parameters()).device
        found = np.empty_like(vectors)
        with torch.inference_mode():
            for start in range(0, len(vectors), BLOCK):
                block = torch.from_numpy(np.ascontiguousarray(vectors[start : start + BLOCK])).to(device)
                found[start : start + BLOCK] = self.model(block).cpu().numpy()
        return found

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        found = super()._search(queries, k, mask, explain)
        for one in found:
            one.codes = np.asarray(one.rows)[:, None]  # the document's token is its row
            if explain:
                one.why = [{"token": int(row), "dot_product": float(score)} for row, score in zip(one.rows, one.scores)]
        return found

    def _adjusted(self, names: frozenset[str]) -> None:
        from callslip.runtime.device import best_device

        if "device" in names and hasattr(self, "model"):
            self.model.to(best_device(self.settings.device))
        super()._adjusted(names)

    # The saved folder.

    def _save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        super()._save(folder)
        save_file({name: value.contiguous().cpu() for name, value in self.model.state_dict().items()}, folder / MODEL)
        (folder / MODEL_SHAPE).write_text(json.dumps(self._shape, indent=2) + "\n", encoding="utf-8")
        if self.log is not None:
            lines = "".join(f"{json.dumps(record)}\n" for record in self.log.records)
            (folder / TRAINING).write_text(lines, encoding="utf-8")

    def _load(self, folder: Path) -> None:
        from safetensors.torch import load_file

        from callslip.methods.tied_atomic.model import TiedReader
        from callslip.runtime.device import best_device
        from callslip.training.loop import TrainingLog

        super()._load(folder)
        self._shape = json.loads((folder / MODEL_SHAPE).read_text(encoding="utf-8"))
        self.model = TiedReader(**self._shape)
        self.model.load_state_dict(load_file(folder / MODEL))
        self.model.to(best_device(self.settings.device)).eval()
        if (folder / TRAINING).exists():
            self.log = TrainingLog([json.loads(line) for line in (folder / TRAINING).read_bytes().splitlines()])
