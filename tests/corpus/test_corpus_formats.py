"""What is written in a format is what is read from it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus import Document, Query, load_corpus, load_judgements, load_queries
from callslip.errors import BadInput, BadSetting, UnknownName

# Everything that UTF-8 can carry, except NUL, which no format takes.
any_text = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=40)
any_id = any_text.filter(lambda text: text.strip())
plain_text = any_text.map(lambda text: "".join(c for c in text if c not in "\t\r\n"))
plain_id = plain_text.filter(lambda text: text.strip())
json_value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
FEW = settings(max_examples=60, deadline=None)


NO_FIELDS = st.just({})


def documents_of(ids, text, metadata=NO_FIELDS):
    names = st.lists(ids, unique=True, min_size=1, max_size=6)
    return names.flatmap(
        lambda found: st.tuples(*(st.builds(Document, st.just(i), text, text, metadata) for i in found)).map(list)
    )


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def as_json(document, escape):
    row = {
        "_id": document.doc_id,
        "title": document.title,
        "text": document.text,
        "metadata": dict(document.metadata),
    }
    return json.dumps(row, ensure_ascii=escape)


@FEW
@given(
    documents=documents_of(any_id, any_text, st.dictionaries(any_text, json_value, max_size=3)),
    escape=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    zipped=st.booleans(),
    mark=st.booleans(),
)
def test_jsonl_round_trip(place, documents, escape, end, zipped, mark):
    raw = end.join(as_json(document, escape) for document in documents).encode("utf-8-sig" if mark else "utf-8")
    path = place / ("a.jsonl.gz" if zipped else "a.jsonl")
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    assert load_corpus(path, format="jsonl").documents == documents


@FEW
@given(documents=documents_of(any_id, any_text), delimiter=st.sampled_from(",;\t|"))
def test_csv_round_trip_with_what_the_csv_module_writes(place, documents, delimiter):
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(["doc_id", "title", "text"])
    writer.writerows([document.doc_id, document.title, document.text] for document in documents)
    path = place / "a.csv"
    path.write_bytes(buffer.getvalue().encode())
    assert load_corpus(path).documents == documents


@FEW
@given(documents=documents_of(plain_id, plain_text))
def test_tsv_round_trip(place, documents):
    path = place / "a.tsv"
    rows = ["id\ttitle\ttext", *(f"{d.doc_id}\t{d.title}\t{d.text}" for d in documents)]
    path.write_bytes("\n".join(rows).encode())
    assert load_corpus(path).documents == documents


@st.composite
def whole_corpora(draw):
    documents = draw(documents_of(plain_id, any_text))
    ids = draw(
        st.lists(
            plain_id.filter(lambda i: i.strip().lower() not in ("query-id", "query_id", "qid")),
            unique=True,
            max_size=4,
        )
    )
    queries = {query_id: Query(query_id, draw(any_text)) for query_id in ids}
    grades = st.dictionaries(st.sampled_from([d.doc_id for d in documents]), st.integers(-2, 9), min_size=1)
    splits = draw(st.lists(st.sampled_from(["train", "dev", "test"]), unique=True)) if ids else []
    judged = st.dictionaries(st.sampled_from(ids), grades, min_size=1) if ids else st.just({})
    return documents, queries, {split: draw(judged) for split in splits}


@FEW
@given(corpus=whole_corpora(), zipped=st.booleans())
def test_beir_round_trip(corpus, zipped):
    documents, queries, judgements = corpus

    def write(path, text):
        path.parent.mkdir(exist_ok=True)
        if zipped:
            Path(f"{path}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            path.write_bytes(text.encode())

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "corpus.jsonl", "\n".join(as_json(document, True) for document in documents))
        if queries:
            write(
                folder / "queries.jsonl",
                "\n".join(json.dumps({"_id": q.query_id, "text": q.text}) for q in queries.values()),
            )
        for split, judged in judgements.items():
            rows = [f"{q}\t{d}\t{g}" for q, grades in judged.items() for d, g in grades.items()]
            write(folder / "qrels" / f"{split}.tsv", "\n".join(["query-id\tcorpus-id\tscore", *rows]))
        read = load_corpus(folder)
    assert (read.documents, read.queries, read.judgements) == (documents, queries, judgements)
    assert read.skipped.count == 0


def test_the_usual_names_of_fields_and_numbers_as_ids(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "contents": "x"}\n{"doc_id": 8.0, "body": "y", "title": null, "year": 1999}\n')
    documents = load_corpus(path).documents
    assert documents == [Document("7", "x"), Document("8", "y", "", {"year": 1999})]


def test_columns_by_name_and_by_number(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('p1\t"a quote\tT1\np2\tsecond\tT2\n')
    columns = {"doc_id": "0", "text": "1", "title": "2"}
    assert load_corpus(path, columns=columns).documents == [
        Document("p1", '"a quote', "T1"), Document("p2", "second", "T2"),
    ]  # fmt: skip
    path = tmp_path / "b.csv"
    path.write_text("key,words\nk,v\n")
    assert load_corpus(path, columns={"doc_id": "key", "text": "words"}).documents == [Document("k", "v")]
    with pytest.raises(UnknownName, match="doc_id"):
        load_corpus(path, columns={"docid": "key"})
    with pytest.raises(BadInput, match=r"b\.csv:1: field 'body'.*key, words"):
        load_corpus(path, columns={"doc_id": "key", "text": "body"}, skip_bad=True)


def test_queries_and_judgements_beside_a_plain_file(tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n')
    (tmp_path / "topics.txt").write_text("1\twhat is x\n2\twhat is y\n")
    (tmp_path / "qrels.txt").write_text("1 0 a 2\n2 0 b 1\n")
    (tmp_path / "train.tsv").write_text("query-id\tcorpus-id\tscore\n1\tb\t1\n")
    source, queries = tmp_path / "docs.jsonl", tmp_path / "topics.txt"
    corpus = load_corpus(source, queries=queries, qrels=tmp_path / "qrels.txt")
    assert corpus.judgements == {"test": {"1": {"a": 2}, "2": {"b": 1}}}
    assert corpus.queries["1"].text == "what is x"
    assert corpus.judgements["test"]["1"].keys() == {"a"}
    assert load_corpus(source, queries=queries, qrels=tmp_path / "train.tsv").judgements == {"train": {"1": {"b": 1}}}
    by_split = {"dev": tmp_path / "train.tsv", "test": {"1": {"a": 1}}}
    read = load_corpus(source, queries=queries, qrels=by_split).judgements
    assert read == {"dev": {"1": {"b": 1}}, "test": {"1": {"a": 1}}}
    assert load_corpus(source, queries=queries, qrels={"1": {"a": 1}}).judgements == {"test": {"1": {"a": 1}}}
    with pytest.raises(BadSetting, match="without queries"):
        load_corpus(source, qrels=tmp_path / "qrels.txt")
    with pytest.raises(BadInput, match="no document has the id 'z'"):
        load_corpus(source, queries=queries, qrels={"1": {"z": 1}})


def test_judgements_share_the_strings_of_the_corpus(tmp_path):
    (tmp_path / "docs.jsonl").write_text('{"id": "document-1", "text": "x"}\n')
    (tmp_path / "q.tsv").write_text("1\tx\n")
    (tmp_path / "qrels.tsv").write_text("1\tdocument-1\t1\n")
    corpus = load_corpus(tmp_path / "docs.jsonl", queries=tmp_path / "q.tsv", qrels=tmp_path / "qrels.tsv")
    assert next(iter(corpus.judgements["test"]["1"])) is corpus.documents[0].doc_id


def test_queries_with_a_history(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"_id": "u", "history": ["a", 2]}\n{"_id": "v", "text": "t", "history": ["b"]}\n')
    assert load_queries(path) == {"u": Query("u", "", ("a", "2")), "v": Query("v", "t", ("b",))}


def test_a_headless_and_a_headed_query_table(tmp_path):
    (tmp_path / "a.tsv").write_text("q1\tone\n")
    (tmp_path / "b.tsv").write_text("query_id\tquery\nq1\tone\n")
    (tmp_path / "c.csv").write_text('qid,question\nq1,"one"\n')
    assert load_queries(tmp_path / "a.tsv") == load_queries(tmp_path / "b.tsv") == load_queries(tmp_path / "c.csv")


def test_formats_are_detected_or_asked_for(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        load_corpus(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no such file"):
        load_corpus("x" * 5000)
    with pytest.raises(BadSetting):
        load_corpus("")
    (tmp_path / "a.dat").write_text('{"id": 1, "text": "x"}')
    with pytest.raises(BadInput, match="does not show the format"):
        load_corpus(tmp_path / "a.dat")
    assert len(load_corpus(tmp_path / "a.dat", format="jsonl")) == 1
    with pytest.raises(UnknownName, match="Did you mean 'jsonl'"):
        load_corpus(tmp_path / "a.dat", format="jsnl")
    with pytest.raises(BadSetting):
        load_corpus(tmp_path / "a.dat", format="jsonl", items="x")
    assert load_corpus(tmp_path / "a.dat", format="jsonl").name == "a"


def test_judgement_files(tmp_path):
    four, three, lines = tmp_path / "a.qrels", tmp_path / "b.tsv", tmp_path / "c.jsonl"
    four.write_text("q1 0 d1 1\nq1\tQ0\td2\t0\n\nq2  0  d1  -1\n")
    three.write_text("q1\td1\t1\nq1\td2\t0\nq2\td1\t-1.0\n")
    rows = [("q1", "d1", 1), ("q1", "d2", 0), ("q2", "d1", -1)]
    lines.write_text("".join(json.dumps({"query-id": q, "corpus-id": d, "score": s}) + "\n" for q, d, s in rows))
    expected = {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": -1}}
    assert load_judgements(four) == load_judgements(three) == load_judgements(lines) == expected


def test_trec_topics(tmp_path):
    path = tmp_path / "topics.301-303"
    path.write_text(
        "\n<top>\n\n<num> Number: 301\n<title> International\n Organized Crime\n"
        "<desc> Description:\nIdentify.\n\n"
        "<narr> Narrative:\nA document.\n</top>\n<top><num>302</num><title>Polio</title></top>\n"
        "<TOP>\n<num> Number: 303 \n<title>\n<desc> Description: Hubble's   work\n</TOP>\n"
    )
    assert {query_id: query.text for query_id, query in load_queries(path).items()} == {
        "301": "International Organized Crime", "302": "Polio", "303": "Hubble's work",
    }  # fmt: skip
    path.write_text("<top>\n<num> 1\n<title> a\n</top>\n<top>\n<title> no number\n</top>\n<top>\n<num> 3\n")
    with pytest.raises(BadInput, match=r"topics\.301-303:5: field 'num'"):
        load_queries(path)
    assert list(load_queries(path, skip_bad=True)) == ["1"]
