"""Indexes on the Hugging Face hub: pushed whole, with a card, and opened from there read-only.

An address is hf://OWNER/NAME, or hf://OWNER/NAME@REVISION for a branch, tag or commit. What is downloaded is checked
like any folder: by the hashes of its manifest.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callslip.errors import BadSetting, CallslipError, NotAnIndex, Unsupported
from callslip.storage.copies import copy_index
from callslip.storage.folder import MANIFEST, read_manifest

SCHEME = "hf://"
PATH_SCHEME = "hf:/"
"""An address that went through a `Path` has only one of its slashes."""
CARD = "README.md"
_ADDRESS = re.compile(r"hf://?(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
PARTS = ["manifest.json", "generation-*/**", "store-*.sqlite", "store-*.sqlite-ledger"]
"""Files of an index; nothing else of a repository is downloaded."""


def fetch_index(address: str) -> Path:
    """The folder of an index on the hub, in the local Hugging Face cache; downloaded if it is not there yet."""
    from huggingface_hub import snapshot_download

    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise BadSetting(
            f"{address!r} is not an address of the hub", "Write hf://OWNER/NAME or hf://OWNER/NAME@REVISION."
        )
    try:
        folder = Path(snapshot_download(found["name"], revision=found["revision"], allow_patterns=PARTS))
    except Exception as error:  # the hub client's own errors, those of its HTTP library, and OSErrors
        raise _said(
            f"{address} could not be downloaded", error, "Check the name, the revision and the network."
        ) from None
    if not (folder / MANIFEST).is_file():
        raise NotAnIndex(
            f"{address} is not an index: it has no {MANIFEST}", "Push one: callslip push INDEX OWNER/NAME."
        )
    return folder


def push_index(path: str | Path, name: str, *, private: bool = True, message: str = "") -> str:
    """Upload an index with all its documents to the hub; the address of the commit. Private unless said otherwise."""
    from huggingface_hub import HfApi

    if not _NAME.fullmatch(name):
        raise BadSetting(f"{name!r} is not the name of a repository", "Write OWNER/NAME.")
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "index"
        copy_index(path, copy)
        manifest = read_manifest(copy)
        (copy / CARD).write_text(card(manifest, name), encoding="utf-8")
        for lock in copy.glob("lock"):
            lock.unlink()
        api = HfApi(library_name="callslip")
        try:
            api.create_repo(name, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=name, folder_path=copy, commit_message=message or f"callslip index: {manifest['method']}"
            )
        except Exception as error:  # as above
            raise _said(f"{path} could not be pushed to {name}", error, "Log in with `hf auth login`.") from None
    return f"{SCHEME}{name}@{done.oid}"


def refuse_changes(home: Any, address: str) -> None:
    """Open an index of the hub for reading only: a change would be lost with the cache, or meet the next download."""
    if home.store.read_only is None:
        home.store.read_only = Unsupported(
            f"{address} is opened read-only", "Copy it first: callslip snapshot HF_ADDRESS DIR, and change the copy."
        )


def card(manifest: Mapping[str, Any], name: str) -> str:
    """The model card of an index, from its manifest."""
    corpus, method = manifest.get("corpus", {}), str(manifest["method"])
    documents = corpus.get("documents")
    counted = f"{documents:,} documents" if isinstance(documents, int) else "documents"
    rows = "\n".join(f"| `{key}` | {_shown(value)} |" for key, value in sorted(manifest["settings"].items()))
    versions = ", ".join(f"{key} {value}" for key, value in sorted(manifest.get("versions", {}).items()))
    plugin = manifest.get("plugin")
    needs = f"\nThe method comes from the package `{plugin.get('package', plugin['class'])}`.\n" if plugin else ""
    return f"""---
library_name: callslip
tags:
- callslip
- retrieval
- generative-retrieval
- {re.sub(r"[^a-z0-9-]+", "-", method.lower()).strip("-")}
---

# {name.rpartition("/")[2]}

A [callslip](https://pypi.org/project/callslip/) index: {counted} of `{corpus.get("name", "a corpus")}`, searched with
the method `{method}`. The documents are part of it.
{needs}
```python
import callslip

index = callslip.load("{SCHEME}{name}")
index.search("your question", k=10)
```

| | |
|---|---|
| method | `{method}` |
| documents | {documents if documents is not None else "?"} |
| corpus SHA-256 | `{corpus.get("sha256", "?")}` |
| fitted in | {manifest.get("fit_seconds", 0):.0f} s |
| made with | {versions or "?"} |

## Settings

| setting | value |
|---|---|
{rows}
"""


def _shown(value: Any) -> str:
    """A setting's value in a table; of a path on somebody's machine only the name."""
    if isinstance(value, str) and ("/" in value or "\\" in value) and Path(value).is_absolute():
        value = Path(value).name
    return f"`{value}`".replace("|", "\\|").replace("\n", " ") if value not in ("", None) else "none"


def _said(problem: str, error: Exception, remedy: str) -> CallslipError:
    reason = str(error).strip().splitlines()
    return CallslipError(f"{problem} ({reason[0] if reason else type(error).__name__})", remedy)
