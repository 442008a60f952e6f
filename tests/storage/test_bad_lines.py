"""Ten thousand malformed lines: each is taken, or refused by its number; none stops the work or harms the index."""

from __future__ import annotations

import json
import random

import pytest
from word_codes import make_index, state_of

from callslip import api
from callslip.corpus.load import load_corpus
from callslip.errors import BadInput
from callslip.storage.check import check

COUNT = 10_000
WAYS = 12


def bad_line(number: int, chance: random.Random) -> bytes:
    """A line with something wrong in it, most of the time beyond use."""
    good = json.dumps({"_id": f"n{number}", "title": "t", "text": f"text {number}"}).encode()
    at = chance.randrange(1, len(good))
    return [
        lambda: good[:at],
        lambda: good[:at] + bytes([chance.randrange(128, 256)]) + good[at:],
        lambda: good[:at] + b"\x00" + good[at:],
        lambda: json.dumps({"_id": f"n{number}", "text": "lone \ud800 surrogate"}).encode(),
        lambda: json.dumps({"_id": "", "text": "no id"}).encode(),
        lambda: json.dumps({"_id": f"n{number}", "text": chance.choice([None, 3, [], {}])}).encode(),
        lambda: json.dumps({"_id": "twice", "text": f"text {number}"}).encode(),
        lambda: json.dumps({"text": "no id at all"}).encode(),
        lambda: b"[" * chance.choice([10, 3000, 100_000]),
        lambda: json.dumps([1, 2, 3]).encode(),
        lambda: b'{"_id": "n%d", "text": "x", "size": %s}' % (number, chance.choice([b"NaN", b"1e999", b"Infinity"])),
        lambda: bytes(b for b in chance.randbytes(30) if b not in b"\r\n") or b"?",
    ][number % WAYS]()


def test_ten_thousand_malformed_lines(memory):
    chance = random.Random(5)
    lines = [bad_line(number, chance) for number in range(COUNT)]
    lines[::100] = [json.dumps({"_id": f"good{n}", "text": f"fine {n}"}).encode() for n in range(0, COUNT, 100)]
    (memory / "docs.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(BadInput, match=r"docs\.jsonl:2"):
        load_corpus(memory / "docs.jsonl")
    corpus = load_corpus(memory / "docs.jsonl", skip_bad=True)
    assert len(corpus) + corpus.skipped.count == COUNT
    assert {f"good{n}" for n in range(0, COUNT, 100)} <= set(corpus.doc_ids)
    assert all("docs.jsonl:" in example for example in corpus.skipped.examples)
    make_index(memory / "index", {"a": "one"})
    index = api.load(memory / "index")
    index.add(corpus.documents)
    assert state_of(index) == {"a": "one"} | {d.doc_id: d.text for d in corpus.documents}
    index.close()
    assert check(memory / "index").documents == len(corpus) + 1
