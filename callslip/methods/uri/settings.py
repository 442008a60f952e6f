"""URI's settings and presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from callslip.errors import BadSetting
from callslip.index.settings import GenerativeSettings, HistoryQuerySettings, Ranking, SavedCodesSettings, T5Settings
from callslip.settings import check_positive, check_range, check_share


@dataclass(frozen=True)
class URISettings(GenerativeSettings, T5Settings, HistoryQuerySettings, SavedCodesSettings):
    """URI's own: the codes, the training of a level, the ranker, and the parts that can be left out."""

    codes: Literal["learned", "em", "random"] = "learned"
    """`learned` codes; codes of the explicit `em` algorithm, from the train queries and their items alone; or `random`
    codes as a control. The latter two skip the training of levels: only the final phase and the ranker remain."""
    width: int = 32
    """Tokens per level (K)."""
    length: int | None = None
    """Number of levels; none chooses it so that about `leaf` documents share a code."""
    leaf: int = 12
    """Target number of documents per code when `length` is none; the paper advises 10 to 100."""
    level_epochs: int = 3
    """Epochs of each level."""
    level_learning_rate: float = 1e-3
    """Peak learning rate of a level; `learning_rate` is that of the final phase."""
    level_steps: int = 100
    """Minimum number of steps of each level: a small corpus is seen more often in an epoch."""
    commitment_weight: float = 1.0
    """Weight of the entropy of each item's distribution; 0 leaves it out."""
    balance_weight: float = 3.0
    """Weight of the balance of tokens; 0 leaves it out."""
    memory_weight: float = 1.0
    """Weight of the memory loss, which keeps the tokens of earlier levels; 0 leaves it out."""
    adaptive: bool = True
    """Whether overused and underused tokens weigh more in the balance."""
    random_items: bool = True
    """Whether commitment and balance also use random items, as many as the pairs of a batch."""
    evenness: Literal["prefix", "level"] = "prefix"
    """Scope of the balance: the items of each `prefix`, or of the whole `level`, in which case a level may repeat the
    previous one."""
    slack: float = 1.0
    """Maximum number of items of a token, as a multiple of its even share."""
    warmup_epochs: int = 2
    """With histories: epochs that train the ranker alone before the first level, so that item vectors are useful."""
    head_start: float = 0.2
    """Share of a level's steps in which queries learn where their items are, before items follow their queries."""
    begin: Literal["auto", "clusters", "parted", "chance"] = "auto"
    """Initialisation of a level: during the head start items learn which of K even `clusters` of their prefix they
    are in; or output weights start as scores that separate (`parted`) the items of a prefix; or at random
    (`chance`). auto is clusters for logs, whose item vectors the warm-up has trained, and parted for texts."""
    renaming: Literal["none", "uniform", "by-prefix"] = "none"
    """Random renaming of the last level's tokens, as a control: the same everywhere (`uniform`), or per prefix."""
    ranker_encoder: Literal["shared", "own"] = "shared"
    """With histories: the ranker shares the encoder of histories with the decoder and is trained with it (`shared`), or
    has its `own` and is trained after the decoder, as in the paper."""
    ranker_epochs: int = 5
    """With texts, or with an own encoder: epochs of the ranker; 0 keeps the encoder's own inner product."""
    ranker_learning_rate: float = 1e-3
    """With texts, or with an own encoder: peak learning rate of the ranker."""
    ranker_softmax: Literal["sampled", "shared", "full"] = "sampled"
    """Negatives of the ranker: `sampled` (`random_negatives` and `hard_negatives` per pair), `shared`
    (`ranker_negatives` random items per batch), or `full` (all items)."""
    random_negatives: int = 9
    """Number of random negatives per pair, with `ranker_softmax=sampled`."""
    hard_negatives: int = 1
    """Number of negatives per pair from the leaves next to the right item's own; 0 leaves them out."""
    temperature: float = 0.05
    """With texts: temperature of the ranker's softmax."""

    # Other defaults for settings of the groups.

    decoder_width: int = 96
    """Width of the decoder."""
    learning_rate: float = 1e-3
    """Peak learning rate of the final phase."""
    beam: int = 20
    """Beam size; widened automatically when k hits need more codes."""
    ranking: Ranking = "union"
    """Order of hits: `union` ranks all documents of the beam's buckets by the ranker alone; `bucket` keeps the model's
    order of codes and ranks inside each bucket; `sum` adds the code's log-probability and `similarity_weight` times the
    ranker's inner product."""

    def check(self) -> None:
        check_range(self, width=2, length=1, leaf=1, warmup_epochs=0, level_epochs=1, level_steps=0)
        check_range(self, level_learning_rate=0, commitment_weight=0, balance_weight=0, memory_weight=0, slack=1)
        check_range(self, ranker_epochs=0, ranker_learning_rate=0, random_negatives=0, hard_negatives=0)
        check_share(self, "head_start")
        check_positive(self, "temperature")
        if self.ranker_softmax == "sampled" and not self.random_negatives + self.hard_negatives:
            raise BadSetting("the ranker has no negatives", "Use random_negatives or hard_negatives.")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"epochs": 4, "level_epochs": 1, "ranker_epochs": 2},
    "random": {"codes": "random"},
    "em": {"codes": "em"},
    "no-adaptive": {"adaptive": False},
    "no-hard-negatives": {"hard_negatives": 0, "random_negatives": 10},
}
"""A quick preset, random codes as a control, codes of the explicit EM, and presets that leave one part of the paper
out."""
