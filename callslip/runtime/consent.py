"""The user's consent. A saved index may be untrusted, so anything its manifest needs outside its own folder, such as a
database to connect to or a model to download, requires the consent of the user who opens it.

The user consents by giving the same name: in an environment variable (several are separated by spaces), or by `trust`,
which the command line's options and the arguments of `callslip.load` call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from callslip.errors import CallslipError

STORE, HUB = "CALLSLIP_STORE", "CALLSLIP_HUB"
"""Environment variables: the address of a store, and names of models on the hub."""

_trusted: dict[str, set[str]] = {STORE: set(), HUB: set()}
_from_manifests: set[str] = set()


def trust(kind: str, name: str) -> None:
    """Trust a name for the rest of this process."""
    _trusted[kind].add(name.strip())


def trusts(kind: str, name: str) -> bool:
    """Whether the user has given this name."""
    given = os.environ.get(kind, "").strip()
    return name.strip() in {given, *given.split(), *_trusted[kind]}


def check_store(path: object, address: str) -> None:
    """Reject an address that comes only from a manifest: connecting would send the user's credentials there."""
    if not trusts(STORE, address):
        raise CallslipError(
            f"{path} keeps its documents at {address!r}, and connecting to it may send your password",
            f"If you trust this address, name it: --store {address!r}, or the environment variable {STORE}.",
        )


def remember_manifest(settings: Mapping[str, Any]) -> None:
    """Record all strings in the settings of a manifest: none of them may cause a download without consent."""
    for value in settings.values():
        if isinstance(value, str):
            _from_manifests.add(value)
        elif isinstance(value, Mapping):
            remember_manifest(value)
        elif isinstance(value, (list, tuple)):
            remember_manifest(dict(enumerate(value)))  # type: ignore[arg-type]


def may_download(name: str) -> bool:
    """Whether a model may be downloaded: the user chose it, or a manifest did and the user consented."""
    return name not in _from_manifests or trusts(HUB, name)
