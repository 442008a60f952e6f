"""Settings and presets of ASI and ASI++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from callslip.errors import BadSetting
from callslip.index.settings import GenerativeSettings, T5Settings, TiedStartSettings
from callslip.methods.asi.indexers import IndexerName
from callslip.settings import check_positive, check_range

CRITERIA = ("density", "bottleneck", "information")
"""The criteria of ASI++."""
AS_PRINTED = "density-as-printed"
"""The density criterion with the signs of the paper's Eq. 5."""
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"epochs": 2, "writing_epochs": 4},
    "random": {"codes": "random"},
    "pq": {"indexer": "pq"},
    "rq": {"indexer": "rq"},
    "no-density": {"criteria": ("bottleneck", "information")},
    "no-bottleneck": {"criteria": ("density", "information")},
    "no-information": {"criteria": ("density", "bottleneck")},
    "density-as-printed": {"criteria": ("density-as-printed", "bottleneck", "information")},
}


@dataclass(frozen=True)
class ASISettings(GenerativeSettings, T5Settings, TiedStartSettings):
    """ASI's own: the codes, the indexer, and the criteria of ASI++."""

    codes: Literal["learned", "random"] = "learned"
    """`learned` codes, or `random` ones as a control, on which the decoder is trained for `epochs` and `writing_epochs`
    together."""
    width: int = 32
    """Tokens per level (K). The paper's 256 is for millions of documents."""
    length: int = 4
    """Levels (L). More levels make buckets smaller, and codes harder to write."""
    indexer: IndexerName = "mlp"
    """Indexer, which maps a vector to a code: `mlp` (a network per level), `pq` (product quantisation) or `rq`
    (residual quantisation)."""
    indexer_start: Literal["clusters", "random"] = "clusters"
    """Initial weights of the indexer: `clusters` of the documents' vectors, or `random`, as in the paper."""
    margin: float = 3.0
    """Margin of the contrastive loss of Eq. 1. Distances between codes are at most 2L."""
    criteria_weight: float = 0.25
    """Weight λ of the three criteria of ASI++, reached after the first epoch; 0 is ASI, which ignores
    `criteria`."""
    criteria: tuple[str, ...] = CRITERIA
    """Criteria of ASI++ to use: density, bottleneck, information. `density` moves the texts in dense regions of code
    space most; `density-as-printed`, in its place, those far from the others, as the paper's Eq. 5 does."""
    temperature: float = 0.05
    """Temperature of the bottleneck's softmax over the batch; the paper uses none, that is 1."""
    beta: float = 0.00005
    """Weight of the KL divergence in the information criterion. The divergence is summed over hundreds of
    dimensions; with the paper's 0.01, noise drowns the codes."""
    neighbours: int = 1
    """Length of the code prefix shared by the documents of a batch, so that the loss separates near neighbours. 0 draws
    random batches, as in the paper, which gives fewer codes that the decoder learns sooner."""
    spare_answers: bool = True
    """Whether other documents of a batch that are judged to answer a query are left out of its negatives."""
    indexer_learning_rate: float = 2e-3
    """Peak learning rate of the indexer."""
    head_learning_rate: float = 2e-4
    """Peak learning rate of the head between encoder and indexer; `learning_rate` is the decoder's."""
    writing_epochs: int = 12
    """Epochs after the joint phase in which codes are frozen and the decoder alone learns to write them, each at a
    third of the cost. The paper has 0, and a joint phase that is many times longer."""

    # Other defaults for settings of the groups.

    epochs: int = 6
    """Epochs of the joint phase, which trains indexer and decoder. 0 keeps the initial codes."""
    learning_rate: float = 4e-3
    """Peak learning rate of the decoder."""
    batch_size: int = 1024
    """Pairs of a query and its document per step, each document once: the others are its negatives."""
    noise: float = 0.2
    """Norm of the Gaussian noise added to each query's unit vector when the decoder learns from it; the indexer reads
    queries with half of it."""
    decoder_width: int = 128
    """Width of the decoder."""
    beam: int = 100
    """Beam size; widened automatically when k hits need more codes."""
    decoding: Literal["beam", "exact", "free"] = "beam"  # type: ignore[assignment]
    """`beam` writes existing codes only. `free` is the paper's: any code may be written, and unknown ones are dropped.
    `exact` finds the best codes of all."""

    def check(self) -> None:
        check_range(self, batch_size=2, width=2, length=1, margin=0, criteria_weight=0, beta=0)
        check_range(self, neighbours=0, indexer_learning_rate=0, head_learning_rate=0, writing_epochs=0)
        check_positive(self, "temperature")
        if self.start == "tied" and self.decoding == "free":
            raise BadSetting("start=tied with decoding=free: codes that no document has begin nowhere", "Use beam.")
        if self.neighbours > self.length:
            raise BadSetting(
                f"setting 'neighbours' is {self.neighbours}",
                f"A code has {self.length} tokens: use 0 to {self.length}.",
            )
        known = (*CRITERIA, AS_PRINTED)
        unknown = [name for name in self.criteria if name not in known]
        if unknown:
            raise BadSetting(f"setting 'criteria' has {unknown[0]!r}", f"Use some of {', '.join(known)}.")
        if {"density", AS_PRINTED} <= set(self.criteria):
            raise BadSetting(f"setting 'criteria' has both density and {AS_PRINTED}", "Use one of them.")
