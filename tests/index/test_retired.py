"""Folders of earlier versions still open: retired settings are dropped, and a warning names those that acted."""

from __future__ import annotations

import warnings

import pytest

from callslip import api
from callslip.errors import CallslipError, UnknownName
from callslip.index.retired import CONSTANTS, RETIRED, saved_settings
from callslip.methods import METHODS, find, make
from callslip.settings import describe
from callslip.storage import folder as folders

QUICK = {"encoder": "scratch", "epochs": 1, "decoder_width": 32, "batch_size": 64, "width": 4}


def as_an_earlier_version_saved_it(path, **more) -> None:
    """Add settings to the manifest, as a version that had them would have."""
    manifest = folders.read_manifest(path)
    manifest["settings"] |= more
    folders.write_manifest(path, manifest)


@pytest.mark.parametrize("name", ["asi++", "genret", "glen"])
def test_an_index_with_retired_settings_opens_and_answers_alike(name, small_corpus, tmp_path):
    known = {field.name for field in describe(find(name).load().Settings)}
    index = make(name, {key: value for key, value in QUICK.items() if key in known}).fit(small_corpus)
    expected = index.search("where is the apple", k=5)
    index.save(tmp_path / "index")
    as_an_earlier_version_saved_it(tmp_path / "index", **{k: v for k, v in RETIRED.items() if k not in known})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = api.load(tmp_path / "index")
    assert again.search("where is the apple", k=5).doc_ids == expected.doc_ids


def test_a_retired_setting_that_acted_is_named(small_corpus, tmp_path):
    make("dsi-semantic", QUICK).fit(small_corpus).save(tmp_path / "index")
    as_an_earlier_version_saved_it(tmp_path / "index", memory_slots=7)
    with pytest.warns(UserWarning, match="memory_slots=7"):
        api.load(tmp_path / "index")


def test_the_parts_of_an_ensemble_may_have_them_too():
    for name in ("recforest", "hybrid"):
        make(name)  # the classes exist under these names
    tree = make("recforest").remade("tree-1", {"memory_slots": 2, "width": 8})
    assert tree.settings.width == 8
    part = make("hybrid").remade("dsi-semantic", {"memory_slots": 2, "width": 8})
    assert part.settings.width == 8 and part.method == "dsi-semantic"


def test_a_name_that_no_version_had_is_refused(small_corpus, tmp_path):
    make("dsi-semantic", QUICK).fit(small_corpus).save(tmp_path / "index")
    as_an_earlier_version_saved_it(tmp_path / "index", colour="red")
    with pytest.raises(CallslipError, match="another version"):
        api.load(tmp_path / "index")
    with pytest.raises(UnknownName, match="colour"):
        saved_settings(find("dsi-semantic").load().Settings, {"colour": "red"})


def test_no_method_has_a_setting_that_became_a_constant():
    for name in METHODS:
        own = {field.name for field in describe(find(name).load().Settings)}
        assert not own & set(CONSTANTS), name


def test_a_setting_that_two_methods_had_is_named_if_it_was_the_default_of_neither():
    cls = find("genret").load().Settings
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved_settings(cls, {"sinkhorn_epsilon": 1.0, "sinkhorn_iterations": 100})
        saved_settings(find("asi++").load().Settings, {"sinkhorn_epsilon": 0.003, "gamma": 0.05, "density_weight": 1.0})
    with pytest.warns(UserWarning, match=r"sinkhorn_epsilon=0\.5"):
        saved_settings(cls, {"sinkhorn_epsilon": 0.5})
