"""How long a search takes, against other ways to do it and against what its matrix products need.

    OMP_NUM_THREADS=1 python benchmarks/latency.py            # and again with 2 on an idle machine
    python benchmarks/latency.py --only t5,embedded --index DIR

`t5`: a T5-small with random weights over 100k codes (L=3, K=512), a query of 16 tokens. `lexical`: the same over codes
of words from a vocabulary of 30k. `embedded`: the default retriever on its encoder, in fp32 and int8. `filters`: the
same under a filter that keeps 1 % of documents. `neighbour`: the same beside a process that takes a core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import Allowed, by_generate, by_plain_loop, python_trie
from timing import interleaved, machine, save, show
from torch.nn import functional
from transformers import T5Config, T5ForConditionalGeneration
from transformers.utils import logging

import callslip
from callslip.decoders.t5 import T5CodeWriter, Tokens
from callslip.filters.filter import Filter
from callslip.identifiers.table import Identifiers
from callslip.search.beam import beam_search

WORDS, LENGTH, WIDTH, CODES, QUERY = 32128, 3, 512, 100_000, 16
NAMES = ("search", "encoder alone", "search under a filter that keeps 1 %")


def small_t5(vocabulary: int) -> T5ForConditionalGeneration:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=vocabulary, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config).eval()


def random_codes(count: int, width: int, seed: int = 0) -> Identifiers:
    rng = np.random.default_rng(seed)
    return Identifiers([str(row) for row in range(count)], rng.integers(0, width, (count, LENGTH)))


def matrix_products(t5: Any, ids: torch.Tensor, beam: int) -> Callable[[], None]:
    """The bound: the encoder, and the decoder's matrix products back to back, by torch as transformers calls it."""
    size = len(ids)
    inputs = {(rows, width): torch.randn(rows, width) for rows in (size, size * beam) for width in (512, 2048)}

    def run() -> None:
        with torch.inference_mode():
            t5.encoder(input_ids=ids, attention_mask=torch.ones_like(ids))
            for rows in (size, *[size * beam] * (LENGTH - 1)):
                for block in t5.decoder.block:
                    own, cross, feed = (
                        block.layer[0].SelfAttention,
                        block.layer[1].EncDecAttention,
                        block.layer[2].DenseReluDense,
                    )
                    for product in (own.q, own.k, own.v, own.o, cross.q, cross.o, feed.wi):
                        product(inputs[rows, 512])
                    feed.wo(inputs[rows, 2048])
                functional.linear(inputs[rows, 512], t5.lm_head.weight[:WIDTH])

    return run


def same_list(found: Any, beams: Any, first: int) -> bool:
    """Whether generate and ours give the same codes in the same order, with scores equal to 1e-4."""
    codes = (found.sequences[:, 1:] - first - torch.arange(LENGTH) * WIDTH).numpy()
    scores = found.sequences_scores.numpy()
    ours = np.concatenate([one.codes for one in beams]), np.concatenate([one.scores for one in beams])
    return bool((codes == ours[0]).all() and np.abs(scores - ours[1]).max() < 1e-4)


def measure_t5(rounds: int) -> dict[str, Any]:
    t5 = small_t5(WORDS + LENGTH * WIDTH)
    table = random_codes(CODES, WIDTH)
    ids = WORDS + np.arange(LENGTH)[:, None] * WIDTH + np.arange(WIDTH)
    allowed, root = Allowed(table.codes, ids), python_trie(table.codes, ids)
    by_level, by_children = T5CodeWriter(t5, [WIDTH] * LENGTH), T5CodeWriter(t5, [WIDTH] * LENGTH, normalise="children")
    plain = T5CodeWriter(t5, [WIDTH] * LENGTH, engine="torch")
    results = {}
    for size, beam in ((1, 10), (1, 100), (16, 10), (16, 100)):
        query = torch.randint(2, WORDS, (size, QUERY), generator=torch.Generator().manual_seed(1))
        tokens = Tokens(query, torch.ones_like(query))

        def search(writer: T5CodeWriter, renormalise: bool = False, tokens: Any = tokens, beam: int = beam) -> Any:
            return beam_search(writer, tokens, table.trie(), beam, renormalise=renormalise)

        def generate(renormalise: bool, query: Any = query, beam: int = beam) -> Any:
            return by_generate(t5, query, allowed, beam, LENGTH, renormalise)

        same = same_list(generate(True), search(by_children, True), WORDS)
        functions: dict[str, Callable[[], Any]] = {
            "generate": lambda: generate(False),
            "generate, renormalised": lambda: generate(True),
            "callslip": lambda: search(by_level),
            "callslip, renormalised": lambda: search(by_children, True),
            "callslip in torch alone": lambda: search(plain),
            "encoder and matrix products": matrix_products(t5, query, beam),
        }
        if size == 1:
            functions["plain loop"] = lambda: by_plain_loop(t5, query, root, beam, LENGTH)  # noqa: B023
        medians = interleaved(functions, max(3, rounds // (size if beam == 10 else 2 * size)))
        results[f"{size} x beam {beam}"] = ratios(medians) | {"same list as generate, renormalised": same}
        show(f"T5-small, {size} quer{'y' if size == 1 else 'ies'}, beam {beam}", results[f"{size} x beam {beam}"])
    return results


def ratios(medians: dict[str, float]) -> dict[str, Any]:
    ours = medians["callslip"]
    figures: dict[str, Any] = {f"ms {name}": value for name, value in medians.items()}
    figures["generate / callslip"] = round(medians["generate"] / ours, 2)
    figures["generate / callslip, both renormalised"] = round(
        medians["generate, renormalised"] / medians["callslip, renormalised"], 2
    )
    figures["callslip / encoder and matrix products"] = round(ours / medians["encoder and matrix products"], 2)
    if "plain loop" in medians:
        figures["plain loop / callslip"] = round(medians["plain loop"] / ours, 2)
    return figures


def measure_lexical(rounds: int) -> dict[str, Any]:
    """Codes of words: scores of the live children only, against the whole vocabulary and against the plain loop."""
    words, results = 30_000, {}
    t5 = small_t5(words)
    table = random_codes(CODES, words - 2)
    ids = np.tile(np.arange(2, words), (LENGTH, 1))
    root = python_trie(table.codes, ids)
    vocabulary = list(range(2, words))
    children, everything = (
        T5CodeWriter(t5, [words - 2] * LENGTH, codes="words", vocabulary=vocabulary, normalise=how)
        for how in ("children", "level")
    )
    query = torch.randint(2, words, (1, QUERY), generator=torch.Generator().manual_seed(1))
    tokens = Tokens(query, torch.ones_like(query))
    for beam in (10, 100):
        medians = interleaved(
            {
                "live children": lambda: beam_search(children, tokens, table.trie(), beam, renormalise=True),  # noqa: B023
                "whole vocabulary": lambda: beam_search(everything, tokens, table.trie(), beam),  # noqa: B023
                "plain loop": lambda: by_plain_loop(t5, query, root, beam, LENGTH),  # noqa: B023
            },
            rounds,
        )
        figures: dict[str, Any] = {f"ms {name}": value for name, value in medians.items()}
        figures["plain loop / live children"] = round(medians["plain loop"] / medians["live children"], 2)
        figures["whole vocabulary / live children"] = round(medians["whole vocabulary"] / medians["live children"], 2)
        results[f"beam {beam}"] = figures
        show(f"words of a vocabulary of {words}, beam {beam}", figures)
    return results


def queries_and_index(index: Path | None) -> tuple[list[str], Path]:
    """Real questions, and an index of the default method as `callslip demo` trains it: how far apart the scores of a
    query's codes lie decides how many of them the last level advances."""
    corpus = callslip.load_corpus("demo")
    questions = [query.text for query in corpus.split("test")[0].values()]
    if index is None:
        index = Path(tempfile.mkdtemp()) / "index"
        callslip.fit(corpus, method="dsi-semantic", settings={"backend": "torch"}).save(index)
    return questions, index


def measure_embedded(questions: list[str], index: Path, rounds: int) -> dict[str, Any]:
    """The whole search against its encoder alone, for questions as they come (half of them have 10 tokens or fewer)
    and for the longer ones (14 to 18, as T5's query above)."""
    results: dict[str, Any] = {}
    for backend, precision in (("torch", "fp32"), ("onnx", "int8")):
        retriever = callslip.load(index).adjust({"beam": 20, "backend": backend})
        tokenizer = retriever.texts.encoder.tokenizer
        longer = [question for question in questions if 14 <= len(tokenizer.encode(question).ids) <= 18]
        for name, asked in (("questions of 14 to 18 tokens", longer), ("all questions", questions[:60])):
            results[f"{precision}, {name}"] = embedded_figures(retriever, asked, rounds)
            show(f"embedded default, beam 20, encoder in {precision}, {name}", results[f"{precision}, {name}"])
    return results


def embedded_figures(retriever: Any, questions: list[str], rounds: int) -> dict[str, Any]:
    turn = {"number": 0}

    def next_question() -> str:
        turn["number"] += 1
        return questions[turn["number"] // len(NAMES) % len(questions)]  # the same one for each of the ways

    # An allow list, which every index can be filtered by: metadata fields differ.
    only = Filter(allow=frozenset(retriever.rows.doc_ids()[:: max(1, min(100, len(retriever) // 10))]))
    assert len(retriever.search(questions[0], 10, filter=only)) == min(10, len(retriever))
    medians = interleaved(
        {
            NAMES[0]: lambda: retriever.search(next_question(), 10),
            NAMES[1]: lambda: retriever.texts.encode([next_question()]),
            NAMES[2]: lambda: retriever.search(next_question(), 10, filter=only),
        },
        10 * rounds,
        warm_up=5,
    )
    batch = interleaved({"batch": lambda: retriever.search_batch(questions, 10)}, max(3, rounds // 3))["batch"]
    search, encoder, filtered = (medians[name] for name in NAMES)
    figures: dict[str, Any] = {f"ms {name}": value for name, value in medians.items()}
    figures["search / encoder alone"] = round(search / encoder, 2)
    figures["filtered / not"] = round(filtered / search, 2)
    figures["queries a second, one at a time"] = round(1000 / search, 1)
    figures[f"queries a second, {len(questions)} at a time"] = round(1000 * len(questions) / batch, 1)
    return figures


def measure_neighbour(index: Path) -> dict[str, Any]:
    """A search process of its own, as the command line starts it, with and without a process that never rests."""
    results = {}
    settings = {"as the command line sets it": {"OMP_WAIT_POLICY": "passive"}, "as a library, nothing set": {}}
    for name, changes in settings.items():
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
        out = subprocess.run(
            [sys.executable, __file__, "--neighbour-child", str(index)],
            env=environment | changes, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        results[name] = json.loads(out.splitlines()[-1])
        show(f"beside a busy process, {name}", results[name])
    return results


def neighbour_child(index: Path) -> None:
    retriever = callslip.load(index).adjust({"beam": 20, "backend": "torch"})
    questions = [query.text for query in callslip.load_corpus("demo").split("test")[0].values()][:60]

    def run() -> list[float]:
        times = []
        for question in questions:
            began = time.perf_counter()
            retriever.search(question, 10)
            times.append(1000 * (time.perf_counter() - began))
        return times

    run()
    alone, beside = [], []
    for _ in range(3):
        alone += run()
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            time.sleep(0.3)
            beside += run()
            busy.kill()
        time.sleep(0.3)
    slow = {"ms alone": statistics.median(alone), "ms beside": statistics.median(beside)}
    slow["beside / alone"] = slow["ms beside"] / slow["ms alone"]
    slow["ms beside, 95th percentile"] = sorted(beside)[int(0.95 * len(beside))]
    print(json.dumps({name: round(value, 2) for name, value in slow.items()} | {"threads": torch.get_num_threads()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="t5,lexical,embedded,neighbour")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--index", type=Path, help="an index of dsi-semantic; made from the demo corpus if not given")
    parser.add_argument("--neighbour-child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.neighbour_child:
        return neighbour_child(arguments.neighbour_child)
    logging.set_verbosity_error()
    wanted, sections = arguments.only.split(","), {"machine": machine()}
    if "t5" in wanted:
        sections["t5"] = measure_t5(arguments.rounds)
    if "lexical" in wanted:
        sections["lexical"] = measure_lexical(arguments.rounds)
    if {"embedded", "neighbour"} & set(wanted):
        questions, index = queries_and_index(arguments.index)
        if "embedded" in wanted:
            sections["embedded"] = measure_embedded(questions, index, arguments.rounds)
        if "neighbour" in wanted:
            sections["neighbour"] = measure_neighbour(index)
    save(f"latency-{torch.get_num_threads()}-threads", sections)


if __name__ == "__main__":
    main()
