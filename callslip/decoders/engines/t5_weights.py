"""Extracts the weights of transformers' T5 or mT5 for a search engine."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from callslip.decoders.engines.engine import (
    Activation,
    Affine,
    CrossAttentionWeights,
    DecoderWeights,
    EncoderWeights,
    FeedForwardWeights,
    Norm,
    SelfAttentionWeights,
)
from callslip.errors import Unsupported

ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh"}


def encoder_weights(t5: Any) -> EncoderWeights:
    first = t5.encoder.block[0].layer[0].SelfAttention

    @cache
    def bias(length: int) -> Tensor:
        with torch.no_grad():
            return first.compute_bias(length, length)

    layers = [
        (_self_attention(block.layer[0]), _feed_forward(block.layer[-1], t5.config)) for block in t5.encoder.block
    ]
    return EncoderWeights(layers, _norm(t5.encoder.final_layer_norm), t5.config.num_heads, bias)


def decoder_weights(t5: Any) -> DecoderWeights:
    first = t5.decoder.block[0].layer[0].SelfAttention

    @cache
    def bias(length: int) -> Tensor:
        with torch.no_grad():
            return first.compute_bias(1, length, past_seen_tokens=length - 1)[0, :, 0].t().contiguous()

    layers = [
        (_self_attention(own), _cross_attention(cross), _feed_forward(feed, t5.config))
        for own, cross, feed in (block.layer for block in t5.decoder.block)
    ]
    return DecoderWeights(layers, _norm(t5.decoder.final_layer_norm), t5.config.num_heads, bias)


def _self_attention(layer: Any) -> SelfAttentionWeights:
    inside = layer.SelfAttention
    qkv = Affine.joined(inside.q, inside.k, inside.v)
    return SelfAttentionWeights(_norm(layer.layer_norm), qkv, Affine.joined(inside.o))


def _cross_attention(layer: Any) -> CrossAttentionWeights:
    inside = layer.EncDecAttention
    return CrossAttentionWeights(
        _norm(layer.layer_norm), Affine.joined(inside.q), Affine.joined(inside.k, inside.v), Affine.joined(inside.o)
    )


def _feed_forward(layer: Any, config: Any) -> FeedForwardWeights:
    dense = layer.DenseReluDense
    if config.dense_act_fn not in ACTIVATIONS:
        raise Unsupported(f"T5's activation {config.dense_act_fn} is not supported")
    up = Affine.joined(dense.wi_0, dense.wi_1) if config.is_gated_act else Affine.joined(dense.wi)
    activation = ACTIVATIONS[config.dense_act_fn]
    return FeedForwardWeights(_norm(layer.layer_norm), up, Affine.joined(dense.wo), activation, config.is_gated_act)


def _norm(module: Any) -> Norm:
    return Norm("rms", module.weight.detach(), None, module.variance_epsilon)
