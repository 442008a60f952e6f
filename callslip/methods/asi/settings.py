"""ASI's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from callslip.errors import BadSetting
from callslip.index.settings import GenerativeSettings
from callslip.methods.asi.indexers import IndexerName
from callslip.settings import check_range

CRITERIA = ("density", "bottleneck", "information")
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"epochs": 2, "writing_epochs": 4},
    "paper": {
        "width": 256, "beta": 0.01, "temperature": 1.0, "neighbours": 0, "spare_answers": False, "writing_epochs": 0,
        "beam": 10, "decoding": "free",
    },
    "random": {"codes": "random"},
    "pq": {"indexer": "pq"},
    "rq": {"indexer": "rq"},
    "no-density": {"criteria": ("bottleneck", "information")},
    "no-bottleneck": {"criteria": ("density", "information")},
    "no-information": {"criteria": ("density", "bottleneck")},
    "density-as-printed": {"density": "printed"},
}  # fmt: skip


@dataclass(frozen=True)
class ASISettings(GenerativeSettings):
    """ASI's own: the codes, the indexer, and the criteria of ASI++."""

    codes: Literal["learned", "random"] = "learned"
    """Learned codes, or random ones as a control, which the decoder alone is trained on: for `epochs` and
    `writing_epochs` together."""
    width: int = 32
    """Tokens per level (K). The paper's 256 is for millions of documents."""
    length: int = 4
    """Levels (L). More make buckets smaller, and codes harder to write."""
    indexer: IndexerName = "mlp"
    """What gives a vector its code: `mlp` (a network per level), `pq` (product) or `rq` (residual quantisation)."""
    margin: float = 3.0
    """How much nearer the code of a query must be to that of its document than to others; distances end at 2 L."""
    criteria_weight: float = 0.25
    """Weight λ of the three criteria of ASI++ after the first epoch; 0 is ASI, where `criteria`, `density` and the
    presets of theirs change nothing."""
    criteria_start: float = 0.01
    """Weight that they begin with; it grows evenly over the first epoch."""
    criteria: tuple[str, ...] = CRITERIA
    """Those that are used: density, bottleneck, information."""
    density_weight: float = 1.0
    """Of the density criterion beside the other two. More makes more codes, which are harder to write."""
    density: Literal["dense", "printed"] = "dense"
    """Which texts the density criterion moves most: those whose code many others are near to, or, as the paper prints
    it, those that are far from the others."""
    gamma: float = 0.05
    """How much of the bottleneck criterion spreads vectors."""
    temperature: float = 0.05
    """Of the bottleneck's softmax over the batch; the paper has none, which is 1."""
    beta: float = 0.00005
    """How much of a text the information criterion makes its vector forget. With the paper's 0.01, summed over the
    encoder's hundreds of dimensions, codes are learned from little but noise."""
    generation_weight: float = 1.0
    """Of the decoder's cross-entropy."""
    quantisation_weight: float = 1.0
    """Of the squared error of `pq` and `rq`."""
    indexer_hidden: int = 256
    """Width of each network of the `mlp` indexer."""
    indexer_dropout: float = 0.2
    """Dropout in them."""
    sinkhorn_epsilon: float = 0.003
    """How soft the probabilities of `pq` and `rq` are."""
    sinkhorn_iterations: int = 100
    """Iterations that share their tokens out over a batch."""
    neighbours: int = 1
    """Tokens that the documents of a batch have in common, as far as they can, where codes are learned: those that are
    near are told apart only if they meet. 0 draws batches at random, as the paper does, and the same one for all terms:
    there are fewer codes then, and the decoder learns them sooner."""
    neighbourhood: int = 256
    """Documents of a batch that are told apart from one another at a time, where neighbours are sought. The fewer they
    are, the nearer: that makes more codes, which are harder to write."""
    spare_answers: bool = True
    """Whether other documents of a batch that are judged to answer a query are no wrong answers to it."""
    code_noise: float = 0.1
    """As `noise`, for what the indexer reads; more makes codes coarser."""
    noise: float = 0.2
    """Length of the random vector added to each query's unit vector when the decoder learns from it."""
    indexer_learning_rate: float = 2e-3
    """Peak learning rate of the indexer."""
    head_learning_rate: float = 2e-4
    """Peak learning rate of what makes the encoder's vector the indexer's; `learning_rate` is the decoder's."""
    learning_rate: float = 4e-3
    """Peak learning rate of the decoder."""
    epochs: int = 6
    """Passes over the training texts in which codes are learned, and the decoder with them. 0 leaves codes as they
    begin, by clusters of a stretch of the vector for each level."""
    writing_epochs: int = 12
    """Passes after these in which codes stand still and the decoder alone learns to write them, each at a third of the
    cost. 0 is the paper's, whose one phase is many times as long."""
    decoder_width: int = 128
    """Width of the decoder."""
    beam: int = 100
    """Codes kept while writing; it grows by itself when k hits need more."""
    batch_size: int = 1024
    """Pairs of a query and its document per step, each document once: the others of a batch are its negatives. With
    `train_encoder`, as many as the memory holds."""
    decoding: Literal["beam", "exact", "free"] = "beam"  # type: ignore[assignment]
    """`beam` writes codes of the corpus only. `free` is the paper's: any code may be written, and what no document has
    is dropped. `exact` is the best codes of all."""

    def __post_init__(self) -> None:
        check_range(self, batch_size=2)
        super().__post_init__()
        check_range(self, width=2, length=1, margin=0, criteria_weight=0, criteria_start=0, gamma=0)
        check_range(self, beta=0, generation_weight=0, quantisation_weight=0, indexer_hidden=1, indexer_dropout=0)
        check_range(self, sinkhorn_iterations=0, neighbours=0, density_weight=0, code_noise=0, indexer_learning_rate=0)
        check_range(self, head_learning_rate=0, neighbourhood=2, writing_epochs=0)
        if self.neighbours > self.length:
            raise BadSetting(
                f"setting 'neighbours' is {self.neighbours}",
                f"A code has {self.length} tokens: use 0 to {self.length}.",
            )
        for name in ("temperature", "sinkhorn_epsilon"):
            if getattr(self, name) <= 0:
                raise BadSetting(f"setting {name!r} is {getattr(self, name)}", "Use more than 0.")
        unknown = [name for name in self.criteria if name not in CRITERIA]
        if unknown:
            raise BadSetting(f"setting 'criteria' has {unknown[0]!r}", f"Use some of {', '.join(CRITERIA)}.")
        if self.codes_from is not None:
            raise BadSetting("setting 'codes_from': ASI learns its codes", "Leave it out, or use it with dsi-semantic.")
        if self.seq2seq is not None:
            raise BadSetting("setting 'seq2seq': ASI has a decoder of its own, which is not T5", "Leave it out.")
