"""T5 as a code writer: reads the query's text, writes a code. `t5-*`, `flan-t5-*` and `mt5-*`, by name or path.

Tokens of codes are new tokens in T5's vocabulary (`tokens`), rows of separate codebooks (`codebooks`), or existing
words of the vocabulary (`words`). Training uses the transformers module; for search, an engine runs the weights, and
the head computes only the outputs of the current level.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from callslip.decoders.engines.engine import Engine, EngineName, Searched, State, engine_for
from callslip.decoders.engines.t5_weights import decoder_weights, encoder_weights
from callslip.decoders.scores import ChildScores, SparseScores
from callslip.decoders.writer import States
from callslip.encoders.packaged import folder_of
from callslip.errors import BadInput, BadSetting, CallslipError, IndexCorrupt, UnknownName, Unsupported

KINDS = ("t5", "mt5")
WRITER, CODEBOOKS = "writer.json", "codebooks.safetensors"


@dataclass
class Tokens:
    """A batch of tokenised texts, right-padded: ids and attention mask, both [B, S]."""

    ids: Tensor
    mask: Tensor

    @classmethod
    def padded(cls, rows: Sequence[Sequence[int]], filler: int) -> Tokens:
        longest = max(map(len, rows), default=1)
        ids = [[*row, *[filler] * (longest - len(row))] for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        both = (torch.tensor(values, dtype=torch.int64).view(len(rows), longest) for values in (ids, mask))
        return cls(*both)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, some: slice) -> Tokens:
        """A slice of the texts, trimmed to their longest."""
        ids, mask = self.ids[some], self.mask[some]
        longest = max(1, int(mask.sum(dim=1).max())) if len(mask) else 1
        return Tokens(ids[:, :longest], mask[:, :longest])

    def to(self, device: torch.device) -> Tokens:
        return Tokens(self.ids.to(device), self.mask.to(device))


class T5CodeWriter(Searched):
    """Writes codes of `widths` (tokens per level) for queries given as `Tokens`."""

    shape: tuple[str, ...] = ("widths", "codes", "with_end", "normalise")
    """Attributes that are saved, and given to the constructor when a folder is loaded."""

    def __init__(
        self,
        t5: Any,
        widths: Sequence[int],
        *,
        codes: Literal["tokens", "codebooks", "words"] = "tokens",
        with_end: bool = False,
        normalise: Literal["level", "vocabulary", "children"] = "level",
        vocabulary: Sequence[int] | None = None,
        tokenizer: Any = None,
        engine: EngineName = "auto",
    ) -> None:
        """`t5` is a transformers model. With `tokens`, its last sum(widths) tokens are those of the codes. `normalise`
        chooses the softmax of a level: over its outputs; over T5's whole vocabulary, as in transformers' `generate`; or
        none, because the search renormalises over a node's children. With `words`, token i of a code is word
        `vocabulary[i]`."""
        super().__init__()
        if t5.config.model_type not in KINDS:
            raise Unsupported(
                f"a {t5.config.model_type} checkpoint cannot write codes", f"Use a {' or '.join(KINDS)} model."
            )
        for name, given, choices in (
            ("codes", codes, ("tokens", "codebooks", "words")),
            ("normalise", normalise, ("level", "vocabulary", "children")),
            ("engine", engine, ("auto", "onnx", "torch")),
        ):
            if given not in choices:
                raise UnknownName(name, str(given), choices)
        if not len(widths) or min(widths) < 1:
            raise BadSetting(f"invalid widths {list(widths)}", "Give the number of tokens of each level, at least one.")
        if normalise == "vocabulary" and codes == "codebooks":
            raise BadSetting("codebooks are not part of T5's vocabulary", "Use normalise=level, or codes=tokens.")
        self.t5, self.tokenizer = t5, tokenizer
        self.widths = tuple(int(width) for width in widths)
        self.codes, self.with_end, self.normalise = codes, with_end, normalise
        self.scale = t5.config.d_model**-0.5 if getattr(t5.config, "scale_decoder_outputs", False) else 1.0
        self.begin = int(getattr(t5.config, "decoder_start_token_id", None) or t5.config.pad_token_id or 0)
        outputs = [width + with_end for width in self.widths]  # the last output of a level is END
        if codes == "codebooks":
            model = t5.config.d_model
            self.embeddings = nn.ModuleList(nn.Embedding(n, model) for n in outputs[:-1])
            self.heads = nn.ModuleList(nn.Linear(model, n, bias=False) for n in outputs)
            for table in (*self.embeddings, *self.heads):
                nn.init.normal_(cast(Tensor, table.weight), std=t5.config.initializer_factor * model**-0.5)
        else:
            for level, ids in enumerate(self._ids(vocabulary)):
                self.register_buffer(f"ids_{level}", ids, persistent=False)
        self.engine_name: EngineName = engine
        self._heads: dict[tuple[int, int], Tensor] = {}

    def _ids(self, vocabulary: Sequence[int] | None) -> list[Tensor]:
        """T5's token ids of each level's tokens; END is T5's end of sequence."""
        size = self.t5.get_input_embeddings().num_embeddings
        end = [self.t5.config.eos_token_id] if self.with_end else []
        if self.codes == "words":
            words = list(range(size)) if vocabulary is None else list(vocabulary)
            if not words or min(words) < 0 or max(words) >= size or max(self.widths) > len(words):
                raise BadSetting(f"word codes do not fit a vocabulary of {size} with {len(words)} words")
            self.vocabulary: list[int] | None = words
            return [torch.tensor(words[:width] + end) for width in self.widths]
        first = size - sum(self.widths)
        if first < 1:
            raise BadSetting(
                f"{sum(self.widths)} code tokens do not fit a vocabulary of {size}", "Use T5CodeWriter.from_pretrained."
            )
        ids = []
        for width in self.widths:
            ids.append(torch.tensor([*range(first, first + width), *end]))
            first += width
        return ids

    @classmethod
    def from_pretrained(cls, name: str | Path, widths: Sequence[int], **options: Any) -> Self:
        """Load a checkpoint by name or folder, and extend its vocabulary with the tokens of the codes."""
        t5, tokenizer = _load_checkpoint(str(name))
        if options.get("codes", "tokens") == "tokens":
            size = max(t5.config.vocab_size, len(tokenizer))
            t5.resize_token_embeddings(size + sum(widths), mean_resizing=False)
        return cls(t5, widths, tokenizer=tokenizer, **options)

    def tokenize(self, texts: Sequence[str], longest: int = 512) -> list[list[int]]:
        """Ids of each text, truncated to `longest`, end of sequence included."""
        if not texts:
            return []
        ids = tokenized(self.tokenizer, texts, truncation=True, max_length=longest)
        return [row or [self.t5.config.eos_token_id] for row in ids]

    def batch(self, rows: Sequence[Sequence[int]]) -> Tokens:
        return Tokens.padded(rows, int(self.t5.config.pad_token_id or 0))

    @property
    def length(self) -> int:
        return len(self.widths)

    def token_index(self, tokens: Tensor, level: int) -> Tensor:
        """Indices of tokens among the outputs of a level: END (-1) is the last output."""
        return torch.where(tokens < 0, self.widths[level], tokens) if self.with_end else tokens

    def embed(self, tokens: Tensor, level: int) -> Tensor:
        """Input embeddings of tokens of `level`, fed to the decoder in the next step."""
        index = self.token_index(tokens, level)
        if self.codes == "codebooks":
            return cast(Tensor, self.embeddings[level](index))
        return functional.embedding(self.get_buffer(f"ids_{level}")[index], self.t5.get_input_embeddings().weight)

    def head(self, level: int) -> Tensor:
        """The output weights of a level, [outputs, model]."""
        if self.codes == "codebooks":
            return cast(Tensor, self.heads[level].weight)
        ids = self.get_buffer(f"ids_{level}")
        table = self.t5.lm_head.weight
        contiguous = self.codes == "tokens" and not self.with_end
        return table[int(ids[0]) : int(ids[0]) + len(ids)] if contiguous else table[ids]

    def forward(self, queries: Tokens | States, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: logits of every level, each [B, outputs of the level], given the true tokens before it."""
        states = self.hidden(queries, codes)
        return [functional.linear(states[:, level], self.head(level)) for level in range(self.length)]

    def encode(self, queries: Tokens) -> States:
        """The states of T5's encoder, [B, S, model]; `forward` and `hidden` take them in place of the tokens."""
        read = self.t5.encoder(input_ids=queries.ids, attention_mask=queries.mask)
        return States(read.last_hidden_state, queries.mask)

    @property
    def decoding(self) -> nn.ModuleList:
        """The layers that write codes and nothing else: T5's decoder and the codebooks, without shared embeddings."""
        own = [self.embeddings, self.heads] if self.codes == "codebooks" else []
        return nn.ModuleList([self.t5.decoder.block, self.t5.decoder.final_layer_norm, *own])

    def hidden(self, queries: Tokens | States, codes: Tensor) -> Tensor:
        """Decoder states [B, L, model] under teacher forcing, scaled for the heads; those of the first n + 1 levels if
        codes have only n."""
        self._engine = None  # the weights are about to change
        before = [self._begin(len(codes))]
        before += [self.embed(codes[:, level], level) for level in range(min(codes.shape[1], self.length - 1))]
        read = queries if isinstance(queries, States) else self.encode(queries)
        written = self.t5.decoder(
            inputs_embeds=torch.stack(before, dim=1),
            encoder_hidden_states=read.values,
            encoder_attention_mask=read.mask,
            use_cache=False,
        )
        return cast(Tensor, written.last_hidden_state) * self.scale

    def _begin(self, count: int) -> Tensor:
        return self.t5.get_input_embeddings().weight[self.begin].expand(count, -1)

    # The two operations of search.

    def start(self, queries: Tokens) -> tuple[State, Tensor | ChildScores]:
        """Read the queries. Returns the state and the log-probabilities of the first level, [B, 1, outputs]."""
        state, hidden, _ = self.read(queries)
        return state, self._scores(hidden, 0)

    def advance(self, state: State, parents: Tensor, tokens: Tensor) -> Tensor | ChildScores:
        """Append one token to each beam and return the next level's log-probabilities, [B, beams, outputs].

        `parents` [B, beams] is the earlier beam that each new beam continues; `tokens` [B, beams] the token it appends.
        """
        hidden = self.step(state, parents, tokens)
        return self._scores(hidden, state.written - 1)

    def read(self, queries: Tokens) -> tuple[State, Tensor, States]:
        """The engine's state after reading the queries, the decoder's first hidden states, [B, 1, model], scaled for
        the heads, and the states of the encoder."""
        engine = self._ready()
        read = engine.encode(functional.embedding(queries.ids, self.t5.get_input_embeddings().weight), queries.mask)
        state = engine.read(read, queries.mask)
        hidden = engine.step(state, self._begin(len(queries.ids))[:, None], None)
        return state, hidden * self.scale, States(read, queries.mask)

    def step(self, state: State, parents: Tensor, tokens: Tensor) -> Tensor:
        """Append one token to each beam, and return the decoder's next hidden states, [B, beams, model], scaled."""
        return self._ready().step(state, self.embed(tokens, state.written - 1), parents) * self.scale

    def _scores(self, hidden: Tensor, level: int) -> Tensor | ChildScores:
        if self.normalise == "children":
            return SparseScores(hidden, self._kept_head(level))
        if self.normalise == "level":
            return functional.log_softmax(functional.linear(hidden, self._kept_head(level)), dim=-1)
        everything = functional.linear(hidden, self.t5.lm_head.weight)
        chosen = everything[..., self.get_buffer(f"ids_{level}")]
        return chosen - everything.logsumexp(dim=-1, keepdim=True)

    def _kept_head(self, level: int) -> Tensor:
        """The output weights of a level, gathered once and cached: those of 30,000 words are 60 MB."""
        key = (self.widths[level], 0 if self.codes == "words" else level)  # every level has the same words
        if key not in self._heads:
            self._heads[key] = self.head(level).detach()
        return self._heads[key]

    def _ready(self) -> Engine:
        if self._engine is None:
            self._heads.clear()
            self._engine = engine_for(decoder_weights(self.t5), encoder_weights(self.t5), self.engine_name)
        return self._engine

    # Files.

    def save(self, folder: Path) -> None:
        """Save the checkpoint in transformers' layout, the codebooks if any, and the shape of the codes."""
        from safetensors.torch import save_file

        with quiet():
            self.t5.save_pretrained(folder)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
        own = {k: v.contiguous().cpu() for k, v in self.state_dict().items() if not k.startswith("t5.")}
        if own:
            save_file(own, folder / CODEBOOKS)
        shape = {name: getattr(self, name) for name in self.shape}
        if self.codes == "words":
            shape["vocabulary"] = self.vocabulary
        (folder / WRITER).write_text(json.dumps(shape) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a folder written by `save`."""
        from safetensors.torch import load_file

        try:
            shape = json.loads((folder / WRITER).read_text(encoding="utf-8"))
            t5, tokenizer = _load_checkpoint(str(folder))
            writer = cls(t5, shape.pop("widths"), tokenizer=tokenizer, **shape)
            if (folder / CODEBOOKS).is_file():
                missing = writer.load_state_dict(load_file(folder / CODEBOOKS), strict=False).missing_keys
                if any(not name.startswith("t5.") for name in missing):
                    raise IndexCorrupt(folder / CODEBOOKS, f"{missing[0]} is missing")
        except (OSError, ValueError, KeyError) as error:
            raise IndexCorrupt(folder, f"the T5 writer cannot be read ({error})") from None
        return writer.eval()


def check_checkpoint(name: str) -> None:
    """Reject anything but a T5 before hours of other work; reads only the small files."""
    _checked(folder_of(name), _read_config)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a T5 checkpoint, without its weights."""
    name = folder_of(name)
    _checked(name, _read_config)
    return _checked(name, _read_tokenizer)


def tokenized(tokenizer: Any, texts: Sequence[str], **options: Any) -> list[list[int]]:
    """The ids of texts. A lone surrogate is not valid Unicode, and a tokenizer rejects it: it is replaced."""
    clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
    return tokenizer(clean, **options)["input_ids"] if clean else []


def _load_checkpoint(name: str) -> tuple[Any, Any]:
    name = folder_of(name)
    _checked(name, _read_config)
    return _checked(name, _read_all)


def _read_config(name: str) -> None:
    from transformers import AutoConfig

    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in ("tokenizer.json", "spiece.model")):
        # transformers would create a tokenizer with an empty vocabulary
        raise BadInput(folder, "has no tokenizer: neither tokenizer.json nor spiece.model")
    config = AutoConfig.from_pretrained(name)
    if config.model_type not in KINDS:
        raise Unsupported(
            f"{name} is a {config.model_type} checkpoint, which cannot write codes", "Use a T5, such as t5-small."
        )


def _read_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    with quiet():
        return AutoTokenizer.from_pretrained(name)


def _read_all(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM

    with quiet():
        t5, report = AutoModelForSeq2SeqLM.from_pretrained(
            name, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
        missing = sorted(report["missing_keys"])
        if missing:
            raise BadInput(name, f"lacks {len(missing)} of T5's weights, such as {missing[0]}")
        if t5.lm_head.weight is not t5.get_input_embeddings().weight:
            # transformers would tie a head of its own (flan-t5, mt5) as soon as the vocabulary is extended.
            t5.config.tie_word_embeddings = False
        return t5.eval(), _read_tokenizer(name)


def _checked(name: str, read: Callable[[str], Any]) -> Any:
    from safetensors import SafetensorError

    try:
        return read(name)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = "" if Path(name).exists() else "not a folder; from the hub: "
        raise CallslipError(
            f"the T5 checkpoint {name!r} cannot be loaded ({where}{reason})",
            "Give a T5 on the hub, or a folder with config.json, tokenizer, model.safetensors (pickles are not read).",
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars and load reports."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
