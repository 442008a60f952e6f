"""From codes to documents: buckets and their order against plain loops, and the limit of a bucket end to end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import callslip
from callslip.filters.filter import Filter
from callslip.identifiers.table import END, Identifiers
from callslip.methods import make
from callslip.search import candidates
from callslip.search.beam import Beams

QUICK = {"encoder": "scratch", "epochs": 5, "decoder_width": 32, "width": 4, "length": 1, "batch_size": 64}
EIGHTHS = st.integers(-8, 8).map(lambda n: n / 8)  # few values, so that ties are common


def plain_candidates(written, codes, mask):
    """(row, beam) of every document whose code was written: code after code, documents of a code by row."""
    found = []
    for beam, code in enumerate(written):
        for row, own in enumerate(codes):
            if own == code and (mask is None or mask[row]):
                found.append((row, beam))
    return found


def plain_order(rows, beam, scores, similarity, limit):
    """Positions by key; those beyond the `limit` most similar of their bucket after all others."""

    def key(at):
        return (beam[at] if scores is None else -scores[at], -similarity[at], rows[at])

    def place(at):
        mine = [other for other in range(len(rows)) if beam[other] == beam[at]]
        return sorted(mine, key=lambda other: (-similarity[other], rows[other])).index(at)

    over = [limit is not None and place(at) >= limit for at in range(len(rows))]
    return sorted(range(len(rows)), key=lambda at: (over[at], *key(at)))


@st.composite
def written(draw):
    """Codes of documents, some shared and some short, and what beams wrote: codes that exist, and codes that do not."""
    tokens = st.integers(0, 2)
    code = st.tuples(tokens, tokens) | tokens.map(lambda token: (token, END))
    codes = draw(st.lists(code, min_size=1, max_size=14))
    wrote = draw(st.lists(code | st.just((7, 7)), unique=True, max_size=8))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=len(codes), max_size=len(codes)).map(np.array))
    return codes, wrote, mask


def beams_of(wrote, table: Identifiers, scores=None) -> Beams:
    tokens = np.array(wrote, np.int64).reshape(len(wrote), 2)
    values = np.zeros(len(wrote), np.float32) if scores is None else np.array(scores, np.float32)
    return Beams(table.trie().leaves_of(tokens), values, np.zeros(tokens.shape, np.float32), tokens)


@settings(max_examples=150, deadline=None)
@given(written())
def test_candidates_are_the_documents_of_the_codes(made):
    codes, wrote, mask = made
    table = Identifiers([str(row) for row in range(len(codes))], np.array(codes))
    beams = beams_of(wrote, table)
    assert [code in codes for code in wrote] == (beams.nodes >= 0).tolist()
    rows, beam = candidates.candidates(beams, table, mask)
    assert list(zip(rows.tolist(), beam.tolist(), strict=True)) == plain_candidates(wrote, codes, mask)


@settings(max_examples=150, deadline=None)
@given(written(), st.sampled_from(["bucket", "sum", "union"]), st.none() | st.integers(1, 4), st.data())
def test_merged_is_the_plain_order(made, ranking, limit, data):
    codes, wrote, mask = made
    table = Identifiers([str(row) for row in range(len(codes))], np.array(codes))
    beams = beams_of(wrote, table, sorted(data.draw(st.lists(EIGHTHS, min_size=len(wrote), max_size=len(wrote))))[::-1])
    rows, beam = candidates.candidates(beams, table, mask)
    similarity = np.array(data.draw(st.lists(EIGHTHS, min_size=len(rows), max_size=len(rows))), np.float32)
    scores = {"bucket": None, "sum": beams.scores[beam] + 2 * similarity, "union": similarity}[ranking]
    order, within = candidates.merged(rows, beam, scores, similarity, limit)
    assert order.tolist() == plain_order(rows, beam, scores, similarity, limit)
    assert within == sum(min(limit or len(rows), size) for size in np.bincount(beam))


@settings(max_examples=100, deadline=None)
@given(written())
def test_sizes_are_counts_of_the_documents_of_each_code(made):
    codes, wrote, mask = made
    table = Identifiers([str(row) for row in range(len(codes))], np.array(codes))
    alive = np.ones(len(codes), bool) if mask is None else mask
    expected = [sum(own == code and there for own, there in zip(codes, alive, strict=True)) for code in wrote]
    assert candidates.sizes(beams_of(wrote, table), table, alive).tolist() == [max(1, count) for count in expected]


@pytest.fixture(scope="module")
def crowded(small_corpus):
    """Four buckets of about ten documents each."""
    index = make("dsi-semantic", QUICK).fit(small_corpus)
    assert index.identifiers.unique == 4
    return index


@pytest.mark.parametrize("ranking", ["bucket", "share", "sum", "union"])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_crowded_bucket_does_not_starve_the_others(crowded, small_corpus, ranking, limit):
    for query in list(small_corpus.queries.values())[::9]:
        free = crowded.adjust({"ranking": ranking, "bucket_limit": None}).search(query, k=40, explain=True)
        whole = [(hit.doc_id, hit.code, hit.why["similarity"]) for hit in free]
        crowded.adjust({"bucket_limit": limit})
        counted: dict[tuple[int, ...], int] = {}
        for hit in crowded.search(query, k=4 * limit):
            counted[hit.code] = counted.get(hit.code, 0) + 1
        assert counted == dict.fromkeys(counted, limit) and len(counted) == 4
        # The rest of the list is the free list's, first those within the limit and then those beyond it.
        kept = set()
        for code in counted:
            bucket = sorted((item for item in whole if item[1] == code), key=lambda item: -item[2])
            kept |= {doc_id for doc_id, _, _ in bucket[:limit]}
        within = [doc_id for doc_id, _, _ in whole if doc_id in kept]
        beyond = [doc_id for doc_id, _, _ in whole if doc_id not in kept]
        for k in (1, 10, 40):
            assert crowded.search(query, k=k).doc_ids == (within + beyond)[:k]


def test_a_limit_does_not_cost_hits_when_few_buckets_are_allowed(crowded):
    """A filter that leaves one bucket: all its documents come, though they are beyond the limit."""
    crowded.adjust({"ranking": "bucket", "bucket_limit": 1})
    ids, codes = crowded.identifiers.in_row_order()
    mine = [doc_id for doc_id, code in zip(ids, codes.tolist(), strict=True) if code == codes[0].tolist()]
    assert len(mine) > 1
    hits = crowded.search("violin", k=len(mine), filter=Filter(allow=frozenset(mine)))
    assert sorted(hits.doc_ids) == sorted(mine)


def test_a_narrow_beam_grows_for_the_sake_of_the_limit(crowded, small_corpus):
    """One bucket would hold k documents, but only `limit` of them may come before others."""
    crowded.adjust({"ranking": "bucket", "bucket_limit": 2, "beam": 1})
    hits = crowded.search(next(iter(small_corpus.queries.values())), k=6)
    crowded.adjust({"bucket_limit": None, "beam": 50})
    assert len(hits) == 6 and len({hit.code for hit in hits}) >= 3


def test_a_share_is_a_codes_probability_among_its_documents(crowded, small_corpus):
    """The score under `share` against a count of the buckets; where a filter leaves few of their documents, the list is
    that of all documents without the others."""
    sizes = {}
    for code in map(tuple, crowded.identifiers.codes.tolist()):
        sizes[code] = sizes.get(code, 0) + 1
    assert len(set(sizes.values())) > 1
    crowded.adjust({"ranking": "share", "bucket_limit": None, "beam": 4})
    moved = 0
    for query in list(small_corpus.queries.values())[:20]:
        hits = crowded.search(query, k=40, explain=True)
        shares = [hit.why["code_score"] - np.log(sizes[tuple(hit.code)]) for hit in hits]
        assert [hit.score for hit in hits] == pytest.approx(shares, abs=1e-5)
        assert all(hit.why["bucket_size"] == sizes[tuple(hit.code)] for hit in hits)
        assert shares == sorted(shares, reverse=True)
        near = [(hit.code, -hit.why["similarity"]) for hit in hits]
        assert all(a[1] <= b[1] for a, b in itertools.pairwise(near) if a[0] == b[0])
        moved += [hit.why["beam_rank"] for hit in hits] != sorted(hit.why["beam_rank"] for hit in hits)
        some = Filter(where={"topic": "metal"})
        kept = [hit.doc_id for hit in hits if hit.doc_id.startswith("metal")]
        assert crowded.search(query, k=len(kept), filter=some).doc_ids == kept
    assert moved  # or the test would hold for `bucket`, too


def test_deleted_documents_have_no_share(small_corpus, tmp_path):
    """What is deleted is no longer counted, at once: the next snapshot, which does not hold it, changes no hit."""
    make("dsi-semantic", QUICK | {"ranking": "share"}).fit(small_corpus).save(tmp_path / "index")
    index = callslip.load(tmp_path / "index")
    query = next(iter(small_corpus.queries.values()))
    first = index.search(query, k=1, explain=True)[0]
    mates = [hit.doc_id for hit in index.search(query, k=40) if hit.code == first.code and hit.doc_id != first.doc_id]
    index.delete(mates[:3])
    after = index.search(query, k=40, explain=True)
    mine = next(hit for hit in after if hit.doc_id == first.doc_id)
    assert mine.why["bucket_size"] == first.why["bucket_size"] - 3
    index.compact()
    again = callslip.load(tmp_path / "index").search(query, k=40, explain=True)
    assert again.doc_ids == after.doc_ids
    assert [hit.score for hit in again] == pytest.approx([hit.score for hit in after], abs=1e-5)
