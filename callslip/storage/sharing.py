"""From an embedded store to a shared one."""

from __future__ import annotations

from pathlib import Path

from callslip.errors import CallslipError
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.rows import pack
from callslip.storage.sqlite_store import SqliteStore


def share_index(path: str | Path, address: str) -> None:
    """Move the documents of an index into a PostgreSQL database, where folders on other machines find them.

    Copy the folder to each machine afterwards: it holds the model and a snapshot, and knows the database.
    """
    from callslip.storage import postgres_store

    home = Home.open(path)
    try:
        if not isinstance(home.store, SqliteStore):
            raise CallslipError(f"{path} keeps its documents in PostgreSQL already")
        with folders.locked(home.path):
            home.store.retire()  # a change from now on would be lost
            try:
                facts = {name: value for name, value in home.store.facts().items() if name != "retired"}
                rows = ((row, pack(row.parts) if row.parts else None) for row in home.store.rows())
                postgres_store.create(address, home.manifest["index"], rows, facts)
                manifest = {**home.manifest, "store": {"kind": "postgres", "address": address}}
                folders.write_manifest(home.path, manifest)
            except BaseException:
                home.store.retire(False)
                raise
            folders.remove_orphans(home.path, manifest)
    finally:
        home.close()
