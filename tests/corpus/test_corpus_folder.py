"""A folder of files becomes parts with paths, titles and all of the text."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.corpus import Document, load_corpus
from callslip.corpus.folder import cut
from callslip.corpus.sections import Section, html, markdown, rst
from callslip.errors import BadInput

MARKDOWN = """---
title: "The guide"
---
Before all headings.

# The guide
Lead.

## Install ##
Run it:

```sh
# not a heading
pip install x
```

Settings
--------
### Deep
Text under deep.

# Other
"""


def test_markdown_headings():
    outline = markdown(MARKDOWN)
    assert outline.title == "The guide"
    assert outline.sections() == [
        Section((), "Before all headings."),
        Section(("The guide",), "Lead."),
        Section(("The guide", "Install"), "Run it:\n\n```sh\n# not a heading\npip install x\n```"),
        Section(("The guide", "Settings", "Deep"), "Text under deep."),
        Section(("Other",), ""),
    ]


def test_markdown_rules_lists_and_tables_are_not_headings():
    text = "a\n\n---\n\n#hashtag\n\n- item\n\n| a |\n|---|\n| b |\n"
    assert markdown(text).sections() == [Section((), text.strip())]


def test_rst_levels_follow_the_order_of_appearance():
    text = "=====\nTitle\n=====\nLead.\n\nOne\n---\nText\nof one.\n\nSub\n~~~\nDeep.\n\n"
    text += "Two\n---\nEnd. ::\n\n    x ---\n"
    assert rst(text).sections() == [
        Section(("Title",), "Lead."),
        Section(("Title", "One"), "Text\nof one."),
        Section(("Title", "One", "Sub"), "Deep."),
        Section(("Title", "Two"), "End. ::\n\n    x ---"),
    ]


def test_html_keeps_text_and_drops_scripts():
    text = (
        "<!DOCTYPE html><html><head><title>A &amp; B</title><style>p {x: y}</style>"
        "<script>var h = '<h1>no</h1>'</script></head><body><h1>Top <em>one</em></h1>"
        "<p>First <b>bold</b>\n text.<p>Second&nbsp;one.<ul><li>a<li>b</ul>"
        "<h2>Under</h2>Loose text<br>here.<svg><text>drawn</text></svg></body></html>"
    )
    outline = html(text)
    assert outline.title == "A & B"
    assert outline.sections() == [
        Section(("Top one",), "First bold text.\n\nSecond one.\n\na\n\nb"),
        Section(("Top one", "Under"), "Loose text here."),
    ]


def test_folder_paths_titles_and_what_is_left_alone(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.md").write_text("hidden")
    (tmp_path / "sub" / "g.md").write_text(MARKDOWN)
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfPlain text.\r\n")
    (tmp_path / "b.PNG").write_bytes(b"\xff\xff")
    (tmp_path / "empty.txt").write_text(" \n")
    for file in (tmp_path / "a.txt", tmp_path / "sub" / "g.md"):
        os.utime(file, (86_400 * 365, 86_400 * 365))
    plain = {"path": "a.txt", "folder": ".", "type": "txt", "date": "1971-01-01"}
    guide = {"path": "sub/g.md", "folder": "sub", "type": "md", "date": "1971-01-01"}
    code = "Run it:\n\n```sh\n# not a heading\npip install x\n```"
    corpus = load_corpus(tmp_path)
    assert corpus.documents == [
        Document("a.txt#1", "Plain text.", "a", plain),
        Document("sub/g.md#1", "Before all headings.", "The guide", guide),
        Document("sub/g.md#2", "Lead.", "The guide", guide),
        Document("sub/g.md#3", code, "The guide > Install", guide),
        Document("sub/g.md#4", "Text under deep.", "The guide > Settings > Deep", guide),
        Document("sub/g.md#5", "", "The guide > Other", guide),
    ]
    assert corpus.files.lines() == [
        "read 2 files, skipped 2",
        "  1 skipped, image: .png 1",
        "  1 skipped, empty: empty.txt",
    ]
    assert load_corpus(tmp_path / "a.txt").doc_ids == ["a.txt#1"]


def test_binary_files_are_skipped_and_unreadable_ones_refused(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\n\n\x00")
    corpus = load_corpus(tmp_path)
    assert corpus.doc_ids == ["good.txt#1"]
    assert corpus.files.groups["binary, whatever its suffix says"].names == ["bad.txt"]
    with pytest.raises(BadInput, match=r"bad\.txt: not read: binary"):
        load_corpus(bad)  # alone there is nothing else to read
    bad.unlink()
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere.md")
    with pytest.raises(BadInput, match=r"gone\.md"):
        load_corpus(tmp_path)
    assert load_corpus(tmp_path, skip_bad=True).skipped.count == 1


def test_a_file_name_that_is_not_utf8(tmp_path):
    try:
        with open(os.fsencode(tmp_path) + b"/\xff.txt", "w") as file:  # noqa: PTH123 (a name of bytes)
            file.write("x")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    with pytest.raises(BadInput, match="name is not valid UTF-8") as refusal:
        load_corpus(tmp_path)
    str(refusal.value).encode()


def test_a_folder_with_nothing_to_read(tmp_path):
    (tmp_path / "x.png").write_bytes(b"x")
    with pytest.raises(BadInput, match="no file with text in this folder"):
        load_corpus(tmp_path)
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(BadInput, match="empty"):
        load_corpus(tmp_path)


words = st.sampled_from(["one", "two,", "three.", "Four", "five!", "\n\n", "六七八。", "n.9"])


@settings(max_examples=150, deadline=None)
@given(text=st.lists(words, max_size=80).map(" ".join), limit=st.integers(1, 20))
def test_cutting_loses_nothing_and_keeps_the_limit(text, limit):
    parts = cut(text, limit)
    squeezed = "".join("".join(part.split()) for part in parts)
    assert squeezed == "".join(text.split())

    def count(part):  # a sign of a script without spaces is a word
        return sum(sum(c in "六七八" for c in word) + bool(word.strip("六七八")) for word in part.split())

    assert all(0 < count(part) <= limit for part in parts)


def test_parts_are_even():
    text = " ".join(f"Sentence number {n} has six words." for n in range(70))  # 420 words
    sizes = [len(part.split()) for part in cut(text, 200)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 12
