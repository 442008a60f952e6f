"""Peak memory of one contrastive step over a big batch, with GradCache and without, and the gradients of both.

    python benchmarks/gradcache.py [--pairs 8192] [--chunk 64] [--plain 512] [--compared 128]

The embedded encoder is trained whole (`train_encoder=all`), dropout on, by a softmax over the documents of the batch:
sentences of SciFact against their documents, 32 and 48 word pieces. Each measurement is a process of its own, whose
peak resident memory the kernel reports. A step without GradCache is measured on `--plain` pairs: on all it needs far
more than a machine has. Gradients are compared on `--compared` pairs: without dropout to one big batch, with dropout to
the same chunks with all their graphs kept.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import callslip
from callslip.corpus.pseudo_queries import pseudo_queries
from callslip.decoders.tuned import TunedWriter
from callslip.decoders.writer import CodeWriter
from callslip.runtime.process import versions
from callslip.training.gradcache import in_chunks

RESULT = Path(__file__).parent / "results" / "gradcache.json"
QUERY, DOCUMENT, TEMPERATURE = 32, 48, 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--plain", type=int, default=512)
    parser.add_argument("--compared", type=int, default=128)
    parser.add_argument("--child", choices=["step", "compare"])
    arguments = parser.parse_args()
    if arguments.child == "step":
        print(json.dumps(measured(arguments.pairs, arguments.chunk or None)))
    elif arguments.child == "compare":
        print(json.dumps(compared(arguments.pairs, arguments.chunk)))
    else:
        report = {
            "versions": versions(),
            "threads": torch.get_num_threads(),
            "tokens": {"query": QUERY, "document": DOCUMENT},
            "gradcache": child("step", arguments.pairs, arguments.chunk),
            "plain": child("step", arguments.plain, 0),
            "gradients": child("compare", arguments.compared, 16),
        }
        RESULT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(report, indent=1))


def child(kind: str, pairs: int, chunk: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", kind, "--pairs", str(pairs), "--chunk", str(chunk)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak() -> int:
    """Peak resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Step:
    """The model, and a batch of pairs."""

    def __init__(self, pairs: int) -> None:
        torch.manual_seed(0)
        self.model = TunedWriter("minilm", CodeWriter(384, [2], width=32, heads=2), "all").train()
        data = Path(os.environ.get("CALLSLIP_DATA", "../shared/data"))
        corpus = callslip.load_corpus(data / "scifact")
        row_of = corpus.rows()
        some = list(islice(pseudo_queries(corpus, ("sentences",)), pairs))
        if len(some) < pairs:
            raise SystemExit(f"SciFact has {len(some)} sentences: ask for fewer pairs")
        texts = [pair.query for pair in some], [corpus.documents[row_of[pair.doc_id]].content for pair in some]
        self.query, self.document = (
            self.model.batch(self.model.tokenize(list(part), longest))
            for part, longest in zip(texts, (QUERY, DOCUMENT), strict=True)
        )
        # Sentences of one document are no wrong answers to one another.
        rows = torch.tensor([row_of[pair.doc_id] for pair in some])
        self.same = (rows[:, None] == rows) & ~torch.eye(pairs, dtype=torch.bool)

    def loss(self, query: torch.Tensor, document: torch.Tensor) -> torch.Tensor:
        scores = (query @ document.t() / TEMPERATURE).masked_fill(self.same, float("-inf"))
        return functional.cross_entropy(scores, torch.arange(len(scores)))

    def gradients(self, encode: Any) -> list[torch.Tensor]:
        self.model.zero_grad(set_to_none=True)
        self.loss(encode(self.query), encode(self.document)).backward()
        return [p.grad.clone() for p in self.model.encoder.parameters() if p.grad is not None]


def measured(pairs: int, chunk: int | None) -> dict[str, Any]:
    """One step: peak memory and time."""
    step = Step(pairs)
    before, began = peak(), time.perf_counter()
    found = step.gradients(lambda tokens: in_chunks(step.model.memory, tokens, chunk))
    norm = float(torch.stack([part.norm() for part in found]).norm())
    seconds = round(time.perf_counter() - began)
    about = {"pairs": pairs, "chunk": chunk, "peak_mb": peak(), "before_the_step_mb": before, "seconds": seconds}
    return about | {"gradient_norm": norm, "parameters": sum(part.numel() for part in found)}


def compared(pairs: int, chunk: int) -> dict[str, Any]:
    """The greatest difference of a gradient, with and without dropout."""
    step = Step(pairs)
    memory = step.model.memory

    def kept(tokens: Any) -> torch.Tensor:
        return torch.cat([memory(tokens[start : start + chunk]) for start in range(0, len(tokens), chunk)])

    report: dict[str, Any] = {"pairs": pairs, "chunk": chunk}
    for name, train, plain in (("without_dropout", False, memory), ("with_dropout", True, kept)):
        step.model.train(train)
        torch.manual_seed(1)
        whole = step.gradients(plain)
        torch.manual_seed(1)
        cached = step.gradients(lambda tokens: in_chunks(memory, tokens, chunk))
        apart = max(float((a - b).abs().max()) for a, b in zip(whole, cached, strict=True))
        report[name] = {"largest_difference": apart, "largest_gradient": max(float(g.abs().max()) for g in whole)}
    return report


if __name__ == "__main__":
    main()
