"""GLEN's settings and presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from callslip.errors import BadSetting
from callslip.index.settings import GenerativeSettings, Ranking, T5Settings
from callslip.settings import check_positive, check_range


@dataclass(frozen=True)
class GLENSettings(GenerativeSettings, T5Settings):
    """GLEN's own: the words of a code, the two phases, the losses of the second, and its negatives."""

    length: int = 16
    """Number of words in a code. The paper's 3 suits long trainings; a short training needs more."""
    vocabulary: int | None = None
    """Number of word pieces that may be written, the most frequent ones with a letter; none is all of the corpus or,
    with `seq2seq`, all of T5's vocabulary."""
    feedback: Literal["hidden", "token"] = "hidden"
    """Decoder input: its last `hidden` state, or the `token` that it wrote, which rules out exact search."""
    start: tuple[Literal["residual", "pursuit", "strengths"], ...] = ("residual", "pursuit", "strengths")
    """Parts of the small decoder that make up for a short training; the paper has none, and T5 uses none. `residual`
    adds the text's vector to the decoder's states; `pursuit` takes the words written so far out of a document's state,
    as matching pursuit does; `strengths` gives each level of a query a trained weight, which starts as the average
    weight of the documents' words there."""
    keyword_epochs: int = 1
    """Epochs of the keyword phase; 0 skips it."""
    keyword_learning_rate: float = 2e-6
    """Peak learning rate of the keyword phase."""
    epoch_pairs: int | None = 4000
    """Number of training texts drawn for each epoch, in both phases; none is all of them."""
    pairwise_weight: float = 1.0
    """Weight of the pairwise ranking loss."""
    ranking_temperature: float = 10.0
    """Temperature of the pairwise ranking loss. Relevances grow with `length`; if they are far greater than 1, a
    query learns from its worst mistake only."""
    pointwise_weight: float = 0.001
    """Weight of the pointwise retrieval loss."""
    annealing: bool = True
    """Whether the temperature of Eq. 6 falls from 1 to 1e-5 over the epochs; otherwise it is 1e-5 from the start."""
    support: int | None = 8
    """Number of words per level that a document chooses from in refinement and that the softmax of Eq. 6 runs over: the
    likeliest when the epoch began; none is all words."""
    negatives: int = 1
    """Number of hard negatives per example and step; a batch shares them. With 0, the only negatives are the other
    documents of the batch."""
    negatives_by: Literal["prefix", "bm25", "random"] = "prefix"
    """Source of hard negatives: documents that share the longest `prefix` of the current code, the text's best 100 by
    `bm25` without its answers, or `random` documents."""

    # Other defaults for settings of the groups.

    epochs: int = 3
    """Epochs of the refinement phase; the temperature falls with each."""
    learning_rate: float = 5e-5
    """Peak learning rate of the refinement phase."""
    batch_size: int = 128
    """Training examples per step."""
    noise: float = 0.1
    """Norm of the Gaussian noise added to each unit vector in training; documents in refinement have none."""
    decoder_width: int = 128
    """Width of the decoder."""
    decoder_layers: int = 1
    """Number of decoder layers."""
    beam: int = 100
    """Beam size, with `decoding=beam`."""
    decoding: Literal["beam", "exact"] = "exact"
    """`exact` scores every code by one table: nothing is pruned, and a query takes time linear in the number of codes.
    `beam` searches the trie of codes, for corpora where that is too slow (millions of documents)."""
    ranking: Ranking = "bucket"
    """Order of hits: `bucket` keeps the model's order of codes and ranks the documents of one by their identifier
    weights (Eq. 9); `share` divides the probability of a code among its documents first; `sum` adds the code's
    log-probability and `similarity_weight` times the similarity of vectors; `union` is the similarity alone."""

    def check(self) -> None:
        check_range(self, length=1, vocabulary=1, keyword_epochs=0, keyword_learning_rate=0, epoch_pairs=1)
        check_range(self, pairwise_weight=0, pointwise_weight=0, support=1, negatives=0)
        check_positive(self, "ranking_temperature")
        if self.encoder_memory == "states":
            raise BadSetting("GLEN reads the vector of an encoder, not its states", "Leave encoder_memory out.")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"length": 8, "vocabulary": 2048, "epoch_pairs": 1000},
    "no-keyword": {"keyword_epochs": 0},
    "no-annealing": {"annealing": False},
    "token-input": {"feedback": "token"},
    "no-pairwise": {"pairwise_weight": 0.0},
    "no-pointwise": {"pointwise_weight": 0.0},
    "random-negatives": {"negatives_by": "random"},
    "bm25-negatives": {"negatives_by": "bm25"},
    "no-negatives": {"negatives": 0},
    "no-refinement": {"epochs": 0},
}
"""Presets that leave one part of the paper out, as its Tables 5 and 6 and its Figure 2 do, and a quick one."""
