"""A search for many documents begins with a beam that can hold them."""

from __future__ import annotations

import pytest

from callslip.methods import make


@pytest.mark.parametrize(("k", "beams"), [(2, [2]), (7, [8]), (30, [32]), (40, [40])])
def test_the_first_beam_fits_k(small_corpus, monkeypatch, k, beams):
    settings = {"encoder": "scratch", "epochs": 1, "decoder_width": 32, "beam": 2}
    index = make("dsi-atomic", settings).fit(small_corpus)  # a code for each document
    asked, write = [], type(index).write

    def watched(self, inputs, beam, live=None):
        asked.append(beam)
        return write(self, inputs, beam, live)

    monkeypatch.setattr(type(index), "write", watched)
    assert len(index.search("a river", k=k)) == k
    assert asked == beams
