"""A cross-encoder as a teacher: a Hugging Face model that scores a query and a document together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from callslip.encoders.packaged import folder_of
from callslip.errors import CallslipError, UnknownName, Unsupported
from callslip.runtime.device import best_device
from callslip.runtime.progress import track

REMEDY = (
    "Give a folder with config.json, model.safetensors and tokenizer, or the hub name of a model such as "
    "cross-encoder/ms-marco-MiniLM-L6-v2 (the first use needs the network)."
)


PACKAGED = "ms-marco-minilm"
"""The cross-encoder of the extra `rerank`."""


class CrossEncoder:
    """Scores pairs of texts: by the logit of a one-label model, or the difference of a two-label model's logits."""

    def __init__(self, name: str, *, max_length: int = 256, device: str | None = None, batch_size: int = 32) -> None:
        if "/" not in name and name != PACKAGED and not Path(name).is_dir():
            known = ["none", "dense", "bm25", PACKAGED, "the path of a folder", "OWNER/NAME"]
            raise UnknownName("teacher", name, known)
        self.tokenizer, model = _load(folder_of(name))
        if model.config.num_labels > 2:
            raise Unsupported(
                f"the teacher {name!r} has {model.config.num_labels} labels", "Use a model with one or two labels."
            )
        self.model = model.to(best_device(device)).eval()
        self.max_length, self.batch_size = max_length, batch_size

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """The score of each (query, document) pair; higher is better."""
        import torch

        # Batches of similar length need little padding.
        order = sorted(range(len(queries)), key=lambda n: -len(queries[n]) - len(documents[n]))
        found = np.empty(len(queries), dtype=np.float32)
        for start in track(range(0, len(order), self.batch_size), "teacher scores"):
            some = order[start : start + self.batch_size]
            batch = self.tokenizer(
                [queries[n] for n in some], [documents[n] for n in some],
                padding=True, truncation=True, max_length=self._limit(), return_tensors="pt",
            ).to(self.model.device)  # fmt: skip
            with torch.inference_mode():
                logits = self.model(**batch).logits.float().cpu().numpy()
            found[some] = logits[:, -1] - (logits[:, 0] if logits.shape[1] == 2 else 0)
        return found

    def _limit(self) -> int:
        return min(self.max_length, self.tokenizer.model_max_length)


def _load(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        # Only safetensors: unpickling a checkpoint could run arbitrary code.
        model = AutoModelForSequenceClassification.from_pretrained(name, use_safetensors=True)
        return AutoTokenizer.from_pretrained(name), model
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CallslipError(f"no cross-encoder at {name!r}: {first}", REMEDY) from error
