"""The model of a generative method: made, given its inputs, saved and loaded; `generative.py` trains and asks it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from callslip.corpus.documents import Query
from callslip.errors import BadSetting
from callslip.identifiers.maker import CodeMaker
from callslip.identifiers.table import Identifiers
from callslip.index.histories import HistoryShape, numbers_of
from callslip.index.retriever import Retriever
from callslip.index.settings import GenerativeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callslip.decoders.histories import HistoryWriter
    from callslip.decoders.t5 import T5CodeWriter
    from callslip.decoders.tuned import TunedWriter
    from callslip.decoders.writer import CodeWriter
    from callslip.encoders.encoder import Encoder
    from callslip.training.loop import TrainingLog

VECTORS, MODEL, MODEL_SHAPE, TRAINING = "vectors.npy", "model.safetensors", "model.json", "training.jsonl"
T5, CLUSTERS = "t5", "clusters.safetensors"

Inputs = np.ndarray | list[list[int]]
"""Queries as a model reads them: vectors [n, dim], histories of item numbers [n, T], or token ids of each."""


class WriterRetriever(Retriever):
    """A retriever with a model that writes codes."""

    Settings = GenerativeSettings
    settings: GenerativeSettings
    identifiers: Identifiers
    vectors: np.ndarray
    model: CodeWriter | T5CodeWriter | TunedWriter | HistoryWriter
    takes_histories: ClassVar[bool] = True
    """Whether the method can be fitted to histories of items: true of every one that trains by `train_model` alone."""

    def __init__(self, settings: Any = None, *, method: str = "") -> None:
        super().__init__(settings, method=method)
        self._encoder: Encoder | None = None
        self.log: TrainingLog | None = None
        self.maker: CodeMaker | None = None
        self.history: HistoryShape | None = None
        self._item_vectors: np.ndarray | None = None
        if self.settings.queries in ("set", "sequence") and not self.takes_histories:
            raise BadSetting(
                f"setting 'queries' is {self.settings.queries}, and {self.method} reads texts",
                "Leave it out, or use a method that reads histories, such as dsi-semantic or tiger.",
            )

    def code_maker(self, documents: int) -> CodeMaker | None:
        """What makes codes of the documents' vectors; none if codes come from elsewhere. It is saved with the index."""
        return None

    def check_seq2seq(self) -> None:
        """Refuse what is no T5 before anything else is done: a wrong name should not cost the encoding."""
        if self.settings.seq2seq is not None:
            from callslip.decoders.t5 import check_checkpoint

            check_checkpoint(self.settings.seq2seq)

    @property
    def reads_text(self) -> bool:
        """Whether the model reads texts itself, and not the vectors of a frozen encoder."""
        return self.settings.seq2seq is not None or self.settings.train_encoder != "none"

    @property
    def _reader(self) -> T5CodeWriter | TunedWriter:
        """The model, where it reads texts itself."""
        return cast("T5CodeWriter | TunedWriter", self.model)

    @property
    def reads_histories(self) -> bool:
        return self.history is not None

    def could_read(self, *, histories: bool) -> bool:
        kind = self.settings.queries
        if histories:
            return kind in ("set", "sequence") or (kind == "auto" and self.takes_histories and not self.reads_text)
        return kind in ("auto", "text")

    @property
    def histories(self) -> HistoryWriter:
        """The model, where it reads histories of items."""
        return cast("HistoryWriter", self.model)

    def item_vectors(self) -> np.ndarray:
        """What a history's vector is compared with, one row an item."""
        if self._item_vectors is None:
            import torch

            with torch.no_grad():
                self._item_vectors = self.histories.items.all().cpu().numpy()
        return self._item_vectors

    def query_vectors(self, queries: list[Query]) -> np.ndarray:
        """One vector a query: what documents are ranked by."""
        if self.history is None:
            return self.encoder.encode([query.text for query in queries])
        return self.histories.vectors(self.batch(self._numbers(queries))).cpu().numpy()

    def _numbers(self, queries: list[Query]) -> np.ndarray:
        assert self.history is not None
        known = self.histories.items.known().cpu().numpy()
        return numbers_of(queries, self.row_of(), self.history.longest, known)

    def inputs(self, queries: list[Query], vectors: np.ndarray) -> Inputs:
        """Queries as the model reads them: their vectors, token ids, or histories of item numbers."""
        if self.history is not None:
            return self._numbers(queries)
        if not self.reads_text:
            return vectors
        return self._reader.tokenize([query.text for query in queries], self.settings.seq2seq_length)

    def new_model(
        self, widths: Sequence[int], with_end: bool = False
    ) -> CodeWriter | T5CodeWriter | TunedWriter | HistoryWriter:
        """An untrained writer of codes of so many tokens per level, of the shape that the settings ask for."""
        from callslip.decoders.t5 import T5CodeWriter
        from callslip.runtime.device import best_device

        s, widths = self.settings, [int(width) for width in widths]
        if s.seq2seq is not None:
            t5 = T5CodeWriter.from_pretrained(s.seq2seq, widths, codes=s.seq2seq_codes, with_end=with_end)
            return t5.to(best_device(s.device))
        self._shape = self.writer_shape() | {"widths": widths, "with_end": with_end}
        self._item_vectors = None
        return self._reading(self.writer(self._shape)).to(best_device(s.device))

    def writer_shape(self) -> dict[str, Any]:
        """The shape of the code writer that the settings ask for, as it is saved; the codes add their widths."""
        s = self.settings
        reads = {} if self.history is None else {"reads": self.history.memory, "input_dim": self.history.width}
        return {
            "input_dim": self.vectors.shape[1],
            "width": s.decoder_width,
            "layers": s.decoder_layers,
            "heads": s.decoder_heads,
            "memory_slots": s.memory_slots,
            "dropout": s.dropout,
            **reads,
        }

    def _reading(self, writer: CodeWriter) -> CodeWriter | TunedWriter | HistoryWriter:
        """The writer, with an encoder before it if one is trained with it: of histories, or of texts."""
        if self.history is not None:
            from callslip.decoders.histories import HistoryWriter

            return HistoryWriter(self.history.encoder(self.vectors), writer)
        if self.settings.train_encoder == "none":
            return writer
        from callslip.decoders.tuned import TunedWriter

        return TunedWriter(self.settings.encoder, writer, self.settings.train_encoder, self.settings.max_length)

    def writer(self, shape: dict[str, Any]) -> CodeWriter:
        """A code writer of that shape; a method with another decoder gives its own."""
        from callslip.decoders.writer import CodeWriter

        return CodeWriter(**shape)

    def made_once(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What is made between phases of training; a resumed fit has it already."""
        kept = self.checkpoints
        held = kept.recall(name) if kept is not None else None
        if held is not None:
            return held["made"]
        made = make()
        if kept is not None:
            kept.remember(name, made=made)
        return made

    def learning_share(self, parameter: str) -> float:
        """The share of the learning rate that a parameter has: an encoder that is trained, too, learns slowly."""
        encoder = self.settings.train_encoder != "none" and parameter.startswith("encoder.")
        return self.settings.encoder_learning_rate / max(self.settings.learning_rate, 1e-12) if encoder else 1.0

    def decay(self, parameter: str) -> float:
        """The weight decay that a parameter has: the vectors of items have one of their own."""
        return self.settings.decay_of(parameter, self.settings.weight_decay)

    def batch(self, inputs: Inputs, rows: np.ndarray | None = None) -> Any:
        """Some of the inputs as the model takes them, on its device."""
        import torch

        chosen = range(len(inputs)) if rows is None else rows
        device = next(self.model.parameters()).device
        if isinstance(inputs, list):
            return self._reader.batch([inputs[row] for row in chosen]).to(device)
        return torch.from_numpy(np.ascontiguousarray(inputs if rows is None else inputs[rows])).to(device)

    @property
    def encoder(self) -> Encoder:
        if self._encoder is None:
            from callslip.encoders.encoder import load_encoder

            s = self.settings
            self._encoder = load_encoder(s.encoder, device=s.device, max_length=s.max_length, backend=s.backend)
        return self._encoder

    def encode(self, texts: list[str], progress: str) -> np.ndarray:
        from callslip.encoders.vector_cache import cached_encode

        return cached_encode(self.encoder, texts, progress=progress)

    def _adjusted(self, names: frozenset[str]) -> None:
        from callslip.runtime.device import best_device

        if "device" in names and hasattr(self, "model"):
            self.model.to(best_device(self.settings.device))
        if names & {"device", "backend"}:
            self._encoder = None

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
            shape = self._shape
            if self.history is not None:  # as many items as there are now, new ones included
                shape = shape | {"history": replace(self.history, count=len(self.vectors)).to_dict()}
            (folder / MODEL_SHAPE).write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
        if self.log is not None:
            lines = [json.dumps(record) for record in self.log.records]
            (folder / TRAINING).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _load(self, folder: Path) -> None:
        from safetensors.numpy import load_file as load_arrays
        from safetensors.torch import load_file

        from callslip.decoders.t5 import T5CodeWriter
        from callslip.runtime.device import best_device
        from callslip.training.loop import TrainingLog

        self.vectors = np.asarray(np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False))
        self.identifiers = Identifiers.load(folder, mmap=True, check=False)  # the manifest's hashes vouch for it
        maker = self.code_maker(len(self.vectors)) if self.settings.codes_from is None else None
        self.maker = None if maker is None else maker.from_state(load_arrays(folder / CLUSTERS))
        if self.settings.seq2seq is not None:
            self.model = T5CodeWriter.load(folder / T5)
        else:
            self._shape = json.loads((folder / MODEL_SHAPE).read_text(encoding="utf-8"))
            history = self._shape.pop("history", None)
            self.history, self._item_vectors = None if history is None else HistoryShape(**history), None
            self.model = self._reading(self.writer(self._shape))
            self.model.load_state_dict(load_file(folder / MODEL))
        self.model.to(best_device(self.settings.device)).eval()
        if (folder / TRAINING).exists():
            lines = (folder / TRAINING).read_text(encoding="utf-8").splitlines()
            self.log = TrainingLog([json.loads(line) for line in lines])
