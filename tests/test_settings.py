"""Settings: strings become values, mistakes get an answer, every field of every method is described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from callslip import settings
from callslip.errors import BadInput, BadSetting, UnknownName
from callslip.methods import METHODS, find, make
from callslip.recipes import Recipe, read_recipe


@dataclass(frozen=True)
class Base:
    rate: float = 0.5
    """How fast."""


@dataclass(frozen=True)
class Example(Base):
    count: int = 3
    """How many,
    over two lines."""
    name: str = "x"
    """What."""
    limit: int | None = None
    """At most."""
    kinds: tuple[str, ...] = ("a", "b")
    """Which."""
    mode: Literal["fast", "slow"] = "fast"
    """How."""
    on: bool = True
    """Whether."""


def test_strings_become_values():
    made = settings.make(
        Example,
        {"rate": "1e-3", "count": "7", "limit": "none", "kinds": "p, q", "mode": "slow", "on": "no", "name": "none"},
    )
    assert made == Example(rate=1e-3, count=7, limit=None, kinds=("p", "q"), mode="slow", on=False, name="none")
    assert settings.make(Example, {"limit": "5", "kinds": ""}) == Example(limit=5, kinds=())
    assert settings.make(Example, settings.to_dict(made)) == made


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "many"}, "'count'.*int"),
        ({"count": 2.5}, "'count'"),
        ({"count": True}, "'count'"),
        ({"rate": "fast"}, "'rate'.*float"),
        ({"rate": "nan"}, "'rate'.*float"),
        ({"rate": float("inf")}, "'rate'.*float"),
        ({"on": "perhaps"}, "'on'"),
        ({"mode": "medium"}, "fast | slow"),
        ({"name": 3}, "'name'"),
    ],
)
def test_values_that_make_no_sense(values, message):
    with pytest.raises(BadSetting, match=message) as refused:
        settings.make(Example, values)
    assert refused.value.remedy.startswith(("Write", "Choose"))


def test_an_unknown_setting_gets_a_suggestion():
    with pytest.raises(UnknownName, match="Did you mean 'count'"):
        settings.make(Example, {"cuont": 1})


def test_fields_are_described_inherited_ones_too():
    described = {field.name: field for field in settings.describe(Example)}
    assert described["rate"].help == "How fast."
    assert described["count"].help == "How many, over two lines."
    assert described["limit"].kind == "int | none"
    assert described["mode"].kind == "fast | slow"


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_has_a_docstring(name):
    for field in settings.describe(find(name).load().Settings):
        assert len(field.help) > 10, f"{name}: setting {field.name} is not described"


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_of_every_method_is_valid(name):
    for preset in find(name).load().presets:
        assert make(name, preset=preset).settings is not None


def test_assignments():
    assert settings.parse_assignments(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    for wrong in ("a", "=1"):
        with pytest.raises(BadSetting, match="key=value"):
            settings.parse_assignments([wrong])


def test_recipes(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('method = "dense"\n[settings]\nencoder = "minilm"\n')
    assert read_recipe(path) == Recipe("dense", {"encoder": "minilm"})
    path.write_text('extends = "glen-paper"\n[settings]\nlength = 5\n[expected]\nsplit = "test"\n')
    longer, paper = read_recipe(path), read_recipe("glen-paper")
    assert (longer.method, longer.expected) == ("glen", {"split": "test"})
    assert longer.settings == paper.settings | {"length": 5}
    with pytest.raises(UnknownName, match="glen-papr"):
        read_recipe("glen-papr")
    path.write_text("method = ")
    with pytest.raises(BadInput, match=r"r\.toml"):
        read_recipe(path)
    path.write_text("metod = 'x'")
    with pytest.raises(BadInput, match="metod"):
        read_recipe(path)
    with pytest.raises(BadInput, match="no such"):
        read_recipe(tmp_path / "none.toml")


def test_only_the_preset_paper_reads_a_recipe(monkeypatch):
    read = []

    def reader(name):
        read.append(name)
        return read_recipe(name)

    monkeypatch.setattr("callslip.recipes.read_recipe", reader)
    make("genret", preset="quick")
    make("genret")
    with pytest.raises(BadSetting, match="no preset 'papr'") as caught:
        make("genret", preset="papr")
    assert read == [] and "paper" in caught.value.remedy and "quick" in caught.value.remedy
    index = make("genret", preset="paper")
    assert read == ["genret-paper"]
    assert index.settings == make("genret", read_recipe("genret-paper").settings).settings
    assert list(find("genret").presets()) == find("genret").preset_names()


def test_unknown_methods_and_presets():
    with pytest.raises(UnknownName, match="Did you mean 'dense'"):
        make("dens")
    with pytest.raises(UnknownName, match="bm25"):
        make("bm25+nothing")
    with pytest.raises(UnknownName, match=r"'asi\+'.*\n?.*Did you mean 'asi"):
        make("asi+")
    with pytest.raises(BadSetting, match="preset"):
        make("bm25", preset="huge")


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("dsi-semantic", {"dropout": 3}),
        ("dsi-semantic", {"batch_size": 0}),
        ("dsi-semantic", {"epochs": -1}),
        ("dsi-semantic", {"beam": 0}),
        ("bm25", {"k1": -5}),
        ("bm25", {"b": 2}),
        ("sasrec", {"item_decay": "nan"}),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_any_work(method, values):
    with pytest.raises(BadSetting, match=next(iter(values))):
        make(method, values)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_no_settings_object_holds_a_number_that_is_none(value):
    with pytest.raises(BadSetting, match="item_decay"):
        type(make("sasrec").settings)(item_decay=value)


def test_a_retriever_that_has_its_settings_takes_no_others(small_corpus):
    from callslip import api

    index = make("bm25", {"k1": 2.0})
    assert api.fit(small_corpus, index) is index and len(index.search("apple", k=3)) == 3
    with pytest.raises(BadSetting, match="has its own"):
        api.fit(small_corpus, make("bm25"), settings={"k1": 2.0})


def test_documents_of_ones_own_are_checked_before_a_fit():
    import callslip
    from callslip.errors import BadSetting

    with pytest.raises(BadSetting, match="two documents have the doc_id 'a'"):
        callslip.fit([callslip.Document("a", "one"), callslip.Document("a", "two")], "bm25")
    with pytest.raises(BadSetting, match="document 1 is a str"):
        callslip.fit([callslip.Document("a", "one"), "two"], "bm25")


def test_a_value_keeps_its_trailing_space_where_it_is_a_text():
    values = settings.parse_assignments(
        ["encoder= a/b:query_prompt=query: ,dim=9,document_prompt=passage: ", "epochs = 3 ", "codes=random "]
    )
    made = make("dsi-semantic", values).settings
    assert made.encoder == "a/b:query_prompt=query: ,dim=9,document_prompt=passage: "
    assert made.epochs == 3 and made.codes == "random"


def test_a_spec_is_a_name_with_options():
    options = ("dim", "prompt")
    for spec, name, given in (
        ("minilm", "minilm", {}),
        ("a/b:dim=9", "a/b", {"dim": "9"}),
        ("a/b:prompt=Find, if any: ,dim=9", "a/b", {"prompt": "Find, if any: ", "dim": "9"}),
    ):
        assert settings.split_spec(spec, options) == (name, given) and settings.joined_spec(name, given) == spec
    assert settings.joined_spec("scratch:seed=1", {"dim": 9, "prompt": None}) == "scratch:seed=1,dim=9"
