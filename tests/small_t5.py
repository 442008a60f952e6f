"""A T5 or mT5 of a few thousand random weights with a tokenizer of whole words, saved as Hugging Face saves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save_small_t5(folder: Path, words: Sequence[str], *, multilingual: bool = False, **shape: Any) -> Path:
    """An mT5 has gated feed-forward layers, and output embeddings of its own."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        MT5Config,
        MT5ForConditionalGeneration,
        PreTrainedTokenizerFast,
        T5Config,
        T5ForConditionalGeneration,
    )

    vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    small = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2} | shape
    small |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model, config = (MT5ForConditionalGeneration, MT5Config) if multilingual else (T5ForConditionalGeneration, T5Config)
    model(config(vocab_size=len(vocabulary), **small)).save_pretrained(folder)
    return folder
