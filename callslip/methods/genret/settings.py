"""GenRet's settings and presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from callslip.index.settings import GenerativeSettings, T5Settings, TiedStartSettings
from callslip.settings import check_range


@dataclass(frozen=True)
class GenRetSettings(GenerativeSettings, T5Settings, TiedStartSettings):
    """GenRet's own: the codes, the phases of a level, and the parts that can be left out."""

    codes: Literal["learned", "random"] = "learned"
    """`learned` codes, or `random` ones as a control, which have the final phase only."""
    width: int = 32
    """Tokens per level: rows of a codebook (K)."""
    length: int | None = None
    """Number of levels; none chooses it so that about `leaf` documents share a code."""
    leaf: int = 5
    """Target number of documents per code when `length` is none."""
    collisions: Literal["bucket", "level"] = "bucket"
    """Documents of the same code: ranked in their `bucket`, or distinguished by one more `level`, the place in it."""
    warmup_epochs: int = 1
    """Warm-up epochs of each level, before its codebook is made."""
    level_epochs: int = 3
    """Epochs of each level with its codebook."""
    level_learning_rate: float = 1e-3
    """Learning rate of the level phases, which is constant; `learning_rate` is that of the final phase."""
    level_steps: int = 200
    """Minimum number of steps of each level phase: a small corpus is seen more often in an epoch."""
    warmup_retrieval: bool = True
    """Whether the warm-up uses queries, too; the paper's does not."""
    reconstruction_weight: float = 1.0
    """Weight of the reconstruction loss; 0 leaves it out."""
    commitment_weight: float = 1.0
    """Weight of the commitment loss; 0 leaves it out."""
    retrieval_weight: float = 1.0
    """Weight of the retrieval loss; 0 leaves it out."""
    initialise: Literal["clusters", "random"] = "clusters"
    """Initial codebook of a level: centroids of the documents' states, or `random` rows."""
    reassign: bool = True
    """Whether Sinkhorn balances the tokens of each batch while a level is trained."""
    softmax: Literal["scores", "reassigned"] = "scores"
    """Input of the commitment loss's softmax, with `reassign`: the documents' own `scores` or, as in the paper, the
    `reassigned` scores, which are shares between 0 and 1."""
    stop_collapsed: bool = True
    """Whether training stops with an error when a level collapses."""

    # Other defaults for settings of the groups.

    similarity_weight: float = 200.0
    """Weight of the similarity, in units of log-probability, under `ranking=sum`."""

    def check(self) -> None:
        check_range(self, width=2, leaf=1, warmup_epochs=0, level_epochs=1, level_steps=0, level_learning_rate=0)
        check_range(self, length=1)
        check_range(self, reconstruction_weight=0, commitment_weight=0, retrieval_weight=0)


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"epochs": 4, "level_epochs": 2, "decoder_width": 128},
    "random": {"codes": "random"},
    "no-reconstruction": {"reconstruction_weight": 0.0, "stop_collapsed": False},
    "no-sinkhorn": {"reassign": False, "stop_collapsed": False},
    "no-clusters": {"initialise": "random", "stop_collapsed": False},
}
"""A quick preset, random codes as a control, and presets that leave one part of the paper out."""
