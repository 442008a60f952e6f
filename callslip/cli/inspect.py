"""callslip inspect: the index doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callslip.cli import app

if TYPE_CHECKING:
    from callslip.identifiers.table import Identifiers


@app.command()
def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="DIR|CODES", help="A saved index, or codes as .npy, .json, .jsonl, .csv or .tsv.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Examine an index's codes: a verdict, the figures behind it, what is wrong and the remedy."""
    from callslip.identifiers import doctor, quality
    from callslip.identifiers.files import read_codes

    identifiers = _of_index(path) if path.is_dir() else read_codes(path)
    if identifiers is None:
        return
    figures = quality.measure(identifiers)
    findings = doctor.diagnose(figures)
    verdict = doctor.verdict(findings)
    if as_json:
        whole = {"verdict": verdict, "findings": [vars(f) for f in findings], "figures": figures.to_dict()}
        if entropy := _entropy(path):
            whole["partition_entropy"] = entropy
        typer.echo(json.dumps(whole, indent=2))
        return
    _show(figures, findings, verdict)
    if path.is_dir():
        if entropy := _entropy(path):
            typer.echo(
                f"average partition entropy {entropy['ape']:.3f}; of random codes {entropy['ape_random']:.3f}: how "
                "widely the codes scatter what belongs to one training query, less is better"
            )
        _show_words(path, identifiers)


def _of_index(path: Path):  # type: ignore[no-untyped-def]
    """The codes of a saved index; None, after a word about it, if its method has no codes."""
    from callslip.identifiers.table import Identifiers
    from callslip.storage.folder import generation_name, read_manifest

    manifest = read_manifest(path)
    corpus = manifest.get("corpus", {})
    typer.echo(
        f"{path}: {manifest['method']}, {corpus.get('documents', '?')} documents of {corpus.get('name', '?')}, "
        f"fitted in {manifest.get('fit_seconds', 0):.0f} s",
        err=True,  # standard output is for the figures
    )
    # An earlier generation stays while somebody reads it; what came after the snapshot is not in it.
    places = sorted(p.parent for p in (path / generation_name(manifest["generation"])).rglob("codes.npy"))
    if not places:
        typer.echo(f"{manifest['method']} gives documents no codes: there is nothing more to examine.")
        return None
    return Identifiers.load(places[0])


def _entropy(path: Path) -> dict[str, float]:
    """The average partition entropy of a saved index's codes and of random ones, if its training measured them."""
    from callslip.storage.folder import generation_name, read_manifest

    if not path.is_dir():
        return {}
    current = path / generation_name(read_manifest(path, verify=False)["generation"])
    for log in sorted(current.rglob("training.jsonl")):
        for line in log.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "ape_random" in record:
                return {name: record[name] for name in ("ape", "ape_random")}
    return {}


def _show_words(path: Path, identifiers: Identifiers, examples: int = 5) -> None:
    """Where codes are words: those of a few documents and of the fullest bucket, with the weight of each word."""
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
    typer.echo("codes of some documents, with the weight of each word:")
    for position in dict.fromkeys([*spread, fullest]):
        code = identifiers.codes[position]
        words = "-".join(vocabulary[token] for token in code)
        each = ", ".join(f"{vocabulary[token]} {w:.1f}" for token, w in zip(code, weights[position], strict=True))
        shared = int(np.searchsorted(starts, position, side="right"))
        count = int(starts[shared] - starts[shared - 1])
        typer.echo(f"  {identifiers.doc_ids[position]}  {words}  ({each})" + (f"  {count} documents" * (count > 1)))


def _show(figures, findings, verdict: str) -> None:  # type: ignore[no-untyped-def]
    from rich.console import Console
    from rich.table import Table

    console = Console()
    colour = {"healthy": "green", "usable": "yellow", "ill": "red"}[verdict]
    console.print(f"verdict: [bold {colour}]{verdict}[/]")
    console.print(
        f"{figures.documents:,} documents, {figures.unique:,} codes of length {figures.length}: "
        f"uniqueness {figures.uniqueness:.3f}, {figures.collision_rate:.1%} of documents share a code, "
        f"buckets of {figures.bucket_mean:.1f} on average and {figures.bucket_max} at most"
    )
    table = Table("level", "tokens", "used", "dead", "perplexity", "Gini", "diversity", box=None, header_style="bold")
    for level in figures.levels:
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
    for finding in findings:
        console.print(f"[bold]{finding.severity}[/]: {finding.problem}\n  remedy: {finding.remedy}", highlight=False)
