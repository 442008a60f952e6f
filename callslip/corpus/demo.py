"""The embedded demo corpus: the standard library's documentation, and questions that a developer would ask.

The documents come from the running interpreter, so the demo needs no download. The questions were written by
hand for it; every answer is documented in Python 3.11 to 3.14.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from callslip.corpus.demo_library import library_documents
from callslip.corpus.documents import Corpus, Document, Judgements, Query
from callslip.errors import BadInput, BadSetting

QUESTIONS = Path(__file__).with_name("demo_questions.tsv")
HEADER = ["split", "question", "answers"]
SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class Question:
    """One line of the question file: a question and the doc_ids that answer it equally well."""

    split: str
    text: str
    answers: tuple[str, ...]


def demo_corpus(limit: int | None = None) -> Corpus:
    """The standard library as the corpus "python-stdlib", with judged questions in the splits train and test.

    `limit` keeps that many documents for a quick run, answers to questions first, so that a small corpus can
    still be evaluated. Questions without an answer in the corpus are dropped; in the full corpus that happens
    only where the platform lacks the function (`os.getloadavg` on Windows).
    """
    if limit is not None and limit < 1:
        raise BadSetting(f"limit is {limit}", "Keep at least one document, or leave the limit out for all of them.")
    documents = library_documents()
    questions = load_questions()
    if limit is not None:
        documents = _answers_first(documents, questions, limit)
    present = {document.doc_id for document in documents}
    queries: dict[str, Query] = {}
    judgements: dict[str, Judgements] = {split: {} for split in SPLITS}
    for number, question in enumerate(questions, start=1):
        grades = {doc_id: 1 for doc_id in question.answers if doc_id in present}
        if grades:
            query_id = f"q{number:03d}"  # the question's position in the file, so ids do not depend on the limit
            queries[query_id] = Query(query_id, question.text)
            judgements[question.split][query_id] = grades
    return Corpus(documents, queries, judgements, name="python-stdlib")


def _answers_first(documents: list[Document], questions: list[Question], limit: int) -> list[Document]:
    """Keep `limit` documents, preferring answers, in corpus order."""
    rows = {document.doc_id: row for row, document in enumerate(documents)}
    answers = [rows[doc_id] for question in questions for doc_id in question.answers if doc_id in rows]
    kept = list(dict.fromkeys([*answers, *range(len(documents))]))[:limit]
    return [documents[row] for row in sorted(kept)]


def load_questions(path: str | Path = QUESTIONS) -> list[Question]:
    """Read a tab-separated file of questions: split, question, and the space-separated doc_ids that answer it."""
    path = Path(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[0].split("\t") != HEADER:
        raise BadInput(path, f"the first line must be the column names {', '.join(HEADER)}", line=1)
    questions: list[Question] = []
    asked: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line and number == len(lines):  # the empty string after the last newline
            break
        question = _question(path, number, line)
        key = question.text.casefold()
        if key in asked:
            raise BadInput(path, f"repeats the question of line {asked[key]}", line=number, field="question")
        asked[key] = number
        questions.append(question)
    return questions


def _question(path: Path, number: int, line: str) -> Question:
    fields = line.split("\t")
    if len(fields) != len(HEADER):
        raise BadInput(path, f"expected {len(HEADER)} tab-separated fields, found {len(fields)}", line=number)
    split, text, answers = fields
    if split not in SPLITS:
        raise BadInput(path, f"{split!r} is not one of {', '.join(SPLITS)}", line=number, field="split")
    if not text.strip() or text != text.strip():
        raise BadInput(path, "empty, or has leading or trailing spaces", line=number, field="question")
    doc_ids = tuple(answers.split())
    if not doc_ids or len(set(doc_ids)) != len(doc_ids):
        raise BadInput(path, "no doc_id, or the same one twice", line=number, field="answers")
    return Question(split, text, doc_ids)
