"""GenerativeRetriever: documents get codes, a model is trained to write them, search lets it write.

The default is the two-stage way: first `make_codes`, then `train_model`. A method overrides what its paper does
differently; nothing is here that only one method needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from callslip.corpus.documents import Corpus, Document, Pair, Query
from callslip.errors import Unsupported
from callslip.generative_settings import GenerativeSettings
from callslip.identifiers.maker import CodeMaker as CodeMaker  # methods take it from here
from callslip.identifiers.table import Identifiers
from callslip.retriever import Found, Retriever
from callslip.search import buckets
from callslip.storage.rows import Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from callslip.identifiers.trie import Trie
    from callslip.model.encoders import Encoder
    from callslip.model.seq2seq import CodeWriter
    from callslip.model.t5 import T5CodeWriter
    from callslip.model.tuned import TunedWriter
    from callslip.search.beam import Beams
    from callslip.training.loop import TrainingLog

VECTORS, MODEL, MODEL_SHAPE, TRAINING = "vectors.npy", "model.safetensors", "model.json", "training.jsonl"
T5, CLUSTERS = "t5", "clusters.safetensors"

Inputs = np.ndarray | list[list[int]]
"""Texts as a model reads them: vectors [n, dim], or token ids of each."""


class GenerativeRetriever(Retriever):
    """Writes codes for a query, and returns the documents that bear them."""

    Settings = GenerativeSettings
    search_settings = frozenset(
        {"beam", "decoding", "ranking", "similarity_weight", "bucket_limit", "backend", "device"}
    )
    settings: GenerativeSettings
    identifiers: Identifiers
    vectors: np.ndarray
    model: CodeWriter | T5CodeWriter | TunedWriter

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._encoder: Encoder | None = None
        self.log: TrainingLog | None = None
        self.maker: CodeMaker | None = None
        self._node_masks: list[tuple[np.ndarray, Trie, list[np.ndarray]]] = []

    # The two stages of the default fit.

    def _fit(self, corpus: Corpus) -> None:
        import torch

        self.check_seq2seq()
        self.log = None
        self.vectors = self.encode([d.content for d in corpus], "encoding documents")
        codes = self.make_codes(corpus)
        self.identifiers = Identifiers(corpus.doc_ids, codes)
        with torch.random.fork_rng(devices=[]):  # the caller's chance is left alone
            torch.manual_seed(self.settings.seed)
            self.model = self.new_model(self.identifiers.widths, with_end=bool((codes < 0).any()))
            examples, rows = self.examples(corpus)
            self.train_model(examples, codes[rows])

    def check_seq2seq(self) -> None:
        """Refuse what is no T5 before anything else is done: a wrong name should not cost the encoding."""
        if self.settings.seq2seq is not None:
            from callslip.model.t5 import check_checkpoint

            check_checkpoint(self.settings.seq2seq)

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        """A code for each document of the corpus, [N, L]."""
        self.maker = self.code_maker(len(corpus))
        if self.maker is None:
            raise NotImplementedError("a method gives its codes by `make_codes` or by `code_maker`")
        return self.maker.fit(self.vectors)

    def code_maker(self, documents: int) -> CodeMaker | None:
        """What makes codes of the documents' vectors; none if codes come from elsewhere. It is saved with the index."""
        return None

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
        return self.vectors[rows] @ query

    def examples(self, corpus: Corpus) -> tuple[Inputs, np.ndarray]:
        """Training examples: texts as the model reads them (vectors, or token ids), and the row of the document
        that each one belongs to."""
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

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        """Queries as the model reads them: their vectors, or token ids."""
        if not self.reads_text:
            return vectors
        return self._reader.tokenize([query.text for query in queries], self.settings.seq2seq_length)

    def batch(self, inputs: Inputs, rows: np.ndarray | None = None) -> Any:
        """Some of the inputs as the model takes them, on its device."""
        import torch

        chosen = range(len(inputs)) if rows is None else rows
        device = next(self.model.parameters()).device
        if isinstance(inputs, list):
            return self._reader.batch([inputs[row] for row in chosen]).to(device)
        return torch.from_numpy(np.ascontiguousarray(inputs if rows is None else inputs[rows])).to(device)

    @property
    def reads_text(self) -> bool:
        """Whether the model reads texts itself, and not the vectors of a frozen encoder."""
        return self.settings.seq2seq is not None or self.settings.train_encoder != "none"

    @property
    def _reader(self) -> T5CodeWriter | TunedWriter:
        """The model, where it reads texts itself."""
        return cast("T5CodeWriter | TunedWriter", self.model)

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

    def train_model(self, examples: Inputs, codes: np.ndarray) -> None:
        """Stage two: teach the model to write each example's code."""
        import torch

        from callslip.training import batches
        from callslip.training.loop import train

        s = self.settings
        device = next(self.model.parameters()).device
        y = torch.from_numpy(codes.astype(np.int64))

        def objective(rows: np.ndarray, progress: float) -> dict[str, torch.Tensor]:
            return self.terms(self.noisy(self.batch(examples, rows)), y[rows].to(device))

        self.log = train(
            self.model,
            lambda epoch: batches.shuffled(len(examples), s.batch_size, s.seed, epoch),
            objective,
            epochs=s.epochs,
            steps_per_epoch=batches.steps(len(examples), s.batch_size),
            learning_rate=s.learning_rate,
            weight_decay=s.weight_decay,
            phase="training the decoder",
            log=self.log,
            share=self.learning_share,
            checkpoints=self.checkpoints,
        )

    def learning_share(self, parameter: str) -> float:
        """The share of the learning rate that a parameter has: an encoder that is trained, too, learns slowly."""
        encoder = self.settings.train_encoder != "none" and parameter.startswith("encoder.")
        return self.settings.encoder_learning_rate / max(self.settings.learning_rate, 1e-12) if encoder else 1.0

    def noisy(self, batch: Any) -> Any:
        """Vectors with the random vectors that training adds; token ids as they are."""
        import torch

        noise = self.settings.noise
        if not noise or not isinstance(batch, torch.Tensor):
            return batch
        return batch + noise * torch.randn_like(batch) / batch.shape[1] ** 0.5

    def terms(self, query: Any, code: torch.Tensor) -> dict[str, torch.Tensor]:
        """The objective of a batch: named terms, already weighted."""
        from callslip.training.losses import code_cross_entropy

        return {"generation": code_cross_entropy(self.model(query, code), code)}

    def new_model(self, widths: Sequence[int], with_end: bool = False) -> CodeWriter | T5CodeWriter | TunedWriter:
        """An untrained writer of codes of so many tokens per level, of the shape that the settings ask for."""
        from callslip.device import best_device
        from callslip.model.t5 import T5CodeWriter

        s, widths = self.settings, [int(width) for width in widths]
        if s.seq2seq is not None:
            t5 = T5CodeWriter.from_pretrained(s.seq2seq, widths, codes=s.seq2seq_codes, with_end=with_end)
            return t5.to(best_device(s.device))
        self._shape = self.writer_shape() | {"widths": widths, "with_end": with_end}
        return self._tuned(self.writer(self._shape)).to(best_device(s.device))

    def writer_shape(self) -> dict[str, Any]:
        """The shape of the code writer that the settings ask for, as it is saved; the codes add their widths."""
        s = self.settings
        return {
            "input_dim": self.vectors.shape[1],
            "width": s.decoder_width,
            "layers": s.decoder_layers,
            "heads": s.decoder_heads,
            "memory_slots": s.memory_slots,
            "dropout": s.dropout,
        }

    def _tuned(self, writer: CodeWriter) -> CodeWriter | TunedWriter:
        """The writer, with the encoder before it if that is to be trained, too."""
        if self.settings.train_encoder == "none":
            return writer
        from callslip.model.tuned import TunedWriter

        return TunedWriter(self.settings.encoder, writer, self.settings.train_encoder, self.settings.max_length)

    def writer(self, shape: dict[str, Any]) -> CodeWriter:
        """A code writer of that shape; a method with another decoder gives its own."""
        from callslip.model.seq2seq import CodeWriter

        return CodeWriter(**shape)

    # Search.

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            from callslip.model.encoders import load_encoder

            s = self.settings
            self._encoder = load_encoder(s.encoder, device=s.device, max_length=s.max_length, backend=s.backend)
        return self._encoder

    def encode(self, texts: list[str], progress: str) -> np.ndarray:
        from callslip.model.features import cached_encode

        return cached_encode(self.encoder, texts, progress=progress)

    def _search(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        vectors = self.encoder.encode([query.text for query in queries])
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
        from callslip.search.codes import best_codes

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
        rows, beam = buckets.candidates(beams, self.identifiers, mask)
        similarity = self.rank(query, rows)
        s = self.settings
        scores = {
            "bucket": beams.scores[beam],
            "sum": beams.scores[beam] + s.similarity_weight * similarity,
            "union": similarity,
        }[s.ranking]
        by_code = s.ranking == "bucket"
        order, within = buckets.merged(rows, beam, None if by_code else scores, similarity, s.bucket_limit)
        rows, beam, similarity, scores = rows[order], beam[order], similarity[order], scores[order]
        why = None
        if explain:
            why = [
                {
                    "code_score": float(beams.scores[b]),
                    "level_scores": [round(float(v), 4) for v in beams.levels[b]],
                    "similarity": float(value),
                    "beam_rank": int(b) + 1,
                }
                for b, value in zip(beam, similarity, strict=True)
            ]
        return Found(rows, scores, beams.codes[beam], why), within

    def _adjusted(self, names: frozenset[str]) -> None:
        from callslip.device import best_device

        if "device" in names and hasattr(self, "model"):
            self.model.to(best_device(self.settings.device))
        if names & {"device", "backend"}:
            self._encoder = None

    # A living index.

    def _prepare(self, documents: list[Document]) -> Parts:
        vectors = self.encode([d.content for d in documents], "encoding new documents")
        return {"vectors": vectors, "codes": self.assign(documents, vectors)}

    def _extend(self, documents: list[Document], parts: Parts) -> None:
        # A deleted document keeps its row, and a new one may have its name.
        held, names = self.identifiers, [d.doc_id for d in documents]
        again = {n: f"deleted {n} {held.rows[held.position_of(n)]}" for n in names if n in held}
        self.identifiers = (held.renamed(again) if again else held).with_added(names, parts["codes"])
        self.vectors = np.concatenate([self.vectors, parts["vectors"]])

    def _keep(self, rows: np.ndarray) -> None:
        doc_ids, codes = self.identifiers.in_row_order()
        self.identifiers = Identifiers([doc_ids[row] for row in rows.tolist()], codes[rows])
        self.vectors = self.vectors[rows]

    def _codes(self) -> np.ndarray | None:
        return self.identifiers.in_row_order()[1]

    # The saved folder.

    def _save(self, folder: Path) -> None:
        from safetensors.numpy import save_file as save_arrays
        from safetensors.torch import save_file

        np.save(folder / VECTORS, self.vectors, allow_pickle=False)
        self.identifiers.save(folder)
        if self.maker is not None:
            save_arrays(self.maker.state(), folder / CLUSTERS)
        if self.settings.seq2seq is not None:
            cast("T5CodeWriter", self.model).save(folder / T5)
        else:
            weights = {name: value.contiguous().cpu() for name, value in self.model.state_dict().items()}
            save_file(weights, folder / MODEL)
            (folder / MODEL_SHAPE).write_text(json.dumps(self._shape, indent=2) + "\n", encoding="utf-8")
        if self.log is not None:
            lines = [json.dumps(record) for record in self.log.records]
            (folder / TRAINING).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _load(self, folder: Path) -> None:
        from safetensors.numpy import load_file as load_arrays
        from safetensors.torch import load_file

        from callslip.device import best_device
        from callslip.model.t5 import T5CodeWriter
        from callslip.training.loop import TrainingLog

        self.vectors = np.asarray(np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False))
        self.identifiers = Identifiers.load(folder, mmap=True, check=False)  # the manifest's hashes vouch for it
        maker = self.code_maker(len(self.vectors))
        self.maker = None if maker is None else maker.from_state(load_arrays(folder / CLUSTERS))
        if self.settings.seq2seq is not None:
            self.model = T5CodeWriter.load(folder / T5)
        else:
            self._shape = json.loads((folder / MODEL_SHAPE).read_text(encoding="utf-8"))
            self.model = self._tuned(self.writer(self._shape))
            self.model.load_state_dict(load_file(folder / MODEL))
        self.model.to(best_device(self.settings.device)).eval()
        if (folder / TRAINING).exists():
            lines = (folder / TRAINING).read_text(encoding="utf-8").splitlines()
            self.log = TrainingLog([json.loads(line) for line in lines])
