"""Queries written by a sequence-to-sequence model that reads the document (doc2query)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from callslip.corpus.documents import Corpus, Document, Pair
from callslip.errors import BadSetting, CallslipError
from callslip.runtime.device import best_device
from callslip.runtime.progress import track
from callslip.runtime.seeds import seeded

MAX_INPUT_TOKENS = 512


def doc2query(
    corpus: Corpus | Sequence[Document],
    checkpoint: str | Path,
    per_document: int = 5,
    batch_size: int = 16,
    device: str | None = None,
    seed: int = 0,
    max_length: int = 64,
) -> list[Pair]:
    """Sampled queries for every document, in the documents' order, without empty ones and repetition.

    `checkpoint` is any Hugging Face sequence-to-sequence model: a hub name or a folder. Queries of at most
    `max_length` tokens are drawn from the ten likeliest tokens at each step, as is usual for doc2query.
    """
    for name, value in (
        ("per_document", per_document),
        ("batch_size", batch_size),
        ("max_length", max_length),
    ):
        if value < 1:
            raise BadSetting(f"{name} must be at least 1, not {value}", "Give a positive number.")
    tokenizer, model = _load(str(checkpoint))
    import torch

    place = best_device(device)
    model = model.to(place).eval()
    documents = list(corpus)
    # Batches of one length waste no time on padding; the answers go back to their documents' places.
    order = sorted(range(len(documents)), key=lambda row: (len(documents[row].content), row))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    queries: list[list[str]] = [[] for _ in documents]
    with seeded(seed), torch.inference_mode():
        for rows in track(batches, "Writing queries"):
            texts = [documents[row].content for row in rows]
            written = _write(tokenizer, model, texts, per_document, max_length)
            for number, row in enumerate(rows):
                queries[row] = written[number * per_document : (number + 1) * per_document]
    return [
        Pair(query, document.doc_id) for document, written in zip(documents, queries) for query in _distinct(written)
    ]


def _write(tokenizer: Any, model: Any, texts: list[str], count: int, max_length: int) -> list[str]:
    limit = min(MAX_INPUT_TOKENS, tokenizer.model_max_length)
    batch = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
    answers = model.generate(
        input_ids=batch["input_ids"].to(model.device),
        attention_mask=batch["attention_mask"].to(model.device),
        do_sample=True,
        top_k=10,
        num_beams=1,
        num_return_sequences=count,
        max_new_tokens=max_length,
    )
    return [str(text) for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]


def _distinct(queries: list[str]) -> list[str]:
    lines = (" ".join(query.split()) for query in queries)
    return list({line.casefold(): line for line in lines if line}.values())


def _load(checkpoint: str) -> tuple[Any, Any]:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    try:
        # Only safetensors: a checkpoint in a pickle format could run code when it is read.
        model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint, use_safetensors=True)
        return AutoTokenizer.from_pretrained(checkpoint), model
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CallslipError(
            f"no sequence-to-sequence checkpoint at {checkpoint!r}: {first}",
            "Give a folder with config.json, model.safetensors and tokenizer, or the hub name of a model such as "
            "doc2query/msmarco-t5-small-v1 (the first use needs the network).",
        ) from error
