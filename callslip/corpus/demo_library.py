"""Reads the standard library's documentation from the running interpreter: one document per public name.

The list of modules is explicit because importing every module is not safe: some open a browser, print a poem,
touch the terminal or raise a deprecation warning. An object that several modules share is kept once, under its
usual name (`os.path.join`, not `posixpath.join`).
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from callslip.corpus.documents import Document

# Modules of Python 3.11 to 3.14; modules that the platform lacks are skipped. Excluded on purpose: modules removed
# in 3.12 or 3.13; modules with side effects on import (antigravity, this, readline) or that import one (pdb,
# doctest); Tk, which depends on the machine; tests and internals; and rarely used modules (curses).
_MODULES = """
builtins
abc argparse array ast asyncio atexit base64 binascii bisect bz2 calendar collections collections.abc colorsys
concurrent.futures configparser contextlib contextvars copy cProfile csv dataclasses datetime dbm decimal
difflib email email.message email.mime.multipart email.mime.text email.parser email.utils enum errno
faulthandler filecmp fileinput fnmatch fractions ftplib functools gc getopt getpass gettext glob graphlib gzip
hashlib heapq hmac html html.parser http http.client http.cookies http.server importlib importlib.machinery
importlib.metadata importlib.resources importlib.util inspect io ipaddress itertools json keyword linecache
locale logging logging.config logging.handlers lzma marshal math mimetypes mmap multiprocessing
multiprocessing.pool multiprocessing.shared_memory netrc numbers operator os os.path pathlib pickle pkgutil
platform plistlib pprint pstats queue quopri random re reprlib resource runpy sched secrets select selectors
shelve shlex shutil signal smtplib socket socketserver sqlite3 ssl statistics string struct subprocess sys
sysconfig tarfile tempfile textwrap threading time timeit token tokenize tomllib traceback tracemalloc types
typing unicodedata unittest unittest.mock urllib.error urllib.parse urllib.request uuid warnings wave weakref
webbrowser xml.dom.minidom xml.etree.ElementTree xml.sax.saxutils zipfile zlib zoneinfo
"""
MODULES = tuple(_MODULES.split())

# Public names that nobody looks for: aliases, base classes of a better-known class (whose methods are then listed
# under that class: `Mock.assert_called_with`), and duplicates of `Decimal`'s arithmetic. Also the hooks that
# programs such as pytest and IPython replace, since the corpus must not depend on the program that builds it.
_HIDDEN = """
asyncio.BaseProtocol asyncio.BaseTransport asyncio.BufferedProtocol asyncio.DatagramTransport
asyncio.ReadTransport asyncio.SelectorEventLoop asyncio.SubprocessTransport asyncio.Transport
asyncio.WriteTransport decimal.Context inspect.getfile logging.config.BaseConfigurator logging.config.DictConfigurator
logging.config.dictConfigClass socket.SocketType sys.breakpointhook sys.displayhook sys.excepthook
sys.unraisablehook threading.excepthook unicodedata.UCD unittest.mock.NonCallableMock
urllib.request.FancyURLopener urllib.request.URLopener warnings.formatwarning warnings.showwarning
xml.sax.saxutils.XMLFilterBase xml.sax.saxutils.XMLGenerator
"""
HIDDEN = frozenset(_HIDDEN.split())

BARE_SIGNATURE = re.compile(r"(\([^()]*\))?\.?")


@dataclass(slots=True)
class Entry:
    """A name under which an object was found."""

    name: str
    module: str
    kind: str
    thing: Any
    preference: tuple[int, ...]


def library_documents() -> list[Document]:
    """One document for every public module, class, function and method with a docstring, sorted by doc_id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names are documented too
        modules = {name: module for name in MODULES if (module := _import(name)) is not None}
        best: dict[int, Entry] = {}
        for entry in _top_level(modules):
            _offer(best, entry)
        classes = sorted((e for e in best.values() if isinstance(e.thing, type)), key=lambda e: e.preference)
        public = {entry.thing for entry in classes}
        for entry in classes:
            for method in _methods(entry, public):
                _offer(best, method)
        entries = sorted(best.values(), key=lambda entry: entry.name)
        documents = [document for entry in entries if (document := _document(entry)) is not None]
    return documents


def _import(name: str) -> types.ModuleType | None:
    if name == "os.path":
        import os

        return os.path
    try:
        return importlib.import_module(name)
    except ImportError:  # curses on Windows, or a Python built without ssl
        return None


def _offer(best: dict[int, Entry], entry: Entry) -> None:
    """Keep the preferred name of an object. Its id can be a key because `entry` keeps the object alive."""
    key = id(_unwrap(entry.thing))
    if key not in best or entry.preference < best[key].preference:
        best[key] = entry


def _unwrap(thing: Any) -> Any:
    """The function inside a bound method: `random.choice` and `random.Random.choice` are one thing."""
    if isinstance(thing, (types.MethodType, classmethod, staticmethod)):
        return thing.__func__
    return thing


def _top_level(modules: dict[str, types.ModuleType]) -> Iterator[Entry]:
    for order, (module_name, module) in enumerate(modules.items()):
        yield Entry(module_name, module_name, "module", module, (0, order))
        for attribute in _public_names(module_name, module):
            thing = getattr(module, attribute, None)
            kind = _kind(thing)
            name = attribute if module_name == "builtins" else f"{module_name}.{attribute}"
            if kind is None or name in HIDDEN:
                continue
            alias = getattr(thing, "__name__", attribute) != attribute
            home = getattr(thing, "__module__", None) != module_name and module_name != "builtins"
            yield Entry(name, module_name, kind, thing, (int(alias), int(home), order))


def _public_names(module_name: str, module: types.ModuleType) -> list[str]:
    """`__all__` if there is one, otherwise the public names defined in the module or its private counterpart."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        names = set(declared)
    elif module_name == "builtins":  # `open` reports io as its module
        names = set(vars(module))
    else:
        names = {name for name, thing in vars(module).items() if _defined_in(module_name, thing)}
    return sorted(name for name in names if not name.startswith("_"))


def _defined_in(module_name: str, thing: Any) -> bool:
    home = getattr(thing, "__module__", None) or module_name
    return home in (module_name, f"_{module_name}") or str(home).startswith(f"{module_name}.")


def _kind(thing: Any) -> str | None:
    """class, function, or None for anything else: constants, submodules, objects added by other packages."""
    if _foreign(thing):
        return None
    if isinstance(thing, type):
        return "class"
    if inspect.isroutine(thing) or hasattr(thing, "__wrapped__"):  # `__wrapped__`: functions decorated with lru_cache
        return "function"
    if type(thing).__module__ == "typing" and type(thing).__name__.endswith("SpecialForm"):
        return "class"
    return None


def _foreign(thing: Any) -> bool:
    """Whether another package added the object, as transformers adds methods to `logging.Logger`."""
    home = getattr(_unwrap(thing), "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] not in sys.stdlib_module_names


def _methods(owner: Entry, public: set[type]) -> Iterator[Entry]:
    """Methods of a class and of its undocumented bases, such as `_socket.socket` under `socket.socket`."""
    mro = owner.thing.__mro__
    seen: set[str] = set()
    for depth, base in enumerate(mro):
        names = sorted(name for name in vars(base) if not name.startswith("_") and name not in seen)
        seen.update(names)  # a class overrides the names of its bases
        if base is not owner.thing and base in public:
            continue
        for name in names:
            thing = vars(base)[name]
            if _foreign(thing) or not (inspect.isroutine(thing) or isinstance(thing, (classmethod, staticmethod))):
                continue
            if any(_same_doc(thing, vars(other).get(name)) for other in mro[depth + 1 :] if other in public):
                continue  # an override with the docstring of its base
            # After every module-level name of the same function; `ExitStack` before `AsyncExitStack`.
            preference = (2, depth, *owner.preference, len(owner.name))
            yield Entry(f"{owner.name}.{name}", owner.module, "method", thing, preference)


def _same_doc(thing: Any, other: Any) -> bool:
    return other is not None and getattr(thing, "__doc__", None) == getattr(other, "__doc__", None)


def _document(entry: Entry) -> Document | None:
    doc = getattr(_unwrap(entry.thing), "__doc__", None)
    if not isinstance(doc, str):
        return None
    text = inspect.cleandoc(doc).strip()
    if _says_nothing(text, entry):
        return None
    title = entry.name if entry.kind == "module" else entry.name + _parameters(entry)
    return Document(entry.name, text, title, {"module": entry.module, "kind": entry.kind})


def _says_nothing(text: str, entry: Entry) -> bool:
    """Whether a docstring was generated: a bare signature (named tuples, AST nodes) or an enum's default."""
    rest = text.removeprefix(entry.name.rpartition(".")[2])
    return not text or text == "An enumeration." or (rest != text and BARE_SIGNATURE.fullmatch(rest) is not None)


def _parameters(entry: Entry) -> str:
    """The parameter names, without defaults and annotations, which vary with the version or even the run."""
    if entry.kind == "class" and not isinstance(entry.thing, type):
        return ""  # `typing.Optional` is subscripted, not called
    try:
        names = list(inspect.signature(_unwrap(entry.thing)).parameters.values())
    except Exception:  # signatures of C functions and unusual metaclasses may raise anything
        return ""
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [stars.get(p.kind, "") + p.name for p in names if p.name not in {"self", "cls", "type"}]
    return f"({', '.join(shown)})"
