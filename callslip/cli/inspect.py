"""callslip inspect: examine the codes of an index (the index doctor)."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callslip.cli import app, options, terminal

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers


OWNERS = "owners.npy"
"""File of an index whose documents may have several codes."""


@app.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="DIR|CODES", help="A saved index, or codes as .npy, .json, .jsonl, .csv or .tsv.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="12-7", help="Show the tree of codes below this prefix.")
    ] = "",
    depth: Annotated[int, typer.Option("--depth", min=0, help="Number of levels of the tree to show; 0 for none.")] = 2,
    branches: Annotated[int, typer.Option("--branches", min=1, help="Number of branches to show per node.")] = 4,
    against: Annotated[
        Path | None, typer.Option("--against", help="Another index or file of codes to compare with.")
    ] = None,
    store: options.StoreOption = None,
) -> None:
    """Examine the codes of an index: verdict, quality metrics, problems and remedies."""
    with options.making_sense_of(path):
        _inspect(path, as_json, prefix, depth, branches, against)


def _inspect(path: Path, as_json: bool, prefix: str, depth: int, branches: int, against: Path | None) -> None:
    from callslip.cli.codes import show_audit
    from callslip.identifiers import quality
    from callslip.identifiers.doctor import Finding
    from callslip.identifiers.files import read_codes
    from callslip.index.code_table import CodeTable

    identifiers = _of_index(path) if path.is_dir() else read_codes(path)
    if identifiers is None:
        return
    tree = _tree_of(path, identifiers) if path.is_dir() else identifiers
    other = None if against is None else options.read_table(against)
    whole = CodeTable(identifiers, _vectors(path, len(identifiers))).report(other, tree.length)
    if as_json:
        for name, kept in LOGGED.items():
            if found := _logged(path, kept):
                whole[name] = found
        terminal.echo(terminal.to_json(whole, indent=2))
        return
    figures = quality.measure(identifiers)
    show_quality(figures, [Finding(**finding) for finding in whole["findings"]], whole["verdict"], tree.length)
    _show_use(figures)
    show_audit(whole)
    if path.is_dir():
        _show_logged(path)
        if entropy := _logged(path, LOGGED["partition_entropy"]):
            terminal.echo(
                f"average partition entropy {entropy['ape']:.3f}; of random codes {entropy['ape_random']:.3f} (how "
                "widely the codes scatter the items of a training query; lower is better)"
            )
        _show_words(path, identifiers)
        if depth:
            _show_tree(path, tree, prefix, depth, branches)


def _vectors(path: Path, count: int) -> Any:
    """The vectors that an index keeps beside its codes; None if it keeps none."""
    import numpy as np

    from callslip.identifiers.vector_table import BY_CODE, VECTORS, VectorTable
    from callslip.storage.saved_codes import place_of_codes

    place = place_of_codes(path) if path.is_dir() else None
    if place is None or not any((place / name).is_file() for name in (BY_CODE, VECTORS)):
        return None
    vectors = VectorTable.load(place)
    return np.asarray(vectors) if vectors.shape[1] and len(vectors) == count else None


def _documents(count: int | None) -> str:
    return "? documents" if count is None else options.counted(count, "document")


def _of_index(path: Path):  # type: ignore[no-untyped-def]
    """The codes of a saved index; None, after a message, if its method has no codes."""
    from callslip.identifiers.table import Identifiers
    from callslip.storage.folder import generation_name, read_manifest

    manifest = read_manifest(path)
    corpus = manifest.get("corpus", {})
    terminal.echo(
        f"{path}: {manifest['method']}, fitted to {_documents(corpus.get('documents'))} of {corpus.get('name', '?')} "
        f"in {manifest.get('fit_seconds', 0):.0f} s",
        err=True,  # standard output is for the metrics
    )
    # An earlier generation is kept while a process reads it; changes since the snapshot are not in it.
    current = path / generation_name(manifest["generation"])
    places = sorted(p.parent for name in ("codes.npy", OWNERS) for p in current.rglob(name))
    if not places:
        terminal.echo(f"{manifest['method']} does not use codes: there is nothing to examine.")
        return None
    _say_what_is_left_out(path)
    if (places[0] / OWNERS).exists():
        return _of_entries(path, places[0])
    return Identifiers.load(places[0])


def _of_entries(path: Path, generation: Path) -> Identifiers:
    """The codes of an index whose documents may have several: that of each document's text."""
    from callslip.identifiers.table import Identifiers
    from callslip.index.entries import Entries
    from callslip.storage.home import Home
    from callslip.storage.rows import StoredDocuments

    home = Home.open(path, verify=False)
    names = list(StoredDocuments(home.store, home.sequence).doc_ids())
    home.close()
    codes = Entries.load(generation, 1).codes_of_rows(len(names))
    last = {name: row for row, name in enumerate(names)}  # an updated document has an earlier row of the same name
    unique = [name if last[name] == row else f"deleted {row}" for row, name in enumerate(names)]
    return Identifiers(unique, codes.astype("int32"))


def _tree_of(path: Path, identifiers: Identifiers) -> Identifiers:
    """The first tokens of the codes, where only these form the tree; otherwise the codes themselves."""
    if not any(path.glob(f"generation-*/{OWNERS}")):
        return identifiers
    opened = options.open_index(path, None)
    levels = getattr(opened, "tree_levels", identifiers.length)
    opened.close()
    doc_ids, codes = identifiers.in_row_order()
    return type(identifiers)(doc_ids, codes[:, :levels])


def _say_what_is_left_out(path: Path) -> None:
    """Report documents that were added or deleted after the snapshot."""
    from callslip.storage.home import Home

    home = Home.open(path, verify=False)
    changes, held = home.store.changes(home.version), set(home.sequence)
    gone = held.intersection(home.store.deleted())
    home.close()
    if changes.added or gone:
        added, deleted = (options.counted(len(some), "document") for some in (changes.added, gone))
        terminal.echo(
            f"the last snapshot lacks {added} added since and still contains {deleted} deleted since; "
            f"callslip compact {path} writes a new one",
            err=True,
        )


def _show_use(figures, wide: int = 40) -> None:  # type: ignore[no-untyped-def]
    """Histogram of bucket sizes: codes and documents by the number of documents that share a code."""
    sizes: dict[int, tuple[int, int]] = {}
    for size, codes in figures.bucket_histogram.items():
        power = size.bit_length() - 1
        held = sizes.get(power, (0, 0))
        sizes[power] = held[0] + codes, held[1] + codes * size
    most = max(documents for _, documents in sizes.values())
    terminal.echo("documents per code, with the number of such codes and their documents:")
    for power, (codes, documents) in sorted(sizes.items()):
        low, high = 2**power, 2 ** (power + 1) - 1
        name = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        bar = "█" * max(1, round(wide * documents / most))
        terminal.echo(
            f"  {name:>13}  {bar:<{wide}}  {options.counted(codes, 'code')}, {options.counted(documents, 'document')}"
        )


def _show_tree(path: Path, identifiers: Identifiers, prefix: str, depth: int, branches: int) -> None:
    """The tree of codes, largest branches first, with the characteristic words of each node."""
    import numpy as np

    from callslip.errors import BadSetting
    from callslip.identifiers.prefix_words import Labels
    from callslip.identifiers.table import code_to_text, text_to_code
    from callslip.storage.home import Home
    from callslip.storage.rows import StoredDocuments

    trie, start = identifiers.trie(), text_to_code(prefix)
    if len(start) > identifiers.length or trie.node_of(start) < 0:
        raise BadSetting(f"no code has the prefix {prefix!r}", "Use tokens shown by `callslip inspect DIR`.")
    home = Home.open(path, verify=False)
    alive = np.ones(len(home.sequence), bool)
    gone = home.sequence.rows_of(list(home.store.deleted()))
    alive[gone[gone >= 0]] = False
    labels = Labels(StoredDocuments(home.store, home.sequence).rows, alive)
    background = labels.background()
    terminal.echo("the tree of codes, with the largest branches and their characteristic words:")

    def show(level: int, node: int, code: tuple[int, ...], deep: int) -> None:
        inside = trie.children_of(level, node)
        children = []
        for child in range(inside.start, inside.stop):
            held = trie.documents_of(level + 1, child)
            children.append((held.stop - held.start, child, held))
        children.sort(key=lambda one: (-one[0], one[1]))
        for count, child, held in children[:branches]:
            token = int(trie.tokens[level + 1][child])
            if token < 0:
                continue
            longer = (*code, token)
            words = ", ".join(labels.of(identifiers.rows[held], background))
            terminal.echo(f"  {'  ' * deep}{code_to_text(longer)}  {options.counted(count, 'document')}: {words}")
            if deep + 1 < depth:
                show(level + 1, child, longer, deep + 1)
        if len(children) > branches:
            terminal.echo(f"  {'  ' * deep}… and {len(children) - branches:,} more")

    show(len(start) - 1, trie.node_of(start), start, 0)
    home.close()


LOGGED = {
    "partition_entropy": ("ape", "ape_random"),
    "per_code": ("documents_per_code", "most_documents_per_code", "queries_per_code", "most_queries_per_code"),
    "greedy_recovery": ("queries", "items", "tokens", "density", "queries_needed", "recovered"),
}
"""Figures that training may have logged: average partition entropy; documents and training queries per code; URI's
Theorem 1."""


def _show_logged(path: Path) -> None:
    if count := _logged(path, LOGGED["per_code"]):
        terminal.echo(
            f"documents per code: {count['documents_per_code']:.1f} on average, at most "
            f"{count['most_documents_per_code']:,}; training queries per code: {count['queries_per_code']:.1f} on "
            f"average, at most {count['most_queries_per_code']:,}"
        )
    if bound := _logged(path, LOGGED["greedy_recovery"]):
        holds = bound["queries"] >= bound["queries_needed"]
        terminal.echo(
            f"greedy recovery (URI, Theorem 1): {bound['items']:,.0f} items in {bound['tokens']:,.0f} first tokens, "
            f"related to a query with probability {bound['density']:.2g}, need {bound['queries_needed']:,.0f} queries "
            f"for a certainty of 95 %; there are {bound['queries']:,.0f}: the bound {'holds' if holds else 'fails'}. "
            f"Of these items' tokens, the greedy algorithm finds {bound['recovered']:.1%} again."
        )


def _logged(path: Path, names: tuple[str, ...]) -> dict[str, float]:
    """Figures of a saved index that training logged, from the last record that has them all; empty if there is none."""
    from callslip.storage.folder import generation_name, read_manifest

    if not path.is_dir():
        return {}
    current = path / generation_name(read_manifest(path, verify=False)["generation"])
    for log in sorted(current.rglob("training.jsonl")):
        for line in reversed(log.read_text(encoding="utf-8").splitlines()):
            record = json.loads(line)
            if all(name in record for name in names):
                return {name: record[name] for name in names}
    return {}


def _show_words(path: Path, identifiers: Identifiers, examples: int = 5) -> None:
    """For codes of words: the codes of a few documents and of the largest bucket, with the weight of each word."""
    import numpy as np

    from callslip.storage.folder import generation_name, read_manifest

    current = path / generation_name(read_manifest(path, verify=False)["generation"]) if path.is_dir() else path
    places = sorted(p.parent for p in current.rglob("vocabulary.json"))
    if not places:
        return
    vocabulary = json.loads((places[0] / "vocabulary.json").read_text(encoding="utf-8"))
    weights = np.load(places[0] / "weights.npy", allow_pickle=False)[identifiers.rows]
    starts = identifiers.buckets()
    fullest = int(starts[np.diff(starts).argmax()]) if len(identifiers) else 0
    spread = np.linspace(0, len(identifiers) - 1, examples).astype(int).tolist()
    terminal.echo("codes of some documents, with the weight of each word:")
    for position in dict.fromkeys([*spread, fullest]):
        code = identifiers.codes[position]
        words = "-".join(vocabulary[token] for token in code)
        each = ", ".join(f"{vocabulary[token]} {w:.1f}" for token, w in zip(code, weights[position], strict=True))
        shared = int(np.searchsorted(starts, position, side="right"))
        count = int(starts[shared] - starts[shared - 1])
        line = f"  {identifiers.doc_ids[position]}  {words}  ({each})" + (f"  {count} documents" * (count > 1))
        terminal.echo(terminal.printable(line))


def show_quality(figures, findings, verdict: str, tree: int | None = None) -> None:  # type: ignore[no-untyped-def]
    """Print the verdict, the figures of the table and of each level (of the tree, if codes are longer), and the
    findings."""
    from rich.console import Console
    from rich.table import Table

    console, levels = Console(), tree or figures.length
    colour = {"healthy": "green", "usable": "yellow", "ill": "red"}[verdict]
    console.print(f"verdict: [bold {colour}]{verdict}[/]")
    console.print(
        f"{figures.documents:,} documents, {figures.unique:,} codes of length {figures.length}: "
        f"uniqueness {figures.uniqueness:.3f}, {figures.collision_rate:.1%} of documents share a code, "
        f"mean bucket {figures.bucket_mean:.1f}, largest {figures.bucket_max}, Gini {figures.gini:.3f}"
    )
    table = Table("level", "tokens", "used", "dead", "perplexity", "Gini", "diversity", box=None, header_style="bold")
    for level in figures.levels[:levels]:
        table.add_row(
            str(level.level + 1),
            f"{level.width:,}",
            f"{level.used:,}",
            f"{level.dead:,}",
            f"{level.perplexity:.1f}",
            f"{level.gini:.3f}",
            f"{level.diversity:.3f}",
        )
    console.print(table)
    if levels < figures.length:
        console.print(f"levels 1 to {levels} are the tree; the other {figures.length - levels} rank inside")
    for (severity, remedy), alike in groupby(findings, key=lambda finding: (finding.severity, finding.remedy)):
        problems = "; ".join(finding.problem for finding in alike)
        console.print(f"[bold]{severity}[/]: {problems}\n  remedy: {remedy}", highlight=False)
