"""URI's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callslip.errors import BadSetting
from callslip.index.settings import Ranking
from callslip.methods.uri.ranker import RankedSettings
from callslip.settings import check_range


@dataclass(frozen=True)
class URISettings(RankedSettings):
    """URI's own: the codes, the training of a level, the ranker, and the parts that can be left out."""

    codes: Literal["learned", "random"] = "learned"
    """Learned codes, or random ones as a control, which have the final fit and the ranker only."""
    width: int = 32
    """Tokens per level (K)."""
    length: int | None = None
    """Levels; none is as many as leave about `leaf` documents to a code."""
    leaf: int = 12
    """Documents to aim at per code when `length` is not given; the paper advises 10 to 100."""
    level_epochs: int = 3
    """Passes over the training pairs for each level."""
    level_learning_rate: float = 1e-3
    """Peak learning rate of a level; `learning_rate` is that of the final fit."""
    level_steps: int = 100
    """Steps of each level, at least: a small corpus comes round more often in an epoch."""
    commitment_weight: float = 1.0
    """Of the entropy of each item's distribution; 0 leaves it out."""
    balance_weight: float = 3.0
    """Of the even use of tokens; 0 leaves it out."""
    memory_weight: float = 1.0
    """Of the tokens of earlier levels, which must not be forgotten; 0 leaves it out."""
    adaptive: bool = True
    """Whether tokens that are used too much or too little weigh more in the balance."""
    random_items: bool = True
    """Whether random items, as many as the pairs of a batch, join commitment and balance."""
    evenness: Literal["prefix", "level"] = "prefix"
    """Where tokens are used evenly: among the items of each prefix, or of the level, which may then repeat the last."""
    slack: float = 1.0
    """How many items a token may be given, as a multiple of its even share."""
    warmup_epochs: int = 2
    """With histories: passes that train the ranker alone, before the first level: by it items can be parted."""
    head_start: float = 0.2
    """Share of a level's steps in which queries learn where their items are, before items follow their queries."""
    begin: Literal["auto", "clusters", "parted", "chance"] = "auto"
    """How a level begins: in its head start items learn to write which of K even `clusters` of their prefix they are
    in, by their vectors; or with scores that part them by the decoder's states; or with chance. `auto` takes clusters
    of items of a log, whose vectors the warm-up has trained, and parts texts."""
    renaming: Literal["none", "uniform", "by-prefix"] = "none"
    """The last level's tokens, renamed at random when codes are made: alike everywhere, or differently by prefix."""
    decoder_width: int = 96
    """Width of the decoder."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW in the final fit."""
    beam: int = 20
    """Codes kept while writing; it grows by itself when k hits need more."""
    ranking: Ranking = "union"
    """Order of hits: `union` ranks all documents of the beam's buckets by the ranker alone; `bucket` keeps the model's
    order of codes and ranks inside each bucket; `sum` adds the code's log-probability and `similarity_weight` times the
    ranker's inner product."""
    seq2seq_codes: Literal["tokens", "codebooks"] = "codebooks"
    """With `seq2seq`: URI has codebooks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, width=2, leaf=1, warmup_epochs=0, level_epochs=1, level_steps=0, level_learning_rate=0)
        check_range(self, commitment_weight=0, balance_weight=0, memory_weight=0, head_start=0, slack=1)
        if self.length is not None:
            check_range(self, length=1)
        if self.head_start > 1:
            raise BadSetting(f"setting 'head_start' is {self.head_start}", "It is a share: use 0 to 1.")
        if self.seq2seq_codes != "codebooks":
            raise BadSetting(f"setting 'seq2seq_codes' is {self.seq2seq_codes!r}", "URI learns codebooks.")
