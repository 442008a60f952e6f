"""Folders and recipes of earlier versions still work: renamed settings are translated, retired ones are dropped, and a
warning names those that acted."""

from __future__ import annotations

import warnings

import pytest

from callslip import api
from callslip.cli.options import chosen_settings
from callslip.errors import BadSetting, CallslipError, UnknownName
from callslip.index.retired import CONSTANTS, RETIRED, SPELLINGS, saved_settings, translated
from callslip.methods import METHODS, find, make, make_saved
from callslip.settings import describe
from callslip.settings import make as make_settings
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


BEFORE = {
    "max_length": None, "vector_size": None, "query_prompt": None, "document_prompt": None, "doc2query": None,
    "doc2query_per_document": 5, "doc2query_sampling": "top-k", "train_on_queries": True, "query_repeat": 1,
    "pseudo_queries": ["title", "sentences"], "train_on_documents": True, "micro_batch": None,
}  # fmt: skip
"""What a manifest said of the settings that have become part of others."""


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("dsi-semantic", {}, {}),
        ("dsi-qg", {"train_on_documents": False}, {}),
        ("dsi-qg", {}, {"training_texts": ("document", "title", "sentences")}),
        ("nci", {"pseudo_queries": ["spans"]}, {"training_texts": ("document", "spans")}),
        ("glen", {"pseudo_queries": [], "train_on_documents": False}, {"training_texts": ()}),
        ("tied-atomic", {"pseudo_queries": ["title"]}, {"training_texts": ("title",)}),
        ("genret", {"train_on_queries": False, "query_repeat": 3}, {"query_repeat": 0}),
        ("genret", {"doc2query": "some/t5"}, {"doc2query": "some/t5"}),
        ("genret", {"doc2query": "some/t5", "doc2query_per_document": 9, "doc2query_sampling": "nucleus"},
         {"doc2query": "some/t5:count=9,sampling=nucleus"}),
        ("dsi-semantic", {"max_length": 64}, {"encoder": "minilm:max_length=64"}),
        ("dsi-semantic", {"encoder": "scratch:dim=8", "vector_size": 8}, {"encoder": "scratch:dim=8"}),
        ("dense", {"encoder": "a/b", "vector_size": 9, "query_prompt": "query: ", "document_prompt": ""},
         {"encoder": "a/b:dim=9,query_prompt=query: ,document_prompt="}),
        ("dense", {"encoder": "given", "max_length": 64}, {"encoder": "given"}),
        ("asi++", {"density": "printed"}, {"criteria": ("density-as-printed", "bottleneck", "information")}),
        ("asi++", {"density": "dense"}, {}),
        ("genret", {"micro_batch": 8, "save_memory": ["autocast"]}, {"save_memory": ("autocast", "micro_batch=8")}),
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_a_manifest_keep_their_effect_under_new_names(method, old, new):
    own, cls = find(method), find(method).load()
    ours = {field.name for field in describe(cls.Settings)}
    before = {
        name: value
        for name, value in (BEFORE | old).items()
        if name in ours or (name in SPELLINGS and SPELLINGS[name][0] in ours)
    }
    if method == "tied-atomic":
        before.pop("train_on_documents")
    before |= {} if method != "nci" or "pseudo_queries" in old else {"pseudo_queries": ["title", "sentences", "spans"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = make_saved(method, before)
    usual = {} if "query_repeat" not in ours or method != "tied-atomic" else {"query_repeat": 1}
    assert found.settings == make_settings(cls.Settings, dict(own.settings) | usual | new)


def test_a_manifest_from_before_prompts_has_none():
    cls = find("dense").load().Settings
    assert saved_settings(cls, {"encoder": "a/b", "max_length": None}).encoder == "a/b:query_prompt=,document_prompt="
    assert saved_settings(cls, {"encoder": "minilm", "max_length": None}).encoder == "minilm"
    assert translated(cls, {"encoder": "a/b", "max_length": 9})["encoder"] == "a/b:max_length=9"  # a recipe


def test_an_index_with_renamed_settings_answers_alike(small_corpus, tmp_path):
    values = QUICK | {"encoder": "scratch:max_length=5", "training_texts": ("title",), "query_repeat": 0}
    index = make("dsi-semantic", values).fit(small_corpus)
    expected = index.search("where is the apple", k=5)
    index.save(tmp_path / "index")
    manifest = folders.read_manifest(tmp_path / "index")
    for name in ("training_texts", "query_repeat"):
        del manifest["settings"][name]
    more = {"encoder": "scratch", "max_length": 5, "pseudo_queries": ["title"], "train_on_documents": False}
    manifest["settings"] |= more | {"train_on_queries": False}
    folders.write_manifest(tmp_path / "index", manifest)
    again = api.load(tmp_path / "index")
    assert again.settings == index.settings and again.search("where is the apple", k=5) == expected


def test_a_recipe_of_an_earlier_version_is_translated(tmp_path):
    path = tmp_path / "old.toml"
    path.write_text(
        'method = "dsi-qg"\n[settings]\npseudo_queries = ["lead"]\nmax_length = 9\ntrain_on_queries = false'
    )
    method, values = chosen_settings(str(path), ["epochs=3"])
    assert method == "dsi-qg"
    assert values == {
        "training_texts": ("lead",), "encoder": "minilm:max_length=9", "query_repeat": 0, "epochs": "3"
    }  # fmt: skip
    assert chosen_settings(str(path), None, "dsi-semantic")[1]["training_texts"] == ("document", "lead")


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_old_name_is_refused_with_the_new_spelling(name):
    method = "asi++" if name == "density" else "dsi-semantic"
    with pytest.raises(BadSetting, match="is now part of") as error:
        make(method, {name: "x"})
    assert SPELLINGS[name][0] in error.value.remedy
    with pytest.raises(UnknownName):
        make("bm25", {name: "x"})
