"""Tied-Atomic's settings and presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from callslip.errors import BadSetting
from callslip.index.settings import DecoderSettings, ScheduleSettings, T5Settings, TextSettings
from callslip.index.vectors import VectorSettings
from callslip.settings import check_positive, check_range


@dataclass(frozen=True)
class TiedAtomicSettings(VectorSettings, TextSettings, DecoderSettings, ScheduleSettings, T5Settings):
    """Tied-Atomic's own: what a state is, the negatives, and the teacher."""

    state: Literal["decoder", "encoder"] = "decoder"
    """What stands for a text: the `decoder`'s last hidden state after one step, or the vector of the fine-tuned
    `encoder` (of T5's, averaged over the text), which makes it a dual encoder: the paper's dense baseline."""
    products: Literal["cosine", "dot"] = "cosine"
    """Scores of states: products of normalised states (`cosine`), or plain products (`dot`), as in the paper."""
    negatives: int = 1
    """Number of hard negatives per example and step; a batch shares them."""
    negatives_from: int = 100
    """Number of BM25's best documents, without the answers, that hard negatives are drawn from."""
    temperature: float = 0.05
    """Temperature of the contrastive softmax."""
    contrastive_weight: float = 1.0
    """Weight of the contrastive loss."""
    teacher: str | None = None
    """Teacher of the MarginMSE loss: none, dense (the frozen encoder), bm25, or a Hugging Face cross-encoder by name or
    path."""
    teacher_weight: float = 1.0
    """Weight of the MarginMSE loss."""
    teacher_negatives: int = 4
    """Number of hard negatives per example that the teacher scores, once, before training."""
    teacher_scale: float | None = None
    """Factor of the teacher's margins; none scales them to the standard deviation of the untrained model's margins."""

    # Other defaults for settings of the groups.

    query_repeat: int | None = None
    """Number of times each judged query is seen per epoch. None repeats judged queries until they are about a third as
    many as the pseudo-queries."""
    decoder_layers: int = 1
    """Number of decoder layers."""
    epochs: int = 2
    """Number of training epochs."""
    batch_size: int = 256
    """Training examples per step."""
    learning_rate: float = 2e-4
    """Peak learning rate of AdamW."""

    def check(self) -> None:
        check_range(self, negatives_from=1, teacher_negatives=1, negatives=0, contrastive_weight=0, teacher_weight=0)
        check_positive(self, "temperature")
        if self.encoder_memory == "states":
            raise BadSetting("the small decoder reads an encoder's vector, not its states", "Leave encoder_memory out.")
        if self.state == "encoder" and self.train_encoder == "none" and self.seq2seq is None:
            raise BadSetting(
                "state=encoder with a frozen encoder leaves nothing to train",
                "Set train_encoder=top or all, or seq2seq; without training, use the method dense.",
            )


PRESETS: dict[str, dict[str, Any]] = {"quick": {"epochs": 1}}
