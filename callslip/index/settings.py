"""The settings that every generative method has; a method's own dataclass extends them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from callslip.errors import BadSetting
from callslip.index.histories import HistorySettings
from callslip.settings import check_range

Ranking = Literal["bucket", "share", "sum", "union"]
"""Orders of the documents whose codes were written."""


@dataclass(frozen=True)
class GenerativeSettings(HistorySettings):
    """What every generative method has: an encoder, a decoder, training texts, a schedule and a search; and, on logs of
    users and items, how histories are read."""

    queries: Literal["auto", "text", "set", "sequence"] = "auto"
    """What queries are: `text`; histories of items, read as a `set` (general recommendation) or a `sequence` (what
    comes next). auto is a sequence for a corpus whose train queries are histories, and text for all else."""
    ranker_weight: float = 1.0
    """With histories: weight of the term that trains the inner product of history and item, which ranks inside buckets,
    beside the term that trains the codes; 0 leaves it out."""
    history_weight: float = 1.0
    """With histories: what an inner product of 1 is worth in log-probability, under `ranking=sum`."""
    codes_from: str | None = None
    """A saved index whose codes are taken instead of the method's own; every document must be in it."""
    encoder: str = "minilm"
    """minilm (embedded), granite, or any Hugging Face encoder by name or path."""
    train_encoder: Literal["none", "top", "all"] = "none"
    """Layers of the encoder that are trained with the decoder: `none` (every vector is made once and kept), the `top`
    two, or `all`. The decoder then reads a copy that is; similarities stay those of the encoder as it was. Much slower,
    and wants a GPU."""
    encoder_learning_rate: float = 2e-5
    """Peak learning rate of the encoder's layers, where they are trained."""
    max_length: int | None = None
    """Word pieces read of each text; none is the encoder's own limit."""
    backend: Literal["auto", "torch", "onnx"] = "auto"
    """How the encoder runs: torch in float32, onnx in int8 (extra `onnx`); auto takes int8 on a CPU where it can."""
    pseudo_queries: tuple[str, ...] = ("title", "sentences")
    """Texts made from each document to train on: title, lead, sentences, spans, keywords; empty for none."""
    doc2query: str | None = None
    """A Hugging Face sequence-to-sequence checkpoint (name or path) that writes further pseudo-queries."""
    doc2query_per_document: int = 5
    """How many queries it writes for each document."""
    train_on_documents: bool = True
    """Whether the document's own text is a training example, too."""
    train_on_queries: bool = True
    """Whether the judged queries of the train split are training examples."""
    query_repeat: int = 1
    """How many times a judged query is seen per epoch: it is rarer than pseudo-queries, and nearer to real ones."""
    seq2seq: str | None = None
    """A T5 checkpoint (name or folder) that reads the query's text and writes its code, trained as a whole, instead of
    the small decoder that reads the encoder's vector. Wants a learning rate of about 5e-4, batches of 32 and a GPU."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "tokens"
    """With `seq2seq`: tokens of codes as new tokens of T5's vocabulary, or in codebooks of their own."""
    seq2seq_length: int = 64
    """With `seq2seq` or `train_encoder`: word pieces that the model reads of each text."""
    decoder_width: int = 256
    """Width of the decoder."""
    decoder_layers: int = 2
    """Layers of the decoder."""
    decoder_heads: int = 4
    """Attention heads of the decoder."""
    memory_slots: int = 2
    """Vectors that the decoder's cross-attention reads, made from the query's one vector."""
    dropout: float = 0.1
    """Dropout in the decoder."""
    noise: float = 0.5
    """Length of the random vector added to each example's unit vector in training, so that what lies near a text is
    learned with it."""
    epochs: int = 20
    """Passes over the training texts."""
    batch_size: int = 512
    """Examples per step."""
    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    beam: int = 50
    """Codes kept while writing; it grows by itself when k hits need more."""
    decoding: Literal["beam", "exact"] = "beam"
    """`beam` search, or the best codes of all: `exact` loses nothing to pruning, and takes longer the less sure the
    model is. For small corpora, and to see what a beam loses."""
    ranking: Ranking = "sum"
    """Order of hits: `bucket` keeps the model's order of codes and ranks by similarity inside each bucket; `share` does
    so after it has divided the probability of each code among its documents, so that a bucket is not first because it
    is full; `sum` adds the code's log-probability and `similarity_weight` times the similarity; `union` ranks all
    documents of the beam's buckets by similarity alone."""
    similarity_weight: float = 60.0
    """What a similarity of 1 is worth in log-probability, under `ranking=sum`."""
    bucket_limit: int | None = None
    """Documents of one bucket that may come before documents of other buckets; none for no limit. The others of the
    bucket come last, so that there are still k hits."""
    seed: int = 0
    """Random seed of codes, weights and batches."""
    device: str | None = None
    """cpu, cuda, mps; none is the best there is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, ranker_weight=0)
        if self.queries in ("set", "sequence") and (self.seq2seq is not None or self.train_encoder != "none"):
            raise BadSetting(
                f"setting 'queries' is {self.queries}, and `seq2seq` or `train_encoder` is for texts", "Leave one out."
            )
        check_range(self, decoder_width=1, decoder_layers=1, decoder_heads=1, memory_slots=1, batch_size=1, beam=1)
        if self.bucket_limit is not None:
            check_range(self, bucket_limit=1)
        check_range(self, dropout=0, noise=0, epochs=0, learning_rate=0, weight_decay=0, query_repeat=0, seed=0)
        check_range(self, seq2seq_length=3, encoder_learning_rate=0)
        if self.train_encoder != "none" and self.seq2seq is not None:
            raise BadSetting(
                "setting 'train_encoder': with `seq2seq` the decoder reads T5's own encoder", "Leave it out."
            )
        if not math.isfinite(self.similarity_weight):
            raise BadSetting(f"setting 'similarity_weight' is {self.similarity_weight}", "Use a number.")
        if self.dropout >= 1:
            raise BadSetting(f"setting 'dropout' is {self.dropout}", "Use less than 1.")
