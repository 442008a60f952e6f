"""The user's word. A saved index may come from a stranger, so what its manifest asks for beyond its own folder, a
database to log in to or a model to download, needs the consent of the person who opens it.

Consent is the same name given by the user: in an environment variable (several are separated by spaces), or by
`trust`, which the command line's options and the arguments of `callslip.load` call.
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
    """Take the user's word for a name, for the rest of this process."""
    _trusted[kind].add(name.strip())


def trusts(kind: str, name: str) -> bool:
    """Whether the user named it, too."""
    given = os.environ.get(kind, "").strip()
    return name.strip() in {given, *given.split(), *_trusted[kind]}


def check_store(path: object, address: str) -> None:
    """Refuse an address that only a manifest gives: connecting would send the user's credentials there."""
    if not trusts(STORE, address):
        raise CallslipError(
            f"{path} keeps its documents in another place, {address!r}, and connecting there may send your password",
            f"If you trust this address, name it: --store {address!r}, or the environment variable {STORE}.",
        )


def remember_manifest(settings: Mapping[str, Any]) -> None:
    """Note every text among the settings of a manifest: none of them may cause a download by itself."""
    for value in settings.values():
        if isinstance(value, str):
            _from_manifests.add(value)
        elif isinstance(value, Mapping):
            remember_manifest(value)
        elif isinstance(value, (list, tuple)):
            remember_manifest(dict(enumerate(value)))  # type: ignore[arg-type]


def may_download(name: str) -> bool:
    """Whether a model may be fetched: the user chose it, or a manifest did and the user agreed."""
    return name not in _from_manifests or trusts(HUB, name)
