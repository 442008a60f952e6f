"""A corpus format: every line of a file is a document."""

from pathlib import Path

from callslip import Document


def read_lines(source):
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    return [Document(str(number), line) for number, line in enumerate(lines, start=1)]
