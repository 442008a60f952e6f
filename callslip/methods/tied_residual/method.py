"""Tied residual codes: codes that begin at dense retrieval, words, and a memory of earlier queries, in one ranking.

A code is a reconstruction of the document's vector, token by token (`callslip.identifiers.tied`), and the score of a
token is its inner product with the query's state: the tying of Tied-Atomic, carried from one token to many. The score
of a whole code is therefore the similarity of query and reconstructed document, without any training, and the index
holds no float vectors. Earlier queries are held as codes, too. How far words, meaning and memory are trusted is fitted
at the end of a fit, on queries that are held out from the memory.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from callslip.corpus.documents import Corpus, Document, Query
from callslip.encoders.encoder import TextVectors
from callslip.encoders.segments import Segments, unit_vectors
from callslip.errors import BadSetting
from callslip.identifiers.table import Identifiers
from callslip.identifiers.tied import SegmentQuantizer, TiedQuantizer
from callslip.index.entries import Block, Entries
from callslip.index.memory import Memory
from callslip.index.retriever import Found, Learned, Retriever
from callslip.index.segment_table import SegmentTable
from callslip.methods.tied_residual.correction import Correction, trained_correction
from callslip.methods.tied_residual.learning import learned
from callslip.methods.tied_residual.settings import PRESETS, TiedResidualSettings
from callslip.methods.tied_residual.weights import Weights, fitted_weights
from callslip.search import fusion
from callslip.search.nearest import best_rows
from callslip.search.postings import Matches, Postings
from callslip.storage.rows import Parts

CODEBOOKS, WEIGHTS, WORDS, MEMORY = "codebooks.safetensors", "weights.json", "words", "memory"
SCORED_WORDS = "bm25"
"""Words as earlier versions saved them: with scores, which a later document would change."""
BLOCK = 64
"""Queries whose tables of tokens, about 100 kB each, are held at once."""
SAME = 0.95
"""Similarity to a remembered query from which the index knows the answer, whatever the evidence."""
SEGMENTS = "segments."
"""What the names of the arrays of segments' codebooks begin with."""
SAMPLED = 4096
"""Documents whose segments are learned from, or coded at once."""
WITH_SEGMENTS = 4
"""How many times `depth` of the documents that are nearest by their whole text are also compared by segments."""
SMALL = 20_000
"""Number of documents up to which one level of 256 prefixes is enough of a tree."""


@dataclass(frozen=True)
class Tables:
    """What a query reads codes by: its inner products with every token, [levels, tokens]."""

    codes: np.ndarray
    segments: np.ndarray | None
    """None in an index without segments."""


@dataclass
class Evidence:
    """The candidates of one query: sorted rows, with what each source says about them."""

    rows: np.ndarray
    similarity: np.ndarray
    nearest: np.ndarray
    """Similarity of the nearest of a document's text and its segments."""
    words: np.ndarray
    votes: fusion.Votes
    features: np.ndarray
    rarity: float
    """See `callslip.search.confidence`."""

    def signals(self, without: Container[int] = ()) -> np.ndarray | None:
        """The signals of the confidence, of all candidates but some; None if none are left."""
        kept = [at for at, row in enumerate(self.rows.tolist()) if row not in without] if without else slice(None)
        similarity, words = self.similarity[kept], self.words[kept]
        if not len(similarity):
            return None
        return np.array([similarity.max(), words.max() / self.rarity if self.rarity > 0 else 0.0])


@dataclass
class CodedTexts:
    """The codes of some texts, and of their segments."""

    codes: np.ndarray
    """uint8 [n, length]."""
    segments: np.ndarray
    """uint8 [S, segment_length]."""
    segment_scales: np.ndarray
    counts: np.ndarray
    """Number of segments of each text."""


@dataclass
class Coded:
    """The codes of a corpus: the quantisers, and blocks of codes: those of texts, then those of passages."""

    maker: TiedQuantizer
    blocks: Iterable[Block]
    segment_maker: SegmentQuantizer | None = None
    segments: SegmentTable | None = None


class TiedResidual(Retriever):
    """Ranks documents by their codes, their words, and the earlier queries that they answered."""

    Settings = TiedResidualSettings
    presets = PRESETS
    search_settings = frozenset({"candidates", "depth", "words", "memory", "backend", "device"})
    learns_from_queries = True
    writes_codes = False
    settings: TiedResidualSettings
    maker: TiedQuantizer
    segment_maker: SegmentQuantizer | None
    entries: Entries
    segments: SegmentTable | None
    """None if documents have no segments: none were asked for, or the encoder has none."""
    memory: Memory
    weights: Weights

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self.texts = TextVectors(self.settings)
        self.words = self.new_words()
        self.segment_maker, self.segments = None, None
        self.correction: Correction | None = None
        self.correction_record: dict[str, Any] = {}
        """What held-out queries said of the correction, by strength."""
        self._coded: Coded | None = None
        self._identifiers: tuple[Entries, Identifiers] | None = None
        self._tree: tuple[Identifiers, Identifiers] | None = None

    @property
    def code_settings(self) -> Mapping[str, Any]:
        return {"words": False, "memory": False}  # what is left is the similarity of query and code

    # Fit.

    def build(self, corpus: Corpus) -> None:
        s = self.settings
        coded = self._coded or self._code(corpus)
        self.maker, length = coded.maker, coded.maker.length
        self.segment_maker, self.segments = coded.segment_maker, coded.segments
        self.entries = Entries.of_blocks(coded.blocks, length, self.maker.tree, self.maker.scales)
        if s.words:
            self.words.index(document.content for document in corpus)
        self.memory = Memory(length)
        if s.memory:
            self.remember(corpus)
        self.weights = fitted_weights(self, corpus)
        self.correction, self.correction_record = trained_correction(self, corpus) if s.correction else (None, {})

    def _code(self, corpus: Corpus) -> Coded:
        """The codes of a corpus, of its segments and of its passages."""
        vectors, segments = self.texts.segments(corpus, self.settings.segments, "encoding documents")
        self.maker = self.new_maker(len(corpus), vectors.shape[1])
        codes = self.maker.fit(vectors).astype(np.uint8)
        del vectors  # from here on, codes are all there is
        sample = self.maker.sample(len(codes))
        self.segment_maker = self.new_segment_maker(codes[sample], segments.of_texts(sample))
        table = self.segment_table(codes, segments)
        del segments
        passages, _, owners = self.passage_codes(corpus.documents)
        blocks: list[Block] = [(codes, np.arange(len(codes)), True), (passages, owners, False)]
        return Coded(self.maker, blocks, self.segment_maker, table)

    def new_segment_maker(self, codes: np.ndarray, segments: Segments) -> SegmentQuantizer | None:
        """The quantiser of segments, learned from those of a sample of texts with these codes; None if there are to be
        none."""
        s = self.settings
        if not s.segments or not self.texts.segmentable:
            return None
        rows = np.sort(np.random.default_rng(s.seed).permutation(len(codes))[:SAMPLED])
        some = segments.of_texts(rows)
        maker = SegmentQuantizer(min(s.segment_length, self.maker.dim), s.seed)
        return maker.learn(unit_vectors(some.directions), self.maker.decode(codes[rows])[some.owners])

    def segment_table(self, codes: np.ndarray, segments: Segments) -> SegmentTable | None:
        """The codes of the segments of texts with these codes."""
        if self.segment_maker is None:
            return None
        return SegmentTable.of(*self.segment_codes(codes, segments), segments.counts)

    def segment_codes(self, codes: np.ndarray, segments: Segments) -> tuple[np.ndarray, np.ndarray]:
        """Codes and scales of the segments of texts with these codes."""
        assert self.segment_maker is not None
        made = [(np.zeros((0, self.segment_maker.length), np.uint8), np.zeros(0, np.float16))]
        for start in range(0, len(codes), SAMPLED):
            some = segments.of_texts(range(start, min(start + SAMPLED, len(codes))))
            bases = self.maker.decode(codes[start : start + SAMPLED])[some.owners]
            made.append(self.segment_maker.assign(unit_vectors(some.directions), bases))
        return np.concatenate([one for one, _ in made]), np.concatenate([one for _, one in made])

    def new_maker(self, count: int, dim: int) -> TiedQuantizer:
        """The quantiser for `count` vectors of `dim` numbers, without codebooks yet."""
        s = self.settings
        length = min(s.length, dim + 1)
        return TiedQuantizer(length, min(s.tree or (1 if count <= SMALL else 2), length), seed=s.seed)

    def fit_coded(self, corpus: Corpus, coded: Coded) -> Self:
        """`fit` with codes that were made before, such as by the workers of a job."""
        self._coded = coded
        try:
            return self.fit(corpus)
        finally:
            self._coded = None

    def remember(self, corpus: Corpus) -> None:
        """Hold the judged queries of the train split in the memory."""
        queries, judgements = corpus.split("train")
        row_of = corpus.rows_of({doc_id for grades in judgements.values() for doc_id in grades})
        answers = {
            qid: [row_of[doc_id] for doc_id, grade in grades.items() if grade > 0 and doc_id in row_of]
            for qid, grades in judgements.items()
        }
        asked = [qid for qid, rows in answers.items() if rows and queries[qid].text]
        if asked:
            texts = [queries[qid].text for qid in asked]
            codes = self.maker.assign(self.texts.training(texts))
            self.memory.add(texts, codes, self.maker.scales(codes), [answers[qid] for qid in asked])

    def learn_answers(self, answers: Mapping[str, Sequence[str]]) -> Learned:
        return learned(self, answers)

    def remembers(self, text: str) -> bool:
        return self.settings.memory and self.memory.number_of(text) is not None

    def new_words(self) -> Postings:
        return Postings(k1=self.settings.k1, b=self.settings.b)

    def passage_codes(self, documents: Sequence[Document], first: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes, scales and rows of the passages of documents whose rows begin at `first`."""
        from callslip.corpus.sentences import passages

        texts: list[str] = []
        owners: list[int] = []
        for row, document in enumerate(documents if self.settings.passages else (), start=first):
            parts = passages(document, self.settings.passages)
            texts += parts
            owners += [row] * len(parts)
        if not texts:
            return np.zeros((0, self.maker.length), np.uint8), np.zeros(0, np.float16), np.zeros(0, np.int32)
        codes = self.maker.assign(self.texts.cached(texts, "encoding passages", "document"))
        return codes, self.maker.scales(codes), np.asarray(owners, np.int32)

    # Search.

    def find(self, queries: list[Query], k: int, mask: np.ndarray | None, explain: bool) -> list[Found]:
        texts, vectors = [query.text for query in queries], self.texts.queries(queries)
        stems = self.words.tokenize(texts) if self.settings.words else [[]] * len(texts)
        found: list[Found] = []
        for start in range(0, len(texts), BLOCK):
            some = slice(start, start + BLOCK)
            tables = plain = self.tables(vectors[some])
            if self.correction is not None:
                tables = self.tables(self.correction(vectors[some]))
            for text, table, own, words in zip(texts[some], tables, plain, stems[some], strict=True):
                found.append(self.ranked(text, table, words, k, mask, explain, own))
        return found

    def tables(self, vectors: np.ndarray) -> list[Tables]:
        """What each query reads codes by."""
        codes = self.maker.tables(vectors)
        if self.segment_maker is None:
            return [Tables(table, None) for table in codes]
        return [Tables(*both) for both in zip(codes, self.segment_maker.tables(vectors), strict=True)]

    def ranked(
        self,
        text: str,
        table: Tables,
        stems: list[str],
        k: int,
        mask: np.ndarray | None,
        explain: bool,
        asked: Tables | None = None,
    ) -> Found:
        """The best documents for a query, given its text, its tables of tokens and its stems; `asked` are its tables
        without the correction."""
        evidence = self.evidence(table, stems, k, mask, text=text, asked=asked)
        scores = evidence.features @ self.weights.values
        order = np.lexsort((evidence.rows, -evidence.similarity, -scores))[:k]
        rows = evidence.rows[order]
        why = [self.reasons(evidence, int(at)) for at in order] if explain else None
        codes, (confidence, unsure) = self.entries.codes_of(rows).astype(int), self.confidence(evidence)
        return Found(rows, scores[order], codes, why, confidence, unsure)

    def evidence(
        self,
        table: Tables,
        stems: list[str],
        k: int,
        mask: np.ndarray | None = None,
        *,
        text: str | None = None,
        asked: Tables | None = None,
        leave_out: Sequence[int] | None = None,
        entries: Entries | None = None,
        segments: SegmentTable | None = None,
        words: Postings | None = None,
        memory: Memory | None = None,
    ) -> Evidence:
        """What the sources say about their best candidates. A remembered query with the same `text` is nearest; `asked`
        are the tables that earlier queries are compared with, if it is not `table`; `leave_out` are remembered queries
        that do not count; `entries`, `segments`, `words` and `memory` stand in for the index's own."""
        s, depth = self.settings, max(self.settings.depth, k)
        entries, words = entries or self.entries, words or self.words
        segments = self.segments if segments is None else segments
        mask = self.rows.mask(None) if mask is None else mask
        opened = entries.open(table.codes, None if s.candidates is None else max(s.candidates, 2 * depth), mask)
        reached, near = entries.best_of_rows(opened, entries.scores(table.codes, opened))
        first = best_rows(near, min(depth, len(near)))
        best_similarity, best_nearest = near[first], None
        if segments is not None:
            some = best_rows(near, min(WITH_SEGMENTS * depth, len(near)))
            closest = self._nearest(table, reached[some], near[some], entries, segments)
            best = best_rows(closest, min(depth, len(some)))
            first, best_nearest = np.union1d(first, some[best]), closest[best]
        matches = words.matches(stems) if s.words else Matches.none()
        allowed = matches.among(mask)
        best_words = best_rows(allowed.scores, depth)
        by_words = allowed.rows[best_words]
        votes = fusion.Votes.none()
        if s.memory:
            near_by = (table if asked is None else asked).codes
            votes = (self.memory if memory is None else memory).ask(near_by, mask, leave_out, text)
        voted = votes.rows[np.argsort(-votes.shares[:, -2], kind="stable")[:depth]]
        rows = np.unique(np.concatenate([reached[first], by_words, voted]))
        similarity = self._similarities(table.codes, rows, reached, near, entries)
        nearest = similarity if segments is None else self._nearest(table, rows, similarity, entries, segments)
        word_scores = matches.of(rows)
        found = fusion.features(
            rows, similarity, word_scores, votes, best_similarity, allowed.scores[best_words],
            None if segments is None else nearest, best_nearest,
        )  # fmt: skip
        rarity = words.rarity(stems) if s.words else 0.0
        return Evidence(rows, similarity, nearest, word_scores, votes, found, rarity)

    def _nearest(
        self, table: Tables, rows: np.ndarray, similarity: np.ndarray, entries: Entries, segments: SegmentTable
    ) -> np.ndarray:
        """The similarity of rows to the nearest of what has a code: `similarity`, or that of a segment."""
        assert table.segments is not None
        whole = entries.scores_of_rows(table.codes, rows, texts=True) if self.settings.passages else similarity
        return np.maximum(similarity, segments.nearest(table.segments, rows, whole))

    def confidence(self, evidence: Evidence) -> tuple[float | None, bool]:
        """The confidence in the best evidence, and whether that is too little; None without a calibration."""
        known = self.weights.calibration
        # A source that has been switched off since the fit leaves nothing to compare with.
        if known is None or (known.weights[1] > 0 and not self.settings.words):
            return None, False
        if evidence.votes.nearest.max(initial=0.0) >= SAME:
            return 1.0, False
        signals = evidence.signals()
        confidence = 0.0 if signals is None else known.confidence(signals)
        return confidence, known.unsure(confidence)

    def _similarities(
        self, table: np.ndarray, rows: np.ndarray, reached: np.ndarray, near: np.ndarray, entries: Entries
    ) -> np.ndarray:
        """Similarities of rows: those that the tree has reached are known, the others are read from their codes."""
        at = np.minimum(np.searchsorted(reached, rows), max(len(reached) - 1, 0))
        known = reached[at] == rows if len(reached) else np.zeros(len(rows), bool)
        similarity = np.empty(len(rows), np.float32)
        similarity[known] = near[at[known]]
        if not known.all():
            similarity[~known] = entries.scores_of_rows(table, rows[~known])
        return similarity

    def reasons(self, evidence: Evidence, at: int) -> dict[str, Any]:
        """Why a candidate has its score: the parts of it, and the earlier query that speaks for it."""
        parts = evidence.features[at] * self.weights.values
        memory = float(parts[fusion.MEMORY].sum())
        why: dict[str, Any] = {
            "meaning": float(parts[fusion.MEANING].sum()),
            "words": float(parts[fusion.WORDS]),
            "memory": memory,
            "similarity": float(evidence.similarity[at]),
            "bm25": float(evidence.words[at]),
        }
        if evidence.nearest[at] > evidence.similarity[at]:
            why["segment_similarity"] = float(evidence.nearest[at])
        place = np.flatnonzero(evidence.votes.rows == evidence.rows[at])
        if len(place) and memory >= 0.001:  # less cannot have moved it
            why["earlier_query"] = self.memory.texts[int(evidence.votes.by[place[0]])]
            why["earlier_similarity"] = float(evidence.votes.nearest[place[0]])
        return why

    def adjusted(self, names: frozenset[str]) -> None:
        if self.settings.words and not self.words.indexed:
            raise BadSetting("setting 'words': this index was fitted without words", "Fit again with words=true.")
        if names & {"device", "backend"}:
            self.texts.adjust(self.settings)

    # Changes.

    def prepare(self, documents: list[Document]) -> Parts:
        coded = self.code(*self.texts.segments(documents, self._segments_wanted, "encoding new documents"))
        parts = {"codes": coded.codes[:, : self.maker.tree].astype(np.int32), "entries": coded.codes}
        if self.segment_maker is not None:
            most = self.settings.segments
            codes = np.zeros((len(documents), most, self.segment_maker.length), np.uint8)
            scales = np.zeros((len(documents), most), np.float16)
            there = np.arange(most) < coded.counts[:, None]
            codes[there], scales[there] = coded.segments, coded.segment_scales
            counts = coded.counts.astype(np.uint8)
            parts |= {"segments": codes, "segment_scales": scales, "segment_counts": counts}
        if self.settings.passages:
            more, _, owners = self.passage_codes(documents)
            padded = np.full((len(documents), self.settings.passages, self.maker.length), -1, np.int16)
            place = np.arange(len(owners)) - np.searchsorted(owners, owners)
            padded[owners, place] = more
            parts["passages"] = padded
        return parts

    @property
    def _segments_wanted(self) -> int:
        """Most segments of a new document; none in an index that was fitted without."""
        return 0 if self.segment_maker is None else self.settings.segments

    def text_vectors(self, texts: Sequence[str], progress: str) -> tuple[np.ndarray, Segments]:
        """Vectors of the texts of documents, with their segments."""
        return self.texts.segmented(texts, self._segments_wanted, progress)

    def code(self, vectors: np.ndarray, segments: Segments) -> CodedTexts:
        """The codes of texts with these vectors and segments."""
        codes = self.maker.assign(vectors).astype(np.uint8)
        if self.segment_maker is None:
            return CodedTexts(codes, np.zeros((0, 1), np.uint8), np.zeros(0, np.float16), np.zeros(len(codes), int))
        return CodedTexts(codes, *self.segment_codes(codes, segments), segments.counts)

    def extend(self, documents: list[Document], parts: Parts) -> None:
        first = len(self.rows.alive)
        self.memory.follow(self.moved(documents, first))
        codes, owners = parts["entries"], first + np.arange(len(documents))
        if self.settings.passages:
            row, place = np.nonzero(parts["passages"][:, :, 0] >= 0)
            codes = np.concatenate([codes, parts["passages"][row, place].astype(np.uint8)])
            owners = np.concatenate([owners, first + row])
        self.entries = self.entries.with_more(codes, self.maker.scales(codes), owners)
        if self.segments is not None:
            counts = parts["segment_counts"].reshape(-1)
            there = np.arange(self.settings.segments) < counts[:, None]
            self.segments = self.segments.with_more(parts["segments"][there], parts["segment_scales"][there], counts)
        if self.words.indexed:
            self.words.extend([document.content for document in documents])

    def moved(self, documents: Sequence[Document], first: int) -> dict[int, int]:
        """Rows of documents that are updated, and their new rows: a document keeps the queries it answered. One that
        was deleted, and is added again, is a new document."""
        if not len(self.memory):
            return {}
        known = self.rows.row_of()
        new = ((known.get(document.doc_id), row) for row, document in enumerate(documents, start=first))
        return {earlier: row for earlier, row in new if earlier is not None}

    def forget(self, rows: list[int]) -> None:
        self.words.drop(rows)

    def keep(self, rows: np.ndarray) -> None:
        self.entries = self.entries.kept(rows)
        self.segments = None if self.segments is None else self.segments.kept(rows)
        self.memory.keep(rows)
        if self.words.indexed:
            self.words = self.words.kept(rows)

    def codes_by_row(self) -> np.ndarray:
        """The tree tokens of every row: documents with equal ones are alike, as far as the tree can tell."""
        return self.entries.prefixes_of_rows(len(self.rows.alive))

    @property
    def tree_levels(self) -> int:
        """Number of tokens of a code that form the tree; the others rank inside."""
        return self.maker.tree

    @property
    def tree_identifiers(self) -> Identifiers:
        """The tree tokens of the codes as a table, for the tree on the page."""
        whole = self.identifiers
        if self._tree is None or self._tree[0] is not whole:
            doc_ids, codes = whole.in_row_order()
            self._tree = (whole, Identifiers(doc_ids, codes[:, : self.maker.tree]))
        return self._tree[1]

    @property
    def identifiers(self) -> Identifiers:
        """The whole codes as a table, for reports."""
        if self._identifiers is None or self._identifiers[0] is not self.entries:
            count = len(self.rows.alive)
            codes = self.entries.codes_of_rows(count).astype(np.int32)
            names = [f"deleted {row}" if not alive else "" for row, alive in enumerate(self.rows.alive)]
            known = self.rows.doc_ids()
            table = Identifiers([name or known[row] for row, name in enumerate(names)], codes)
            self._identifiers = (self.entries, table)
        return self._identifiers[1]

    # The saved folder.

    def save_files(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        save_file(codebooks(self.maker, self.segment_maker), folder / CODEBOOKS)
        self.entries.save(folder)
        if self.segments is not None:
            self.segments.save(folder)
        self.memory.save(folder / MEMORY)
        said = self.weights.to_dict() | ({"correction": self.correction_record} if self.correction_record else {})
        (folder / WEIGHTS).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
        if self.words.indexed:
            self.words.save(folder / WORDS)
        if self.correction is not None:
            self.correction.save(folder)

    def load_files(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        self.maker, self.segment_maker = makers(load_file(folder / CODEBOOKS))
        self.entries, self.segments = Entries.load(folder, self.maker.tree), SegmentTable.load(folder)
        self.memory = Memory.load(folder / MEMORY)
        said = json.loads((folder / WEIGHTS).read_text(encoding="utf-8"))
        self.weights, self.correction_record = Weights.from_dict(said), said.get("correction", {})
        self.words, self.correction = self.new_words(), Correction.load(folder)
        if (folder / WORDS).exists():
            self.words.load(folder / WORDS)
        elif (folder / SCORED_WORDS).exists():
            self.words.index(document.content for document in self.documents)


def codebooks(maker: TiedQuantizer, segment_maker: SegmentQuantizer | None) -> dict[str, np.ndarray]:
    """The arrays of both quantisers, as they are saved."""
    of_segments = {} if segment_maker is None else segment_maker.state()
    return maker.state() | {f"{SEGMENTS}{name}": array for name, array in of_segments.items()}


def makers(state: Mapping[str, np.ndarray]) -> tuple[TiedQuantizer, SegmentQuantizer | None]:
    """The quantisers of `codebooks`."""
    own = {name.removeprefix(SEGMENTS): array for name, array in state.items() if name.startswith(SEGMENTS)}
    rest = {name: array for name, array in state.items() if not name.startswith(SEGMENTS)}
    return TiedQuantizer.from_state(rest), SegmentQuantizer.from_state(own) if own else None
