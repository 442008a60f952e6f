"""The embedded demo corpus, and its answers held against typeshed for every supported Python."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typeshed_client

from callslip.corpus.demo import QUESTIONS, demo_corpus, load_questions
from callslip.corpus.demo_library import HIDDEN, MODULES
from callslip.corpus.documents import Corpus
from callslip.errors import BadInput, BadSetting

VERSIONS = [(3, 11), (3, 12), (3, 13), (3, 14)]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return demo_corpus()


# Documents


def test_it_has_the_announced_size_and_kinds(corpus: Corpus) -> None:
    assert corpus.name == "python-stdlib"
    assert 3000 <= len(corpus) <= 4200
    kinds = {document.metadata["kind"] for document in corpus}
    assert kinds == {"module", "class", "function", "method"}


def test_doc_ids_are_unique_sorted_and_public(corpus: Corpus) -> None:
    doc_ids = corpus.doc_ids
    assert doc_ids == sorted(set(doc_ids))
    assert not [doc_id for doc_id in doc_ids if any(part.startswith("_") for part in doc_id.split("."))]
    assert not set(doc_ids) & HIDDEN


def test_every_document_has_text_and_a_title_that_starts_with_its_name(corpus: Corpus) -> None:
    for document in corpus:
        assert document.text == document.text.strip() != ""
        assert re.fullmatch(re.escape(document.doc_id) + r"(\([\w *,]*\))?", document.title), document.title
        assert " at 0x" not in document.title
        assert document.metadata["module"] in MODULES


def test_every_doc_id_leads_to_the_docstring_it_shows(corpus: Corpus) -> None:
    """An independent walk by plain attribute access must arrive at the same words."""
    for document in corpus:
        module = document.metadata["module"]
        thing = builtins if module == "builtins" else os.path if module == "os.path" else sys.modules[module]
        below = document.doc_id if module == "builtins" else document.doc_id[len(module) + 1 :]
        for part in below.split(".") if document.metadata["kind"] != "module" else []:
            owner, thing = thing, getattr(thing, part)
        # A bound class method written in C may have lost its docstring (ZoneInfo.clear_cache on 3.13).
        doc = thing.__doc__ or inspect.getattr_static(owner, part).__doc__
        assert doc is not None, document.doc_id
        assert document.text.split() == doc.split(), document.doc_id


WRITTEN = """
len str.split dict.get open os.path.join datetime.datetime.now subprocess.run pathlib.Path.exists
random.choice collections.Counter.most_common socket.socket.recv unittest.mock.Mock.assert_called_with
typing.Optional json contextlib.ExitStack.enter_context asyncio.gather
"""
NOT_WRITTEN = """
builtins.len posixpath.join io.open random.Random.choice os.error socket.SocketType secrets.choice typing.Text
contextlib.AsyncExitStack.enter_context
"""


@pytest.mark.parametrize("doc_id", WRITTEN.split())
def test_things_stand_under_the_name_that_people_write(corpus: Corpus, doc_id: str) -> None:
    assert doc_id in corpus.rows()


@pytest.mark.parametrize("doc_id", NOT_WRITTEN.split())
def test_other_names_of_the_same_thing_are_left_out(corpus: Corpus, doc_id: str) -> None:
    assert doc_id not in corpus.rows()


def test_no_document_is_a_bare_signature(corpus: Corpus) -> None:
    for document in corpus:
        name = document.doc_id.rpartition(".")[2]
        assert not re.fullmatch(rf"{re.escape(name)}\([^()]*\)", document.text), document.doc_id


# Questions


def test_there_are_enough_questions_in_both_splits(corpus: Corpus) -> None:
    train, test = (corpus.split(name)[0] for name in ("train", "test"))
    assert len(corpus.queries) == len(train) + len(test) == len(load_questions()) >= 320
    assert len(test) >= 120
    assert 0.55 <= len(train) / len(corpus.queries) <= 0.65
    assert not set(train) & set(test)


def test_every_answer_is_a_document(corpus: Corpus) -> None:
    doc_ids = set(corpus.doc_ids)
    assert not {answer for question in load_questions() for answer in question.answers} - doc_ids
    for split, judgements in corpus.judgements.items():
        asked = [question for question in load_questions() if question.split == split]
        assert [tuple(grades) for grades in judgements.values()] == [question.answers for question in asked]
        assert {grade for grades in judgements.values() for grade in grades.values()} == {1}


def test_test_answers_are_mostly_but_not_only_unseen(corpus: Corpus) -> None:
    seen = {doc_id for grades in corpus.judgements["train"].values() for doc_id in grades}
    shared = [grades for grades in corpus.judgements["test"].values() if seen & set(grades)]
    assert 0.03 < len(shared) / len(corpus.judgements["test"]) < 0.25


def test_no_question_is_asked_twice_in_other_spelling() -> None:
    words = [" ".join(sorted(re.findall(r"\w+", question.text.lower()))) for question in load_questions()]
    assert len(set(words)) == len(words)


def test_no_question_names_its_answer() -> None:
    for question in load_questions():
        for answer in question.answers:
            pattern = rf"(?<![\w.]){re.escape(answer)}(?![\w.])"
            assert not re.search(pattern, question.text, re.IGNORECASE), question
    lexical = [
        q for q in load_questions() if any(a.rpartition(".")[2].lower() in q.text.lower().split() for a in q.answers)
    ]
    assert len(lexical) < 0.3 * len(load_questions())  # most questions do not even name the last part


# Stability


def test_it_is_the_same_in_another_process_with_another_hash_seed(corpus: Corpus) -> None:
    code = "from callslip.corpus.demo import demo_corpus; print(demo_corpus().fingerprint()['sha256'])"
    for seed in "1", "2":
        done = _python(code, PYTHONHASHSEED=seed)
        assert done.stdout.strip() == corpus.fingerprint()["sha256"]
    assert demo_corpus() == corpus


def test_building_it_prints_nothing_warns_of_nothing_and_touches_nothing(tmp_path: Path) -> None:
    code = """
import os, sys, threading, warnings
from callslip.corpus.demo_library import library_documents
warnings.simplefilter("error")
before = dict(os.environ), os.getcwd(), sys.path[:], warnings.filters[:], threading.active_count()
library_documents()
assert before == (dict(os.environ), os.getcwd(), sys.path[:], warnings.filters[:], threading.active_count())
unwanted = {"torch", "tkinter", "turtle", "antigravity", "this", "idlelib", "readline"} & set(sys.modules)
assert not unwanted, unwanted
"""
    done = _python(code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_building_it_is_quick() -> None:
    code = """
import time
from callslip.corpus.demo import demo_corpus
start = time.process_time(); demo_corpus(); print(time.process_time() - start)
"""
    assert float(_python(code).stdout) < 3


def _python(code: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=60)


# Limit


@pytest.mark.parametrize("limit", [1, 50, 1000])
def test_a_limit_keeps_that_many_documents_in_order_and_only_answerable_questions(corpus: Corpus, limit: int) -> None:
    small = demo_corpus(limit)
    assert len(small) == limit
    rows = corpus.rows()
    assert [rows[doc_id] for doc_id in small.doc_ids] == sorted(rows[doc_id] for doc_id in small.doc_ids)
    kept = set(small.doc_ids)
    assert all(set(grades) <= kept for judged in small.judgements.values() for grades in judged.values())
    for query_id, query in small.queries.items():
        assert corpus.queries[query_id] == query
    if limit == 50:
        assert kept <= {answer for question in load_questions() for answer in question.answers}
        assert small.judgements["train"] and small.judgements["test"]


def test_a_limit_above_the_size_changes_nothing_and_one_below_one_is_refused(corpus: Corpus) -> None:
    assert demo_corpus(10**6) == corpus
    with pytest.raises(BadSetting):
        demo_corpus(0)


# The question file


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("train\tonly two fields", None),
        ("train\ta\tlen\tfour", None),
        ("dev\ta question\tlen", "split"),
        ("train\t \tlen", "question"),
        ("train\tThe First Question\tlen", "question"),
        ("test\ta question\t", "answers"),
        ("test\ta question\tlen len", "answers"),
        ("", None),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: str, field: str | None) -> None:
    path = tmp_path / "questions.tsv"
    path.write_text(f"split\tquestion\tanswers\ntest\tthe first question\tlen\n{line}\ntest\tlast\tlen\n")
    with pytest.raises(BadInput) as caught:
        load_questions(path)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert f"{path}:3" in str(caught.value)


def test_a_file_without_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "questions.tsv"
    path.write_text("train\ta question\tlen\n")
    with pytest.raises(BadInput, match="column names"):
        load_questions(path)


def test_the_file_is_plain_text() -> None:
    raw = QUESTIONS.read_bytes()
    assert raw.endswith(b"\n") and b"\r" not in raw and b'"' not in raw


# Every supported Python, by typeshed


@cache
def _resolver(version: tuple[int, int]) -> typeshed_client.Resolver:
    return typeshed_client.Resolver(typeshed_client.get_search_context(version=version, search_path=[]))


@pytest.fixture(scope="module")
def parsed_once() -> Iterator[None]:
    """The stubs are the same files for every version: parse each once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typeshed_client.parser, "parse_stub_file", cache(typeshed_client.parser.parse_stub_file))
        yield


def _known(version: tuple[int, int], doc_id: str) -> bool:
    """Whether typeshed knows the name in that version, also as a member that a class inherits."""
    resolver = _resolver(version)
    parts = doc_id.split(".")
    for size in range(len(parts), -1, -1):
        module = tuple(parts[:size]) or ("builtins",)
        if resolver.get_module(typeshed_client.ModulePath(module)).exists:
            below = parts[size:]
            return not below or _has(resolver, module, below)
    return False


def _has(resolver: typeshed_client.Resolver, module: tuple[str, ...], names: list[str]) -> bool:
    found = resolver.get_name(typeshed_client.ModulePath(module), names[0])
    if found is None or len(names) == 1:
        return found is not None
    if isinstance(found, typeshed_client.ImportedInfo):
        module, found = found.source_module, found.info
    return isinstance(found, typeshed_client.NameInfo) and _member(resolver, module, found, names[1])


def _member(
    resolver: typeshed_client.Resolver, module: tuple[str, ...], owner: typeshed_client.NameInfo, name: str
) -> bool:
    if name in (owner.child_nodes or {}):
        return True
    for base in owner.ast.bases if isinstance(owner.ast, ast.ClassDef) else []:
        while isinstance(base, ast.Subscript):  # Generic[T]
            base = base.value
        path = ast.unparse(base).split(".")
        home = resolver.get_name(typeshed_client.ModulePath(module), path[0])
        if isinstance(home, tuple) and not isinstance(home, (typeshed_client.NameInfo, typeshed_client.ImportedInfo)):
            places = [(tuple(home), path[1:])]  # `_socket.socket`: the first part is a module
        else:
            places = [(module, path), (("builtins",), path)]
        if any(below and _has(resolver, place, [*below, name]) for place, below in places):
            return True
    return False


@pytest.mark.usefixtures("parsed_once")
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"{version[0]}.{version[1]}")
def test_every_answer_exists_in_every_supported_python(version: tuple[int, int]) -> None:
    answers = {answer for question in load_questions() for answer in question.answers}
    assert sorted(answer for answer in answers if not _known(version, answer)) == []


@pytest.mark.usefixtures("parsed_once")
def test_the_check_against_typeshed_can_tell() -> None:
    assert _known((3, 11), "socket.socket.recv") and _known((3, 12), "pathlib.Path.walk")
    assert not _known((3, 11), "pathlib.Path.walk") and not _known((3, 11), "itertools.batched")
    assert not _known((3, 14), "pkgutil.find_loader") and not _known((3, 13), "imp.reload")
    assert not _known((3, 13), "str.no_such_method") and not _known((3, 13), "no_such_builtin")


def test_packages_that_patch_the_library_do_not_change_it(corpus: Corpus) -> None:
    """torch replaces inspect.getfile, and transformers adds methods to logging.Logger."""
    code = (
        "import torch, transformers; from callslip.corpus.demo import demo_corpus; "
        "print(demo_corpus().fingerprint()['sha256'])"
    )
    assert _python(code).stdout.strip() == corpus.fingerprint()["sha256"]
