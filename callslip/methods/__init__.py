"""The methods, by name. A method's file is imported only when it is asked for."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from callslip import settings as settings_of
from callslip.errors import BadSetting, UnknownName

if TYPE_CHECKING:
    from callslip.index.retriever import Retriever


@dataclass(frozen=True)
class Method:
    """Where a method's class is, the settings that make it this method, and a line about it."""

    where: str
    about: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> type[Retriever]:
        module, _, name = self.where.partition(":")
        return getattr(importlib.import_module(f"callslip.methods.{module}"), name)


METHODS: dict[str, Method] = {
    "bm25": Method("bm25:BM25", "words in common, k1=0.9 b=0.4 as Lucene users have it"),
    "bm25-classic": Method("bm25:BM25", "words in common, k1=1.5 b=0.75", {"k1": 1.5, "b": 0.75}),
    "dense": Method("dense:Dense", "nearest vectors of the embedded encoder"),
    "hybrid": Method("hybrid:Hybrid", "reciprocal rank fusion; any a+b+c is one, this is bm25+dense"),
    "dsi-semantic": Method("dsi:DSI", "codes by hierarchical k-means, a decoder that writes them"),
    "dsi-random": Method("dsi:DSI", "the control: the same decoder, random codes", {"codes": "random"}),
    "dsi-atomic": Method("dsi:DSI", "one token per document", {"codes": "atomic"}),
    "dsi-naive": Method("dsi:DSI", "the row number, digit by digit", {"codes": "naive"}),
    "tied-atomic": Method("tied_atomic:TiedAtomic", "one token per document, tied to the model's own output for it"),
    "dsi-qg": Method("dsi:DSIQG", "documents known by pseudo-queries only, never by their text"),
    "nci": Method("nci:NCI", "codes by hierarchical k-means, output weights adapted by the prefix"),
    "ultron-pq": Method("ultron_pq:UltronPQ", "codes by product quantisation, one stretch of the vector a level"),
    "genret": Method("genret:GenRet", "codes that the model learns itself, as an auto-encoder of documents"),
    "asi": Method("asi:ASI", "codes and the decoder that writes them learned at once", {"criteria_weight": 0.0}),
    "asi++": Method("asi:ASI", "the same, with criteria that spread the codes evenly"),
    "uri": Method(
        "uri:URI", "codes that the decoder itself builds from queries and items, level by level, and a ranker"
    ),
    "glen": Method("glen:GLEN", "codes of words that the model itself writes, searched exactly by one table"),
    "popularity": Method("popularity:Popularity", "logs: what most users had, the same for everybody"),
    "item-knn": Method("item_knn:ItemKNN", "logs: items that the same users had, nothing trained"),
    "sasrec": Method("sasrec:SASRec", "logs: nearest items to a transformer's state after the history"),
    "tiger": Method("tiger:TIGER", "codes by RQ-VAE, one more level for collisions; made for logs"),
    "deep-retrieval": Method("deep_retrieval:DeepRetrieval", "paths learned with the model by turns; made for logs"),
    "recforest": Method("recforest:RecForest", "paths in several balanced trees, their probabilities added; for logs"),
}

DEFAULT = "dsi-semantic"


def find(name: str) -> Method:
    """The method of that name; `a+b` is the hybrid of a and b."""
    if "+" in name and name not in METHODS:
        parts = tuple(part.strip() for part in re.split(r"(?<!\+)\+(?!\+)", name))  # asi++ is one name
        for part in parts:
            if not part:  # a name with a sign too many or too few
                raise UnknownName("method", name, METHODS)
            if part not in METHODS:
                raise UnknownName("method", part, METHODS)
        return Method("hybrid:Hybrid", f"reciprocal rank fusion of {', '.join(parts)}", {"parts": parts})
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


def make(name: str, values: Mapping[str, Any] | None = None, *, preset: str | None = None) -> Retriever:
    """An unfitted retriever: the method's own settings, then the preset's, then the given values."""
    method = find(name)
    cls = method.load()
    chosen: dict[str, Any] = dict(method.settings)
    if preset is not None:
        if preset not in cls.presets:
            known = ", ".join(cls.presets) or "none"
            raise BadSetting(f"method {name!r} has no preset {preset!r}", f"Its presets: {known}.")
        chosen |= cls.presets[preset]
    chosen |= values or {}
    dotted = [key for key in chosen if "." in key]
    if dotted:  # part.key=value is for a part of a hybrid
        given = tuple(f"{key}={chosen.pop(key)}" for key in dotted)
        chosen["options"] = (*chosen.get("options", ()), *given)
    return cls(settings_of.make(cls.Settings, chosen), method=name)
