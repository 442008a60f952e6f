"""A living index against a dictionary, by Hypothesis: any sequence of changes, compactions, openings, two processes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from word_codes import make_index, state_of

from callslip import api
from callslip.corpus.documents import Document
from callslip.errors import CallslipError
from callslip.storage.check import check

names = st.sampled_from([f"d{n}" for n in range(8)])
texts = st.sampled_from(["one", "two", "three", "vier", "füenf", "", "\x00", "😀 six"])


class LivingIndex(RuleBasedStateMachine):
    """Two open indexes of one folder stand for two processes."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.path = self.root / "index"
        self.model = {"d0": "one", "d1": "two"}
        make_index(self.path, self.model)
        self.both = [api.load(self.path), api.load(self.path)]

    @rule(who=st.integers(0, 1), new=st.dictionaries(names, texts, min_size=1, max_size=3))
    def add(self, who, new):
        documents = [Document(doc_id, text) for doc_id, text in new.items()]
        if set(new) & set(self.model):
            with pytest.raises(CallslipError, match="already"):
                self.both[who].add(documents)
        else:
            self.both[who].add(documents)
            self.model |= new

    @rule(who=st.integers(0, 1), new=st.dictionaries(names, texts, min_size=1, max_size=3))
    def update(self, who, new):
        self.both[who].update([Document(doc_id, text) for doc_id, text in new.items()])
        self.model |= new

    @rule(who=st.integers(0, 1), gone=st.lists(names, min_size=1, max_size=3))
    def delete(self, who, gone):
        if set(gone) <= set(self.model):
            self.both[who].delete(gone)
            for doc_id in set(gone):
                del self.model[doc_id]
        else:
            with pytest.raises(CallslipError, match="no document"):
                self.both[who].refresh().delete(gone)

    @rule(who=st.integers(0, 1))
    def compact(self, who):
        self.both[who].compact()

    @rule(who=st.integers(0, 1))
    def open_again(self, who):
        self.both[who].close()
        self.both[who] = api.load(self.path)

    @rule()
    def copy(self):
        from callslip.storage.copies import copy_index

        copy_index(self.path, self.root / "copy")
        copied = api.load(self.root / "copy")
        assert state_of(copied) == self.model
        copied.close()
        shutil.rmtree(self.root / "copy")

    @rule()
    def check(self):
        assert check(self.path).documents == len(self.model)

    @invariant()
    def both_hold_what_the_dictionary_holds(self):
        for index in self.both:
            assert state_of(index) == self.model

    def teardown(self):
        for index in self.both:
            index.close()
        shutil.rmtree(self.root)


def test_any_sequence_of_changes():
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        LivingIndex,
        settings=settings(
            max_examples=25,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
