"""GLEN's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callslip.errors import BadSetting
from callslip.generative_settings import GenerativeSettings
from callslip.settings import check_range


@dataclass(frozen=True)
class GLENSettings(GenerativeSettings):
    """GLEN's own: words, the two phases, the losses of the second, negatives, and the order inside a bucket."""

    length: int = 16
    """Words of a code. The paper's 3 suits models that are trained for long; a short training wants more."""
    vocabulary: int | None = 4096
    """Word pieces that may be written: those with a letter that occur in most documents; none is all of the corpus."""
    embeddings: Literal["encoded", "table"] = "encoded"
    """Where the words' embeddings begin: each piece `encoded` as a text, which puts words where texts are; or its row
    in the encoder's own `table` of word pieces, to which a linear map then takes the texts."""
    train_words: bool = False
    """Whether the words' embeddings are trained, too. In a short training a few words then draw all documents."""
    feedback: Literal["hidden", "token"] = "hidden"
    """What the decoder is fed: its last hidden state, or the word it wrote; then search is by beam, never exact."""
    keyword_epochs: int = 1
    """Passes of the keyword phase; 0 leaves it out."""
    keyword_learning_rate: float = 2e-4
    """Peak learning rate of the keyword phase."""
    epochs: int = 4
    """Passes of the refinement phase; the temperature falls with each."""
    learning_rate: float = 5e-5
    """Peak learning rate of the refinement phase."""
    epoch_pairs: int | None = 4000
    """Training texts drawn for each pass, of both phases; none is all of them."""
    batch_size: int = 128
    """Examples per step."""
    decoder_width: int = 128
    """Width of the decoder."""
    decoder_layers: int = 1
    """Layers of the decoder."""
    pairwise_weight: float = 1.0
    """Weight of the pairwise ranking loss."""
    pointwise_weight: float = 0.5
    """Weight of the pointwise retrieval loss."""
    distance_weight: float = 0.5
    """Weight, inside the pointwise loss, of the distance of identifier weights."""
    annealing: bool = True
    """Whether the temperature of Eq. 6 falls from 1; otherwise it is 1e-5 from the start."""
    support: int | None = 8
    """Words that the softmax of Eq. 6 runs over: a document's likeliest when the epoch began; none is all."""
    negatives: int = 2
    """Hard negatives of each example at each step; those of the whole batch are shared."""
    negatives_by: Literal["prefix", "random"] = "prefix"
    """Where they come from: documents that share the longest prefix of the current code, or anywhere."""
    beam: int = 100
    """Codes kept while writing, with `decoding=beam`."""
    decoding: Literal["beam", "exact"] = "exact"
    """`exact` scores every code by one table; `beam` search prunes."""
    ranking: Literal["bucket", "sum", "union"] = "bucket"
    """Order of hits: `bucket` keeps the model's order of codes, with `collision` inside each; `sum` adds the code's
    log-probability and `similarity_weight` times the similarity of vectors; `union` is the similarity alone."""
    collision: Literal["weights", "similarity"] = "weights"
    """Order inside a bucket: by the identifier weights of query and document, or by similarity of vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, length=1, vocabulary=1, keyword_epochs=0, keyword_learning_rate=0, epoch_pairs=1)
        check_range(self, pairwise_weight=0, pointwise_weight=0, distance_weight=0, support=1, negatives=0)
        if self.seq2seq is not None:
            raise BadSetting("setting 'seq2seq': glen's decoder is fed its own states, which T5's is not", "Leave out.")
