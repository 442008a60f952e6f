"""A BERT of a few thousand random weights with a tokenizer of whole words, saved as Hugging Face saves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save_small_bert(folder: Path, words: Sequence[str], **shape: Any) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    small = {
        "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 64,
    } | shape  # fmt: skip
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(vocabulary), **small), add_pooling_layer=False).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
