"""SmoothQuant (Xiao et al. 2023): moves outliers of the activations into the weights before quantisation.

A few channels of a transformer's states are many times larger than the rest, so a common int8 scale leaves few steps
for the others. Dividing each input channel of a linear layer by a number and multiplying its column of weights by the
same number changes nothing in exact arithmetic, and evens out the channels.
"""

from __future__ import annotations

from typing import Any

import torch

STRENGTH = 0.7
"""Share of a channel's range that moves to the weights; 0.5 and 0.85 were worse on two models."""

SENTENCES = (
    "What causes high blood pressure in older adults?",
    "The committee approved the budget on 3 March 2019, after two hours of debate.",
    "def read(path): return open(path).read()",
    "Cells lacking the gene failed to undergo apoptosis when exposed to radiation (n = 24, P < 0.001).",
    "cheap flights london to new york",
    "Stocks fell sharply on Monday as investors weighed rising interest rates against slowing growth.",
    "How do I run a command and capture what it prints?",
    "She closed the door, walked to the river and sat down; it had begun to rain.",
    "",
    "Returns a copy of the string with all the cased characters converted to uppercase.",
    "The museum, founded in 1887, is open daily except Mondays. Visitors may borrow an audio guide at the entrance, "
    "and photography without flash is permitted in most rooms.",
)
"""Calibration texts of several kinds, to find the large channels; vectors hardly depend on the choice."""


class SmoothedLinear(torch.nn.Module):
    """A linear layer whose input channels are divided by `scale` and whose weights are multiplied by it."""

    inverse: torch.Tensor

    def __init__(self, linear: torch.nn.Linear, scale: torch.Tensor) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("inverse", 1.0 / scale)
        with torch.no_grad():
            linear.weight.mul_(scale)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.linear(states * self.inverse)


def smooth(model: Any, tokenizer: Any) -> Any:
    """Smooth every linear layer that the model uses, in place."""
    for name, largest in input_ranges(model, tokenizer).items():
        parent, _, leaf = name.rpartition(".")
        linear = model.get_submodule(name)
        weights = linear.weight.detach().abs().amax(dim=0).clamp(min=1e-5)
        scale = largest.clamp(min=1e-5) ** STRENGTH / weights ** (1.0 - STRENGTH)
        setattr(model.get_submodule(parent), leaf, SmoothedLinear(linear, scale))
    return model


def input_ranges(model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Largest magnitude of each input channel over the sentences, for each linear layer that runs."""
    found: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):

            def record(_: Any, inputs: tuple[torch.Tensor, ...], name: str = name) -> None:
                largest = inputs[0].abs().flatten(0, -2).amax(dim=0)
                found[name] = torch.maximum(found[name], largest) if name in found else largest

            hooks.append(module.register_forward_pre_hook(record))
    try:
        with torch.no_grad():
            for sentence in SENTENCES:
                ids = torch.tensor([tokenizer.encode(sentence).ids or [0]])
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        for hook in hooks:
            hook.remove()
    return found
