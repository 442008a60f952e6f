"""A decoder-only language model as a code writer: it reads the query's text and goes on with the query's code.

Tokens of codes are new tokens at the end of the model's vocabulary, as in `t5.py`, and END is its end of sequence. Any
model that transformers opens as a causal language model will do (Qwen3, Llama, GPT-2, …), by its folder. Search keeps
the keys and values of what has been read and written, and computes the outputs of the current level alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.t5 import WRITER, Tokens, quiet
from callslip.errors import BadInput, BadSetting, CallslipError, IndexCorrupt


def is_causal(folder: str | Path) -> bool:
    """Whether a folder holds a decoder-only language model; reads only its config.json."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        return False
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        names = config.get("architectures") or []
        written = any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names)
        return written and not config.get("is_encoder_decoder")
    except (ValueError, AttributeError, OSError):
        return False


@dataclass
class Written:
    """What a search keeps: the model's cache of B x beams texts, their masks, and the number of tokens written."""

    cache: Any
    mask: Tensor
    """[B x beams, read and written]; padding is on the left."""
    beams: int
    written: int

    def fork(self) -> Written:
        """An independent copy."""
        return replace(self, cache=copy.deepcopy(self.cache), mask=self.mask.clone())


class CausalCodeWriter(nn.Module):
    """Writes codes of `widths` (tokens per level) for queries given as `Tokens`."""

    def __init__(self, model: Any, widths: Sequence[int], *, with_end: bool = False, tokenizer: Any = None) -> None:
        """`model` is a causal language model of transformers whose last sum(widths) tokens are those of the codes."""
        super().__init__()
        self.model, self.tokenizer, self.with_end = model, tokenizer, with_end
        self.widths = tuple(int(width) for width in widths)
        if not self.widths or min(self.widths) < 1:
            raise BadSetting(f"invalid widths {list(widths)}", "Give the number of tokens of each level, at least one.")
        size = model.get_input_embeddings().num_embeddings
        first = size - sum(self.widths)
        if first < 1:
            raise BadSetting(f"{sum(self.widths)} code tokens do not fit a vocabulary of {size}")
        ends = model.config.eos_token_id
        self.eos = int(ends[0] if isinstance(ends, list) else ends if ends is not None else 0)
        for level, width in enumerate(self.widths):
            ids = [*range(first, first + width), *([self.eos] if with_end else [])]
            self.register_buffer(f"ids_{level}", torch.tensor(ids), persistent=False)
            first += width

    @classmethod
    def from_pretrained(cls, folder: str | Path, widths: Sequence[int], **options: Any) -> CausalCodeWriter:
        """Load a checkpoint, and extend its vocabulary with the tokens of the codes."""
        model, tokenizer = _load(Path(folder))
        size = max(model.get_input_embeddings().num_embeddings, len(tokenizer))
        with quiet():
            model.resize_token_embeddings(size + sum(widths), mean_resizing=False)
        return cls(model, widths, tokenizer=tokenizer, **options)

    @property
    def length(self) -> int:
        return len(self.widths)

    def tokenize(self, texts: Sequence[str], longest: int = 512) -> list[list[int]]:
        """Ids of each text, truncated to `longest`; a text without any is the end of sequence."""
        if not texts:
            return []
        ids = self.tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        return [row or [self.eos] for row in ids]

    def batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        return Tokens.padded(rows, self.eos)

    def token_index(self, tokens: Tensor, level: int) -> Tensor:
        """Indices of tokens among the outputs of a level: END (-1) is the last output."""
        return torch.where(tokens < 0, self.widths[level], tokens) if self.with_end else tokens

    def ids_of(self, tokens: Tensor, level: int) -> Tensor:
        """The model's token ids of tokens of a level."""
        return self.get_buffer(f"ids_{level}")[self.token_index(tokens, level)]

    def forward(self, queries: Tokens, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: logits of every level, each [B, outputs of the level], given the true tokens before it."""
        states = self.hidden(queries, codes)
        return [self._logits(states[:, level], level) for level in range(self.length)]

    def hidden(self, queries: Tokens, codes: Tensor) -> Tensor:
        """States [B, L, model] from which each level's token is predicted, under teacher forcing; those of the first
        n + 1 levels if codes have only n."""
        ids, mask = left_padded(queries)
        before = [self.ids_of(codes[:, level], level) for level in range(min(codes.shape[1], self.length - 1))]
        ids = torch.cat([ids, *(one[:, None] for one in before)], dim=1)
        mask = torch.cat([mask, mask.new_ones(len(mask), len(before))], dim=1)
        states = self._body(ids, mask, use_cache=False).last_hidden_state
        return states[:, -1 - len(before) :]

    def _body(self, ids: Tensor, mask: Tensor, **more: Any) -> Any:
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.model.base_model(input_ids=ids, attention_mask=mask, position_ids=positions, **more)

    def _logits(self, states: Tensor, level: int) -> Tensor:
        return functional.linear(states, self.model.get_output_embeddings().weight[self.get_buffer(f"ids_{level}")])

    # The two operations of search.

    def start(self, queries: Tokens) -> tuple[Written, Tensor]:
        """Read the queries. Returns the state and the log-probabilities of the first level, [B, 1, outputs]."""
        ids, mask = left_padded(queries)
        read = self._body(ids, mask, use_cache=True)
        scores = functional.log_softmax(self._logits(read.last_hidden_state[:, -1:], 0), dim=-1)
        return Written(read.past_key_values, mask, 1, 0), scores

    def advance(self, state: Written, parents: Tensor, tokens: Tensor) -> Tensor:
        """Append one token to each beam and return the next level's log-probabilities, [B, beams, outputs]."""
        size, beams = parents.shape
        rows = (parents + state.beams * torch.arange(size, device=parents.device)[:, None]).reshape(-1)
        state.cache.reorder_cache(rows)  # a row may be continued by several beams
        state.mask = torch.cat([state.mask[rows], state.mask.new_ones(len(rows), 1)], dim=1)
        ids = self.ids_of(tokens, state.written).reshape(-1, 1)
        read = self._body(ids, state.mask, past_key_values=state.cache, use_cache=True)
        state.cache, state.beams, state.written = read.past_key_values, beams, state.written + 1
        states = read.last_hidden_state[:, -1].reshape(size, beams, -1)
        return functional.log_softmax(self._logits(states, state.written), dim=-1)

    # Files.

    def save(self, folder: Path) -> None:
        """Save the checkpoint in transformers' layout, and the shape of the codes."""
        with quiet():
            self.model.save_pretrained(folder)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
        shape = {"widths": self.widths, "with_end": self.with_end}
        (folder / WRITER).write_text(json.dumps(shape) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> CausalCodeWriter:
        """Load a folder written by `save`."""
        try:
            shape = json.loads((folder / WRITER).read_text(encoding="utf-8"))
            model, tokenizer = _load(folder)
            return cls(model, shape.pop("widths"), tokenizer=tokenizer, **shape).eval()
        except (OSError, ValueError, KeyError, CallslipError) as error:
            raise IndexCorrupt(folder, f"the decoder-only writer cannot be read ({error})") from None


def left_padded(queries: Tokens) -> tuple[Tensor, Tensor]:
    """Ids and mask with the padding on the left, so that every text ends where its code begins."""
    length = queries.ids.shape[1]
    shift = length - queries.mask.sum(dim=1, keepdim=True)
    place = (torch.arange(length, device=queries.ids.device)[None] - shift) % length
    return queries.ids.gather(1, place), queries.mask.gather(1, place)


def _load(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise BadInput(folder, "has no tokenizer.json")
    loaded: Any
    try:
        with quiet():
            loaded = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=torch.float32,
                use_safetensors=True,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
            )
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and safetensors raise many kinds
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(folder, f"transformers cannot load it ({first})") from None
    model, report = loaded
    if report["missing_keys"]:
        raise BadInput(folder, f"lacks {len(report['missing_keys'])} of the model's weights")
    return model.eval(), tokenizer
