"""GenerativeRetriever: documents get codes, a model is trained to write them, search lets it write.

The default is the two-stage way: first `make_codes`, then `train_model`. A method overrides what its paper does
differently; nothing is here that only one method needs. What the model reads is its reader's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from callslip.corpus.documents import Corpus, Document, Pair, Query
from callslip.encoders.encoder import TextVectors
from callslip.errors import Unsupported
from callslip.identifiers.makers import CodeMaker
from callslip.identifiers.table import Identifiers
from callslip.identifiers.vector_table import VectorTable
from callslip.index import model_files, readers
from callslip.index.fresh import Asked, Fresh
from callslip.index.readers import HistoryReader, ReadQuery, VectorReader
from callslip.index.retriever import Found, Retriever
from callslip.index.settings import GenerativeSettings
from callslip.index.tied_start import TiedStart, chosen
from callslip.runtime.device import seeded
from callslip.search import candidates
from callslip.search.diversity import Diversity
from callslip.storage.rows import Parts
from callslip.training import ranks
from callslip.training.batches import Examples, Inputs
from callslip.training.held_out import DEPTH, held_out, pairs_without, without_judged

if TYPE_CHECKING:
    import torch

    from callslip.corpus.on_disk import PairTable
    from callslip.decoders.histories import HistoryEncoder, HistoryWriter
    from callslip.decoders.t5 import T5CodeWriter
    from callslip.decoders.tuned import TunedWriter
    from callslip.decoders.writer import CodeWriter
    from callslip.identifiers.trie import Trie
    from callslip.search.beam import Beams
    from callslip.training.checkpoints import Checkpoints
    from callslip.training.log import TrainingLog

CLUSTERS = "clusters.safetensors"
CODES_ALONE = ("share", "code")
"""Rankings by which codes alone are measured: documents added since the fit are found by their codes only."""


class GenerativeRetriever(Retriever):
    """Writes codes for a query, and returns the documents that have them."""

    Settings: ClassVar[type] = GenerativeSettings
    search_settings = frozenset(
        {"beam", "decoding", "ranking", "similarity_weight", "history_weight", "diversity", "bucket_limit"}
        | {"backend", "device"}
    )
    settings: Any
    identifiers: Identifiers
    vectors: Any
    """The vector of every document, by row; of no dimensions, [N, 0], if neither model nor ranking reads vectors. An
    array during a fit, from then on a `VectorTable` in half precision."""
    codes_near: ClassVar[bool] = False
    """Whether new documents get codes by the vectors of present ones."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.texts = TextVectors(self.settings)
        self.reader: VectorReader = readers.text_reader(self.settings, self.texts, self.rows)
        self._maker: CodeMaker | None = None
        self._maker_state: dict[str, np.ndarray] | None = None
        self.log: TrainingLog | None = None
        self._node_masks: list[tuple[np.ndarray, Trie, list[np.ndarray]]] = []
        self.fresh = Fresh()

    @property
    def model(self) -> Any:
        """The model that writes codes, with what reads queries for it."""
        return self.reader.model

    @property
    def maker(self) -> CodeMaker | None:
        """What made the codes of the documents' vectors, to code new ones; None if codes come from elsewhere."""
        if self._maker is None and self._maker_state is not None:  # a search never needs it
            untrained = self.code_maker(len(self.vectors))
            self._maker = None if untrained is None else untrained.from_state(self._maker_state)
        return self._maker

    @maker.setter
    def maker(self, maker: CodeMaker | None) -> None:
        self._maker, self._maker_state = maker, None

    @property
    def reads_histories(self) -> bool:
        return self.reader.histories

    def could_read(self, *, histories: bool) -> bool:
        return readers.could_read(self.settings, histories=histories)

    # The two stages of the default fit.

    def fit(self, corpus: Corpus, checkpoints: Checkpoints | None = None) -> Self:
        self.fresh = Fresh()
        super().fit(corpus, checkpoints)
        self.vectors = VectorTable.of(self.vectors)
        self.reader.read_stored(self.vectors)
        return self

    def build(self, corpus: Corpus) -> None:
        self.log = None
        self.read_corpus(corpus)
        given = self.saved_codes(corpus)
        codes = self.make_codes(corpus) if given is None else given
        self.identifiers = Identifiers(corpus.doc_ids, codes)
        if not (self.asks_vectors or self.codes_near):
            self.vectors = self.vectors[:, :0]
        with seeded(self.settings.seed):
            self.new_model(self.identifiers.widths, with_end=bool((codes < 0).any()))
            self.train_model(self.examples(corpus), codes)
        self.begin(corpus)

    def begin(self, corpus: Corpus) -> None:
        """Let scores begin where the settings say, those of histories at counts and those of texts at the similarity
        of query and code: the last step of a fit."""
        if not isinstance(self.reader, HistoryReader):
            if self.begins_tied:
                self.begin_tied(corpus)
            return
        self.model.eval()

        def ranked(queries: list[Query], depth: int) -> list[np.ndarray]:
            return [np.asarray(found.rows) for found in self.find(queries, min(depth, len(corpus)), None, False)]

        if self.settings.start != "none":
            from callslip.training.log import TrainingLog

            self.log = TrainingLog() if self.log is None else self.log
            self.reader.begin(corpus, self.vectors, ranked, self.log)

    @property
    def begins_tied(self) -> bool:
        """Whether the scores of texts begin at the similarity of query and code."""
        return getattr(self.settings, "start", "none") == "tied" and not self.reader.histories

    def begin_tied(self, corpus: Corpus) -> None:
        """Learn what codes say of the documents' vectors, and choose on held-out queries how far the model is trusted
        beyond that. From here on the index holds no vectors, unless new documents get their codes by them."""
        from callslip.training.log import TrainingLog

        self.model.eval()
        s, codes = self.settings, self.identifiers.in_row_order()[1]
        start, held = TiedStart.of(self.vectors, codes, self.model.widths, s.seed), held_out(corpus, s)
        vectors = self.reader.query_vectors(held.queries) if len(held) else self.vectors[:0]
        if not self.codes_near:
            self.vectors = self.vectors[:, :0]

        def ranked(tried: TiedStart) -> list[np.ndarray]:
            self.reader.start = tried
            return [np.asarray(one.rows) for one in self.answer(held.queries, vectors, DEPTH, None, False)]

        trained = self.log is not None and any("learning_rate" in one for one in self.log.records)
        self.reader.start, record = chosen(start, held, vectors, ranked if trained else None)
        self.log = TrainingLog() if self.log is None else self.log
        self.log.add(phase="trust beyond codes", epoch=0, seconds=0.0, **record)

    def read_corpus(self, corpus: Corpus) -> None:
        """Choose the reader of the corpus's queries, and make a vector of every document if anything asks for it."""
        self.reader = readers.reader_for(self.settings, corpus, self.texts, self.rows)
        asked = self.asks_vectors or self.codes_of_vectors
        self.vectors = self.reader.encode_corpus(corpus) if asked else self.reader.read_without_vectors(corpus)

    @property
    def asks_vectors(self) -> bool:
        """Whether the model or the ranking compares the vectors of documents and queries."""
        return self.reader.reads_vectors or (self.settings.ranking != "code" and not self.reader.histories)

    @property
    def codes_of_vectors(self) -> bool:
        """Whether the codes of documents, present and new, are made from their vectors."""
        return getattr(self.settings, "codes_from", None) is None

    def saved_codes(self, corpus: Corpus) -> np.ndarray | None:
        """The codes of the index that `codes_from` names, [N, L]; None if it names none."""
        from callslip.storage.saved_codes import saved_codes

        self.maker = None  # nothing here could code a new document as that index would
        source = getattr(self.settings, "codes_from", None)
        return None if source is None else saved_codes(source, corpus.doc_ids)

    def make_codes(self, corpus: Corpus) -> np.ndarray:
        """A code for each document of the corpus, [N, L]."""
        self.maker = self.code_maker(len(corpus))
        if self.maker is None:
            raise NotImplementedError("a method makes its codes in `make_codes`, or by a `code_maker`")
        return self.maker.fit(self.vectors)

    def code_maker(self, documents: int) -> CodeMaker | None:
        """What makes codes of the documents' vectors; it is saved with the index. None if codes come from elsewhere."""
        return None

    def assign(self, documents: list[Document], vectors: np.ndarray) -> np.ndarray:
        """Codes for documents that the model was not trained on, [n, L]."""
        if self.maker is not None:
            # The model cannot write a token that it does not have, such as a further place in a bucket.
            codes = self.maker.assign(vectors)
            return np.minimum(codes, np.array(self.model.widths[: codes.shape[1]], np.int32) - 1)
        raise Unsupported(
            f"{self.method} cannot code documents that it was not trained on",
            f"Fit again with them: callslip fit CORPUS --method {self.method} --out DIR; or use dsi-semantic.",
        )

    def new_model(self, widths: Any, with_end: bool = False) -> None:
        """Make an untrained model for codes of so many tokens per level."""
        self.reader.new_model(self, widths, with_end)

    def writer_shape(self) -> dict[str, Any]:
        """The shape of the decoder that the settings ask for, as it is saved; reader and codes add theirs."""
        return readers.decoder_shape(self.settings)

    def writer(self, shape: dict[str, Any]) -> CodeWriter:
        """A decoder of that shape; a method with another decoder gives its own."""
        from callslip.decoders.writer import CodeWriter

        return CodeWriter(**shape)

    def history_writer(self, encoder: HistoryEncoder, writer: CodeWriter) -> HistoryWriter:
        """The decoder joined to an encoder of histories."""
        from callslip.decoders.histories import HistoryWriter

        return HistoryWriter(encoder, writer)

    def tuned_writer(self, writer: CodeWriter) -> TunedWriter:
        """The decoder joined to a fine-tuned encoder."""
        from callslip.decoders.tuned import TunedWriter

        s = self.settings
        return TunedWriter(s.encoder, writer, s.train_encoder)

    def t5_writer(self) -> tuple[type[T5CodeWriter], dict[str, Any]]:
        """The class of a T5 that writes codes, and the options of a new one."""
        from callslip.decoders.t5 import T5CodeWriter

        return T5CodeWriter, {"codes": getattr(self.settings, "seq2seq_codes", "codebooks")}

    def t5_model(self, writer: T5CodeWriter) -> Any:
        """The T5 alone; a method that has further parts joins them to it as its `writer`."""
        return writer

    def training_pairs(self, corpus: Corpus) -> PairTable:
        """Texts to train on, each with its document: pseudo-queries, then judged queries; without those by which the
        model's trust is chosen."""
        from callslip.training.batches import training_pairs

        if self.begins_tied:
            return pairs_without(corpus, self.settings)
        return training_pairs(corpus, self.settings, whole_documents=False)

    def training_corpus(self, corpus: Corpus) -> Corpus:
        """The corpus without judged queries that are held out, for what reads judgements itself."""
        return without_judged(corpus, self.settings.seed) if self.begins_tied else corpus

    def examples(self, corpus: Corpus) -> Examples:
        """Training examples, as the model reads them."""
        pairs: Sequence[Pair] = [] if self.reader.histories else self.training_pairs(corpus)
        return self.reader.examples(corpus, pairs, self.vectors, "document" in self.settings.training_texts)

    def train_model(
        self, examples: Examples, codes: np.ndarray, *, phase: str = "training the decoder", epochs: int | None = None
    ) -> None:
        """Train the model to write the code, of codes [N, L], of each example's document."""
        import torch

        y, device = torch.from_numpy(codes.astype(np.int64)), next(self.model.parameters()).device
        ranks.current().agree(f"{phase}: codes and training examples", codes, examples.rows)

        def objective(numbers: np.ndarray, progress: float) -> dict[str, torch.Tensor]:
            rows, read = examples.rows_of(numbers), self.reader.read(examples, numbers)
            return self.terms(read, y[rows].to(device)) | self.reader.terms(read, rows)

        epochs = self.settings.epochs if epochs is None else epochs

        def order(epoch: int) -> Iterator[np.ndarray]:
            return examples.order(self.settings.seed, epoch)

        more = {"micro_batch": self.micro_batch, "by_example": self.by_example}
        self.train(order, objective, len(examples), epochs, phase, **more)

    def train(
        self,
        batches: Callable[[int], Any],
        objective: Callable[..., Any],
        steps: int,
        epochs: int,
        phase: str,
        **more: Any,
    ) -> None:
        """One phase of training the model, by the settings' schedule unless `more` says otherwise."""
        from callslip.training.loop import TrainingLog, train

        self.log = TrainingLog() if self.log is None else self.log
        s = self.settings
        rate = more.get("learning_rate", s.learning_rate)
        schedule = {
            "learning_rate": rate,
            "schedule": s.schedule,
            "warmup": s.warmup,
            "weight_decay": self.reader.decay,
            "share": lambda parameter: self.learning_share(parameter, rate),
            "autocast": "autocast" in getattr(s, "save_memory", ()),
        }
        train(
            self.model,
            batches,
            objective,
            epochs=epochs,
            steps_per_epoch=steps,
            phase=phase,
            log=self.log,
            checkpoints=self.checkpoints,
            **(schedule | more),
        )

    @property
    def micro_batch(self) -> int | None:
        """Texts per forward pass in training; None for whole batches, also where histories share negatives."""
        return None if self.reader.histories else getattr(self.settings, "micro_batch", None)

    @property
    def by_example(self) -> bool:
        """Whether `terms` are means over examples, so that ranks can divide a batch; histories share negatives."""
        return not self.reader.histories

    def learning_share(self, parameter: str, rate: float) -> float:
        """The share of a phase's learning rate that a parameter has."""
        return self.reader.learning_share(parameter, rate)

    def terms(self, query: Any, code: torch.Tensor) -> dict[str, torch.Tensor]:
        """The objective of a batch: named terms, already weighted."""
        from callslip.training.losses import code_cross_entropy

        return {"generation": code_cross_entropy(self.model(query, code), code)}

    def computed_once(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """An array that is computed between two phases of training; a resumed fit reads it from the checkpoints."""
        kept = self.checkpoints
        held = kept.recall(name) if kept is not None else None
        if held is not None:
            return held["made"]
        array = compute()
        ranks.current().agree(name, array)
        if kept is not None:
            kept.remember(name, made=array)
        return array

    # Search.

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        return self.answer(queries, self.query_vectors(queries), k, mask, explain)

    def answer(
        self, queries: list[Query], vectors: np.ndarray, k: int, mask: np.ndarray | None, explain: bool
    ) -> list[Found]:
        """`find` for queries with these vectors."""
        inputs = self.reader.inputs(queries, vectors)
        live = None if mask is None else self.live_nodes(mask)
        found: dict[int, Found] = {}
        waiting, beam = np.arange(len(queries)), max(1, self.settings.beam)
        while beam < self.identifiers.unique and beam * len(self.identifiers) < k * self.identifiers.unique:
            beam = min(4 * beam, self.identifiers.unique)  # buckets of mean size would have fewer than k documents
        while len(waiting):
            some = inputs[waiting] if isinstance(inputs, np.ndarray) else [inputs[int(n)] for n in waiting]
            all_beams = self.write(some, beam, live)
            for number, beams in zip(waiting, all_beams, strict=True):
                query = self.reader.read_query(vectors[number], inputs[int(number)])
                one, within = self.collect(query, beams, mask, explain)
                if within >= k or beam >= self.identifiers.unique:
                    found[int(number)] = one
            waiting = np.array([n for n in waiting if int(n) not in found], dtype=np.int64)
            beam = min(4 * beam, self.identifiers.unique)  # too few documents in those buckets: write more codes
        return self.with_fresh(queries, vectors, [found[number] for number in range(len(queries))], mask, explain)

    def diversity(self) -> Diversity | None:
        amount = getattr(self.settings, "diversity", 0.0) if self.reader.histories else 0.0
        return Diversity(amount, lambda rows: self.reader.compared(rows, self.vectors)) if amount else None

    def with_fresh(
        self, queries: list[Query], vectors: np.ndarray, found: list[Found], mask: np.ndarray | None, explain: bool
    ) -> list[Found]:
        """What the beam found, and the documents added since the fit that words or vectors find."""
        if not len(self.fresh) or self.settings.ranking in CODES_ALONE or self.reader.histories:
            return found
        if self.reader.tied is not None:
            return found  # their codes were made as those of the others, and the beam begins there
        compared = bool(self.vectors.shape[1] and vectors.shape[1])
        documents = self.reader.document_vectors(self.vectors) if compared else None
        return [
            self.fresh.merged(Asked(query.text, vector, documents), one, self.rows, mask, explain)
            for query, vector, one in zip(queries, vectors, found, strict=True)
        ]

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        """One vector a query, [n, dim]; of no dimensions if neither model nor ranking reads it."""
        if self.settings.ranking == "code" and not self.reader.reads_vectors:
            return np.zeros((len(queries), 0), np.float32)
        return self.reader.query_vectors(queries)

    def write(self, inputs: Inputs, beam: int, live: list[np.ndarray] | None = None) -> list[Beams]:
        """Let the model write its `beam` best codes for each query."""
        exact = self.settings.decoding == "exact"
        trie = self.identifiers.trie()
        return candidates.best_codes(self.searched, self.reader.batch(inputs), trie, beam, live, exact=exact)

    @property
    def searched(self) -> Any:
        """The model as it is searched: with the counts that its scores begin at, if there are any."""
        return self.reader.searched(self.identifiers)

    def live_nodes(self, mask: np.ndarray) -> list[np.ndarray]:
        """A mask of rows as masks of the trie's nodes; those of the last few masks are cached."""
        trie = self.identifiers.trie()
        for known, of, nodes in self._node_masks:
            if known is mask and of is trie:
                return nodes
        nodes = trie.live(mask[self.identifiers.rows])
        self._node_masks = [(mask, trie, nodes), *self._node_masks[:3]]
        return nodes

    def rank(self, query: ReadQuery, rows: np.ndarray) -> np.ndarray:
        """Similarity of the documents of a bucket to the query."""
        return self.reader.similarity(query, rows, self.vectors)

    @property
    def similarity_weight(self) -> float:
        """The factor of the similarity under `ranking=sum`."""
        if self.reader.tied is not None:
            return self.reader.tied.sharpness
        return self.settings.history_weight if self.reader.histories else self.settings.similarity_weight

    def collect(self, query: ReadQuery, beams: Beams, mask: np.ndarray | None, explain: bool) -> tuple[Found, int]:
        """The documents of the beams' buckets, ranked, and how many of them are within their bucket's limit."""
        rows, beam = candidates.candidates(beams, self.identifiers, mask)
        s, scores, sizes = self.settings, beams.scores[beam], None
        by_code = s.ranking == "code"
        similarity = candidates.arbitrary(rows, self.rows.doc_ids()) if by_code else self.rank(query, rows)
        if explain or s.ranking == "share":
            sizes = candidates.sizes(beams, self.identifiers, self.rows.alive)
        if s.ranking == "share" and sizes is not None:
            scores = scores - np.log(sizes)[beam]
        elif s.ranking == "sum" or (s.ranking == "union" and self.reader.tied is not None):
            part = self.reader.code_part(query, beams, self.identifiers)
            scores = part[beam] + self.similarity_weight * similarity
        elif s.ranking == "union":
            scores = similarity
        order, within = self.order(query, rows, beam, None if s.ranking in ("bucket", "code") else scores, similarity)
        rows, beam, similarity, scores = rows[order], beam[order], similarity[order], scores[order]
        why = None
        if explain and sizes is not None:
            why = [
                {
                    "code_score": float(beams.scores[b]),
                    "level_scores": [round(float(v), 4) for v in beams.levels[b]],
                    **({} if by_code else {self.reader.similarity_name: float(value)}),
                    "beam_rank": int(b) + 1,
                    "bucket_size": int(sizes[b]),
                    **reason,
                }
                for b, value, reason in zip(beam, similarity, self.reader.reasons(query, rows), strict=True)
            ]
        return Found(rows, scores, beams.codes[beam], why), within

    def order(
        self, query: ReadQuery, rows: np.ndarray, beam: np.ndarray, scores: np.ndarray | None, similarity: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """The order of candidates, and how many are within their bucket's limit: see `candidates.merged`."""
        return candidates.merged(rows, beam, scores, similarity, self.settings.bucket_limit)

    @property
    def lacks_vectors(self) -> bool:
        """Whether the index was fitted without vectors, so that nothing can rank by them."""
        return not self.vectors.shape[1] and len(self.vectors) > 0 and self.reader.tied is None

    def adjusted(self, names: frozenset[str]) -> None:
        if "ranking" in names and self.asks_vectors and self.lacks_vectors:
            raise Unsupported(
                f"ranking={self.settings.ranking} compares vectors, and this index was fitted without them",
                "Use ranking=code, or fit again with another ranking.",
            )
        if names & {"device", "backend"}:
            self.texts.adjust(self.settings)
        if "device" in names and self.model is not None:
            from callslip.runtime.device import best_device

            self.model.to(best_device(self.settings.device))

    # New documents, and the saved folder.

    def prepare(self, documents: list[Document]) -> Parts:
        kept = bool(self.vectors.shape[1])
        vectors = np.zeros((len(documents), 0), np.float32)
        if kept or self.codes_of_vectors or self.reader.tied is not None:
            vectors = self.reader.encode_new(documents, self.vectors.shape[1])
        held = (vectors if kept else vectors[:, :0]).astype(self.vectors.stored)
        codes = self.assign(documents, vectors)
        return {"vectors": held, "codes": codes, **self.reader.new_parts(documents, codes, vectors)}

    def extend(self, documents: list[Document], parts: Parts) -> None:
        held = self.identifiers
        self.identifiers = held.with_later([d.doc_id for d in documents], parts["codes"])
        self.vectors = self.vectors.extended(parts["vectors"])
        self.fresh.extend(len(held), parts["codes"])
        self.reader.extend(parts)

    def keep(self, rows: np.ndarray) -> None:
        doc_ids, codes = self.identifiers.in_row_order()
        self.identifiers = Identifiers([doc_ids[row] for row in rows.tolist()], codes[rows])
        self.vectors = self.vectors.kept(rows)
        self.fresh.keep(rows)
        self.reader.keep(rows)

    def codes_by_row(self) -> np.ndarray | None:
        return self.identifiers.in_row_order()[1]

    @property
    def code_settings(self) -> Mapping[str, Any]:
        if self.reader.tied is not None:
            return {"ranking": "sum", "bucket_limit": None}  # the similarity is that of query and code
        unique = self.identifiers.unique == len(self.identifiers)
        if self.settings.ranking == "bucket" and unique and not len(self.fresh):
            return {"bucket_limit": None}  # nothing shares a code: `share` would give the same order
        return {"ranking": "share", "bucket_limit": None}

    def save_files(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        self.identifiers = self.identifiers.whole()  # numbered as before, so searches may go on
        self.vectors.save(folder, self.identifiers.rows)
        self.identifiers.save(folder)
        self.fresh.save(folder)
        if self.maker is not None:
            save_file(self.maker.state(), folder / CLUSTERS)
        self.reader.save(folder)
        model_files.save_log(folder, self.log)

    def load_files(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        self.vectors = VectorTable.load(folder)
        self.identifiers = Identifiers.load(folder, mmap=True, check=False)  # the manifest's hashes vouch for it
        self.fresh = Fresh.load(folder, lambda: self.identifiers.in_row_order()[1])
        self._maker, self._maker_state = None, load_file(folder / CLUSTERS) if (folder / CLUSTERS).exists() else None
        self.reader = readers.saved_reader(self.settings, folder, self.texts, self.rows)
        self.reader.load(folder, self)
        self.log = model_files.load_log(folder)
