"""Registry of methods. A method's module is imported only when it is used."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from callslip import settings as settings_of
from callslip.errors import BadSetting, UnknownName
from callslip.runtime import plugins

if TYPE_CHECKING:
    from callslip.corpus.documents import Corpus
    from callslip.index.retriever import Retriever


@dataclass(frozen=True)
class Method:
    """A method: module and class, a one-line description, and the settings that define it."""

    where: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None
    """The recipe that is the preset `paper`."""
    plugin: plugins.Plugin | None = None
    """The plugin that brings the method, if it is another package's."""
    cls: type[Retriever] | None = None
    """The class itself, if it was given instead of a name."""

    def load(self) -> type[Retriever]:
        if self.cls is not None:
            return self.cls
        if self.plugin is not None:
            return checked(self.plugin.load())
        module, _, name = self.where.partition(":")
        return getattr(importlib.import_module(f"callslip.methods.{module}"), name)

    def preset_names(self) -> list[str]:
        """The method's own presets, and `paper` if it has a recipe."""
        return list(dict.fromkeys([*self.load().presets, *(["paper"] if self.paper is not None else [])]))

    def preset(self, name: str) -> dict[str, Any]:
        """The settings of a preset, one of `preset_names`. Only `paper` reads a recipe."""
        if name == "paper" and self.paper is not None:
            from callslip.recipes import read_recipe

            return self.recipe_settings(read_recipe(self.paper).settings)
        return dict(self.load().presets[name])

    def recipe_settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a recipe, possibly written for an earlier version, under their present names."""
        own = self.load().Settings
        if values.keys() <= names_of(own):
            return dict(values)
        from callslip.index.retired import translated

        return translated(own, values, self.settings)

    def presets(self) -> dict[str, dict[str, Any]]:
        """The settings of every preset, by name."""
        return {name: self.preset(name) for name in self.preset_names()}


def names_of(settings: type) -> set[str]:
    """The names of the settings that a class has."""
    return {one.name for one in fields(settings)} if is_dataclass(settings) else set()


@dataclass(frozen=True)
class NoSettings:
    """The settings of a method that has none."""


METHODS: dict[str, Method] = {
    "bm25": Method("bm25:BM25", "lexical matching, with Lucene's usual k1=0.9 and b=0.4"),
    "bm25-classic": Method("bm25:BM25", "lexical matching, with k1=1.5 and b=0.75", {"k1": 1.5, "b": 0.75}),
    "dense": Method("dense:Dense", "nearest vectors of the embedded encoder"),
    "hybrid": Method("hybrid:Hybrid", "weighted sum of scaled scores; any a+b+c is one, this is bm25+dense"),
    "memory": Method(
        "memory:Memory",
        "the control of methods that learn from judged queries: the nearest of a document and its queries",
    ),
    "tied-residual": Method(
        "tied_residual:TiedResidual",
        "codes that begin at dense retrieval, with words and a memory of judged queries",
    ),
    "dsi-semantic": Method(
        "dsi:DSI", "codes by hierarchical k-means, and a decoder that writes them", paper="dsi-paper"
    ),
    "dsi-random": Method("dsi:DSI", "the control: the same decoder with random codes", {"codes": "random"}),
    "dsi-atomic": Method("dsi:DSI", "one token per document", {"codes": "atomic"}),
    "dsi-naive": Method("dsi:DSI", "the row number, digit by digit", {"codes": "naive"}),
    "tied-atomic": Method(
        "tied_atomic:TiedAtomic",
        "one token per document, tied to the model's output for its text",
        paper="tied-atomic-paper",
    ),
    "dense-trained": Method(
        "tied_atomic:TiedAtomic",
        "a dual encoder: the encoder itself, fine-tuned as tied-atomic is",
        {"state": "encoder", "train_encoder": "all"},
        paper="dense-trained-paper",
    ),
    "dsi-qg": Method(
        "dsi:DSI",
        "DSI trained on pseudo-queries only, never on a document's text",
        {"training_texts": ("title", "sentences")},
    ),
    "nci": Method("nci:NCI", "codes by hierarchical k-means, output weights adapted by the prefix", paper="nci-paper"),
    "ultron-pq": Method("ultron_pq:UltronPQ", "codes by product quantisation", paper="ultron-pq-paper"),
    "genret": Method(
        "genret:GenRet", "codes learned by the model itself, as a document auto-encoder", paper="genret-paper"
    ),
    "asi": Method(
        "asi:ASI",
        "codes and the decoder that writes them, learned jointly",
        {"criteria_weight": 0.0},
        paper="asi-paper",
    ),
    "asi++": Method("asi:ASI", "ASI with three criteria for balanced codes", paper="asi-paper"),
    "uri": Method(
        "uri:URI",
        "codes that the decoder builds from queries and items, level by level, and a ranker",
        paper="uri-paper",
    ),
    "glen": Method("glen:GLEN", "codes of words that the model itself writes, scored exactly", paper="glen-paper"),
    "popularity": Method("popularity:Popularity", "logs: the most popular items, the same for every user"),
    "item-knn": Method("item_knn:ItemKNN", "logs: items with users in common, without training"),
    "seqrules": Method("seqrules:SeqRules", "logs: items that came soon after those of the history, without training"),
    "transitions": Method("transitions:Transitions", "logs: a walk over the graph of consecutive items"),
    "tied-log": Method("tied_log:TiedLog", "logs: codes that begin at sequential rules and texts, without training"),
    "sasrec": Method("sasrec:SASRec", "logs: items nearest to a transformer's state after the history"),
    "tiger": Method(
        "tiger:TIGER", "codes by RQ-VAE, with an extra level for collisions; for logs", paper="tiger-paper"
    ),
    "deep-retrieval": Method(
        "deep_retrieval:DeepRetrieval",
        "paths and model learned alternately; for logs",
        paper="deep-retrieval-paper",
    ),
    "recforest": Method(
        "recforest:RecForest",
        "paths in several balanced trees, their probabilities added; for logs",
        paper="recforest-paper",
    ),
}

TEXT_CONTROLS = ("bm25", "dense", "hybrid", "memory", "dsi-random")
LOG_CONTROLS = ("popularity", "item-knn", "seqrules", "transitions", "dsi-random")
"""Controls that a comparison always includes: what they reach is no merit of learned codes."""
DEFAULT = "tied-residual"
"""The method of a fit that names none."""
DEFAULT_FOR_LOGS = "tied-log"
"""The same where queries are histories of items."""
DEFAULT_CODES = "dsi-semantic"
"""The method whose codes are made where only codes are asked for."""
NAME_LENGTH = 100
"""Longest name of a method that a manifest takes."""


def default_for(corpus: Corpus) -> str:
    """The method of a fit that names none, for this corpus."""
    from callslip.corpus.documents import has_histories

    return DEFAULT_FOR_LOGS if has_histories(corpus) else DEFAULT


def known() -> dict[str, Method]:
    """All methods by name: callslip's own, and those of other packages."""
    brought = {
        name: Method(plugin.where, f"of the package {plugin.package} {plugin.version}", plugin=plugin)
        for name, plugin in plugins.plugins(plugins.METHODS).items()
    }
    return brought | METHODS


def find(name: str | type) -> Method:
    """The method of that name; `a+b` is the hybrid of a and b. A class is a method by itself."""
    if isinstance(name, type):
        cls = checked(name)
        return Method(f"{cls.__module__}:{cls.__qualname__}", (cls.__doc__ or "").partition("\n")[0], cls=cls)
    if name in METHODS:
        return METHODS[name]
    if "+" in name:
        parts = tuple(part.strip() for part in re.split(r"(?<!\+)\+(?!\+)", name))  # asi++ is one name
        for part in parts:
            if not part:  # a stray + in the name
                raise UnknownName("method", name, known())
            if part not in METHODS and part not in known():
                raise UnknownName("method", part, known())
        return Method("hybrid:Hybrid", f"fusion of {', '.join(parts)}", {"parts": parts})
    if name not in known():
        raise UnknownName("method", name, known())
    return known()[name]


def checked(cls: Any) -> type[Retriever]:
    """The class of a method, if it keeps the contract of one."""
    from callslip.index.retriever import Retriever

    if not isinstance(cls, type) or not issubclass(cls, Retriever):
        shown = getattr(cls, "__qualname__", type(cls).__qualname__)
        raise BadSetting(f"{shown} is not a method", "A method is a subclass of callslip.Retriever.")
    return cls


def name_of(cls: type) -> str:
    """The name of a class as a method: a plugin's or one of ours, or else module:class."""
    where = f"{cls.__module__}:{cls.__qualname__}"
    for name, plugin in plugins.plugins(plugins.METHODS).items():
        if plugin.where == where:
            return name
    for name, method in METHODS.items():
        if method.where.endswith(f":{cls.__qualname__}") and method.load() is cls:
            return name
    return where[:NAME_LENGTH]


def make_saved(name: str | type, values: Mapping[str, Any]) -> Retriever:
    """An unfitted retriever of the settings that a saved index names, possibly of an earlier version."""
    method = find(name)
    cls = method.load()
    if values.keys() <= names_of(cls.Settings):
        return make(name, getattr(cls.Settings, "former_defaults", {}) | dict(values))
    from callslip.index.retired import saved_settings

    settings: Any = saved_settings(cls.Settings, values, method.settings)
    return cls(settings, method=name if isinstance(name, str) else name_of(name))


def make(name: str | type, values: Mapping[str, Any] | None = None, *, preset: str | None = None) -> Retriever:
    """An unfitted retriever: the method's own settings, then the preset's, then the given values."""
    method = find(name)
    cls = method.load()
    chosen: dict[str, Any] = dict(method.settings)
    if preset is not None:
        names = method.preset_names()
        if preset not in names:
            raise BadSetting(f"method {name!r} has no preset {preset!r}", f"Its presets: {', '.join(names) or 'none'}.")
        chosen |= method.preset(preset)
    chosen |= values or {}
    dotted = [key for key in chosen if "." in key]
    if dotted:  # part.key=value is for a part of a hybrid
        given = tuple(f"{key}={chosen.pop(key)}" for key in dotted)
        chosen["options"] = (*chosen.get("options", ()), *given)
    own = cls.Settings if cls.Settings is not object else NoSettings
    try:
        settings: Any = settings_of.make(own, chosen)
    except UnknownName as error:
        from callslip.index.retired import spelling_error

        raise spelling_error(own, error) from None
    return cls(settings, method=name if isinstance(name, str) else name_of(name))
