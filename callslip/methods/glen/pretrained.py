"""GLEN's model on a pretrained reader: T5, as in the paper, or a fine-tuned encoder under the small decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from callslip.decoders.scores import ChildScores
from callslip.decoders.t5 import T5CodeWriter, Tokens, load_tokenizer, tokenized
from callslip.decoders.tuned import TunedWriter
from callslip.methods.glen.model import LexicalWriter, WordWriter

BLOCK = 64
"""Texts per forward pass outside of training."""


class LexicalT5(WordWriter, T5CodeWriter):  # type: ignore[misc]
    """The paper's model: T5 writes words of its own vocabulary, with its own output embeddings, for queries and for
    documents alike. The decoder's last hidden state is its next input (Eq. 2)."""

    shape = (*T5CodeWriter.shape, "feedback")
    block = BLOCK

    def __init__(
        self, t5: Any, widths: Sequence[int], *, feedback: Literal["hidden", "token"] = "hidden", **more: Any
    ) -> None:
        """The first of `vocabulary` is word 0 of a code; see `T5CodeWriter`."""
        super().__init__(t5, widths, **more | {"codes": "words"})
        self.feedback = feedback
        assert self.vocabulary is not None
        first, count = self.vocabulary[0], self.widths[0]
        self._run = slice(first, first + count) if self.vocabulary == [*range(first, first + count)] else None

    @property
    def embeddings(self) -> Tensor:  # type: ignore[override]
        """T5's output embeddings of the words, which a T5 of the first version ties to those of the input."""
        table: Tensor = self.t5.lm_head.weight
        return table[self.get_buffer("ids_0")] if self._run is None else table[self._run]

    def states(
        self, texts: Tokens, tokens: Tensor | None = None, *, documents: bool = False, among: Tensor | None = None
    ) -> Tensor:
        """The decoder's hidden states, [B, L, D], which are fed back as they are, and scaled for the output embeddings
        as T5 scales them. Documents are read as queries are."""
        if self.feedback == "token" and tokens is not None:
            return self.hidden(texts, tokens)
        self._engine = None  # the weights may be about to change
        read = self.t5.encoder(input_ids=texts.ids, attention_mask=texts.mask).last_hidden_state
        # transformers keeps no past while it checkpoints activations: then every level decodes its whole prefix.
        whole = self.training and self.t5.is_gradient_checkpointing
        fed, past, found = self._begin(len(texts.ids))[:, None], None, []
        for level in range(self.length):
            written = self.t5.decoder(
                inputs_embeds=fed,
                encoder_hidden_states=read,
                encoder_attention_mask=texts.mask,
                past_key_values=past,
                use_cache=not whole,
            )
            state, past = written.last_hidden_state[:, -1], written.past_key_values
            found.append(state * self.scale)
            if self.feedback == "token" and level + 1 < self.length:
                state = self.embed(self.likeliest(found[-1], None if among is None else among[:, level]), level)
            fed = torch.cat([fed, state[:, None]], dim=1) if whole else state[:, None]
        return torch.stack(found, dim=1)

    def start_fed(self, queries: Tokens) -> tuple[Any, ChildScores]:
        return T5CodeWriter.start(self, queries)  # type: ignore[return-value]

    def advance_fed(self, state: Any, parents: Tensor, tokens: Tensor) -> Any:
        return T5CodeWriter.advance(self, state, parents, tokens)


class LexicalTuned(WordWriter, TunedWriter):  # type: ignore[misc]
    """A fine-tuned encoder whose vector the small decoder reads."""

    block = BLOCK
    writer: LexicalWriter  # type: ignore[assignment]

    @property
    def feedback(self) -> Literal["hidden", "token"]:  # type: ignore[override]
        return self.writer.feedback

    @property
    def embeddings(self) -> Tensor:  # type: ignore[override]
        return self.writer.embeddings

    def states(
        self, texts: Tokens, tokens: Tensor | None = None, *, documents: bool = False, among: Tensor | None = None
    ) -> Tensor:
        """The small decoder's states, [B, L, D]."""
        vectors: Any = self.memory(texts)
        return self.writer.states(vectors, tokens, documents=documents, among=among)

    def start_fed(self, queries: Tokens) -> tuple[Any, ChildScores]:
        return self.writer.start(self.memory(queries))

    def advance_fed(self, state: Any, parents: Tensor, tokens: Tensor) -> Any:
        return self.writer.advance(state, parents, tokens)


class T5Pieces:
    """The word pieces of a T5: its tokenisation, and its vocabulary without special tokens."""

    def __init__(self, checkpoint: str) -> None:
        self._tokenizer = load_tokenizer(checkpoint)
        self._special = frozenset(self._tokenizer.all_special_ids)

    def __call__(self, text: str) -> list[str]:
        return self.batch([text])[0]

    def batch(self, texts: Sequence[str]) -> list[list[str]]:
        """Pieces of many texts, without unknown ones."""
        return [self._words(ids) for ids in tokenized(self._tokenizer, texts, add_special_tokens=False)]

    def all(self) -> list[str]:
        """Every word, in the order of T5's ids."""
        return self._words(range(len(self._tokenizer)))

    def ids(self, words: Sequence[str]) -> list[int]:
        """T5's ids of words; a placeholder has that of the unknown word."""
        return self._tokenizer.convert_tokens_to_ids(list(words))

    def _words(self, ids: Iterable[int]) -> list[str]:
        return self._tokenizer.convert_ids_to_tokens([number for number in ids if number not in self._special])
