"""Settings are dataclasses in the methods' folders, with a docstring under each field.

A method's settings are its own fields and those of the groups that it opts into (encoder, texts, decoder, …), which are
base classes. This module parses values from `key=value` strings and TOML files, and describes the fields for `callslip
methods` and the docs.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from callslip.errors import BadSetting, UnknownName

S = TypeVar("S")
IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""Description of each type of setting, for error messages."""


@dataclass(frozen=True)
class Field:
    """Description of a setting."""

    name: str
    kind: str
    default: Any
    help: str
    group: str
    """Heading of the group that the setting belongs to; empty for the method's own."""


@functools.cache
def describe(settings: type) -> tuple[Field, ...]:
    """Every field of a settings class with its docstring: the method's own, then those of its groups."""
    helps: dict[str, str] = {}
    groups: dict[str, str] = {}
    for base in reversed(settings.__mro__):
        if dataclasses.is_dataclass(base):
            helps |= _field_docstrings(base)
            for name in base.__annotations__:
                groups.setdefault(name, vars(base).get("headings", {}).get(name, vars(base).get("heading", "")))
    hints = typing.get_type_hints(settings)
    fields = [
        Field(f.name, _kind_name(hints[f.name]), _default(f), helps.get(f.name, ""), groups[f.name])
        for f in dataclasses.fields(settings)  # type: ignore[arg-type]
    ]
    order = list(dict.fromkeys(["", *(field.group for field in fields)]))
    return tuple(sorted(fields, key=lambda field: order.index(field.group)))


def check_all(settings: Any) -> None:
    """Run the `check` of a settings object's class and of each of its groups: the `__post_init__` of every group."""
    for base in reversed(type(settings).__mro__):
        if "check" in vars(base):
            vars(base)["check"](settings)


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return f.default


def _field_docstrings(cls: type) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    return {
        here.target.id: " ".join(after.value.value.split())
        for here, after in itertools.pairwise(body)
        if isinstance(here, ast.AnnAssign)
        and isinstance(here.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _kind_name(hint: Any) -> str:
    options = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, options))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " | ".join("none" if o is type(None) else _kind_name(o) for o in options)
    if typing.get_origin(hint) is tuple:
        return f"{_kind_name(options[0])},…"
    return getattr(hint, "__name__", str(hint))


def make(settings: type[S], values: Mapping[str, Any] | None = None) -> S:
    """Build a settings object from values that may be strings (as typed on a command line)."""
    hints = typing.get_type_hints(settings)
    known = {f.name for f in dataclasses.fields(settings)}  # type: ignore[arg-type]
    parsed = {}
    for name, value in (values or {}).items():
        if name not in known:
            raise UnknownName("setting", name, known)
        parsed[name] = _convert(name, value, hints[name])
    return settings(**parsed)


def _convert(name: str, value: Any, hint: Any) -> Any:
    options = typing.get_args(hint)
    if isinstance(value, str) and (hint is not str or "=" not in value):  # a name:prompt=text may end with a space
        value = value.strip()
    if typing.get_origin(hint) is typing.Literal:
        if value not in options:
            raise BadSetting(f"setting {name!r}: {value!r} is not a valid choice", f"Choose: {_kind_name(hint)}.")
        return value
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        (hint,) = [o for o in options if o is not type(None)]
        return _convert(name, value, hint)
    if typing.get_origin(hint) is tuple:
        parts = [p.strip() for p in value.split(",") if p.strip()] if isinstance(value, str) else list(value)
        return tuple(_convert(name, part, options[0]) for part in parts)
    try:
        return _convert_plain(value, hint)
    except (TypeError, ValueError, KeyError):
        remedy = f"Write {IN_WORDS[hint]}." if hint in IN_WORDS else ""
        raise BadSetting(f"setting {name!r}: cannot parse {value!r} as {_kind_name(hint)}", remedy) from None


def _convert_plain(value: Any, hint: Any) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[str(value).lower()]
    if hint is int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    if hint is float:
        if isinstance(value, bool) or not math.isfinite(number := float(value)):
            raise ValueError
        return number
    if hint is str and not isinstance(value, str):
        raise ValueError
    return hint(value) if hint is not Any else value


def check_range(settings: Any, **least: float) -> None:
    """Reject numbers below a minimum, before any work is done."""
    for name, lowest in least.items():
        value = getattr(settings, name)
        if value is not None and not lowest <= value < math.inf:
            raise BadSetting(f"setting {name!r} is {value}", f"Use {lowest:g} or more.")


def check_positive(settings: Any, *names: str) -> None:
    """Reject numbers that are not greater than 0."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 < value < math.inf:
            raise BadSetting(f"setting {name!r} is {value}", "Use a number greater than 0.")


def check_share(settings: Any, *names: str, below: bool = False) -> None:
    """Reject numbers outside [0, 1], or outside [0, 1) with `below`."""
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value <= 1 or (below and value == 1):
            raise BadSetting(
                f"setting {name!r} is {value}", "Use 0 or more, and less than 1." if below else "Use 0 to 1."
            )


def parse_assignments(assignments: list[str], option: str = "--set") -> dict[str, str]:
    """`["epochs=5", "width=64"]` -> `{"epochs": "5", "width": "64"}`."""
    values = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            example = "epochs=5" if option == "--set" else "text=body"
            raise BadSetting(
                f"cannot parse {option} {assignment!r}", f"Write it as key=value, for example {option} {example}."
            )
        values[name.strip()] = value.lstrip()
    return values


def split_spec(spec: str, options: Iterable[str]) -> tuple[str, dict[str, str]]:
    """`"minilm:dim=64,max_length=32"` -> `"minilm", {"dim": "64", "max_length": "32"}`, if these are the options.

    A value extends to the next option, so that it may contain commas, colons and spaces.
    """
    name, *given = re.split(rf"[:,](?=(?:{'|'.join(options)})=)", spec)
    return name.strip(), {key: value for key, _, value in (one.partition("=") for one in given)}


def joined_spec(name: str, options: Mapping[str, Any]) -> str:
    """A name and its options as one text, which `split_spec` reads; an option that is None is left out."""
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return f"{name}{',' if ':' in name else ':'}{','.join(given)}" if given else name


def to_dict(settings: Any) -> dict[str, Any]:
    """A settings object as plain values for JSON."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(settings).items()}
