"""What sentence-transformers' files say of a checkpoint: prompts, and the modules after the pooling.

`modules.json` lists a model's modules in order; those after the pooling may be Dense (Sentence-T5, GTR) and Normalize.
`config_sentence_transformers.json` has the prompts: texts that a model wants before a query, and before a document.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from callslip.encoders.embedded import sha256_of
from callslip.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from torch import nn

Kind = Literal["query", "document", "plain"]
"""What a text is to an encoder: it decides the prompt."""
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "Softplus")
"""Activations of a Dense module, by their name in torch.nn; none of them has parameters."""
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Prompts:
    """What is written before a query, and before a document."""

    query: str = ""
    document: str = ""

    def before(self, kind: Kind) -> str:
        return {"query": self.query, "document": self.document, "plain": ""}[kind]


@dataclass(frozen=True)
class Layer:
    """A module after the pooling."""

    kind: Literal["Dense", "Normalize"]
    folder: Path
    inputs: int = 0
    outputs: int = 0
    bias: bool = True
    activation: str = "Tanh"

    @property
    def digest(self) -> str:
        """A hash of everything that the module does to a vector."""
        weights = sha256_of(self.folder / WEIGHTS) if self.kind == "Dense" else ""
        return f"{self.kind} {self.inputs} {self.outputs} {self.bias} {self.activation} {weights}"


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(path, f"is not JSON ({error})") from None


def read_prompts(folder: Path) -> Prompts:
    """The prompts of a checkpoint: `query`, and the first of `document`, `passage` and `corpus`."""
    path = folder / "config_sentence_transformers.json"
    config = read_json(path)
    stated = config.get("prompts") if isinstance(config, dict) else None
    if stated is None:
        return Prompts()
    if not isinstance(stated, dict) or not all(isinstance(text, str | None) for text in stated.values()):
        raise BadInput(path, "is not a mapping of names to texts", field="prompts")
    document = next((stated[name] for name in ("document", "passage", "corpus") if stated.get(name)), "")
    prompts = Prompts(stated.get("query") or "", document)
    pooling = read_json(folder / "1_Pooling" / "config.json")
    if prompts != Prompts() and isinstance(pooling, dict) and pooling.get("include_prompt") is False:
        raise Unsupported(
            f"{folder}: the model leaves its prompts out of the pooling (include_prompt is false)",
            "Choose a model that pools all tokens.",
        )
    return prompts


def read_modules(folder: Path, width: int) -> tuple[Layer, ...]:
    """The modules after the pooling, of a model whose states have this width."""
    path = folder / "modules.json"
    listed = read_json(path)
    if listed is None:
        return ()
    try:
        entries = [(str(one["type"]).rsplit(".", 1)[-1], str(one.get("path", ""))) for one in listed]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(path, f"is not a list of modules ({error})") from None
    extra = [kind for kind, _ in entries if kind not in {"Transformer", "Pooling", "Normalize", "Dense"}]
    if extra:
        raise Unsupported(
            f"{folder}: the model has unsupported layers ({', '.join(extra)})",
            "Choose a model that consists of a transformer, pooling, Dense layers and normalisation.",
        )
    modules: list[Layer] = []
    for kind, place in entries:
        if kind == "Normalize":
            modules.append(Layer("Normalize", folder))
        elif kind == "Dense":
            modules.append(_dense(folder / Path(place).name, width))
            width = modules[-1].outputs
    while modules and modules[-1].kind == "Normalize":  # every vector is normalised in the end
        modules.pop()
    return tuple(modules)


def _dense(folder: Path, width: int) -> Layer:
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise BadInput(folder, "is not a Dense module: it has no config.json")
    inputs, outputs = config.get("in_features"), config.get("out_features")
    if inputs != width or not isinstance(outputs, int):
        raise BadInput(path, f"does not fit the model, whose vectors have {width} numbers", field="in_features")
    activation = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1]
    other = config.get("module_input_name", "sentence_embedding") != "sentence_embedding"
    if activation not in ACTIVATIONS or config.get("use_residual") or other:
        raise Unsupported(
            f"{path}: this Dense module is not supported (activation {activation}, residual or token-wise)",
            f"Choose a model whose Dense modules are plain, with one of: {', '.join(ACTIVATIONS)}.",
        )
    if not (folder / WEIGHTS).is_file():
        raise BadInput(folder, f"has no {WEIGHTS}", remedy="Its publisher can write one with save_pretrained().")
    return Layer("Dense", folder, width, outputs, bool(config.get("bias", True)), activation)


def digest_of(modules: tuple[Layer, ...]) -> str:
    return hashlib.sha256("\n".join(module.digest for module in modules).encode()).hexdigest()


def load_modules(modules: tuple[Layer, ...]) -> nn.Module | None:
    """The modules with their weights, as one torch module; None if there are none."""
    if not modules:
        return None
    from torch import nn

    from callslip.encoders.pooling import Normalised

    layers: list[nn.Module] = []
    for module in modules:
        layers += [Normalised()] if module.kind == "Normalize" else _layers(module)
    return nn.Sequential(*layers)


def _layers(module: Layer) -> list[nn.Module]:
    from safetensors.torch import load_file
    from torch import nn

    from callslip.encoders.pooling import Projection

    linear = Projection(module.inputs, module.outputs)
    try:
        weights = load_file(module.folder / WEIGHTS)
        found = {name.removeprefix("linear."): value.float() for name, value in weights.items()}
        linear.load_state_dict(found if module.bias else found | {"bias": linear.bias})
    except Exception as error:
        raise BadInput(module.folder / WEIGHTS, f"cannot be loaded ({str(error).splitlines()[0]})") from None
    return [linear, getattr(nn, module.activation)()]
