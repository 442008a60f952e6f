"""Copies of an index: a consistent copy of the folder, and its documents moved to a shared store."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

from callslip.errors import CallslipError, Unsupported
from callslip.runtime import consent, durable
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.rows import pack
from callslip.storage.sqlite_store import SqliteStore


def copy_index(source: str | Path, target: str | Path) -> None:
    """Atomically copy an index while others use it. The hashes of the copy are verified when it is opened."""
    target = Path(target)
    if target.exists():
        raise CallslipError(f"{target} exists", "Choose a folder that does not.")
    home = Home.open(source)
    try:
        if not isinstance(home.store, SqliteStore):
            raise Unsupported(
                f"{source} keeps its documents in PostgreSQL", "Copy the folder, and back the database up with pg_dump."
            )
        # The lock prevents a new generation; searches and changes continue. A read-only folder needs no lock.
        with nullcontext() if home.read_only is not None else folders.locked(home.path):
            home.close()
            home = Home.open(source)
            _copy(home, home.manifest["store"]["file"], target)
    except OSError as error:
        raise durable.not_written(target, error) from None
    finally:
        home.close()


def _copy(home: Home, store_name: str, target: Path) -> None:
    with folders.draft_of(target) as draft:
        for name in home.manifest["files"]:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(home.path / name, draft / name)
        assert isinstance(home.store, SqliteStore)
        # The pages of the copied database differ, so it needs its own seal.
        version = home.store.copy_to(draft / store_name)
        seal = {
            "sha256": durable.sha256_of(draft / store_name),
            "bytes": (draft / store_name).stat().st_size,
            "version": version,
        }
        manifest = {**home.manifest, "store": {**home.manifest["store"], "seal": seal}}
        for path in sorted(draft.rglob("*"), reverse=True):
            (durable.sync_folder if path.is_dir() else _sync)(path)
        folders.write_manifest(draft, manifest)
        durable.system.rename(draft, target)
        durable.sync_folder(target.parent)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        durable.system.sync(file.fileno())


def check_database(address: str) -> None:
    """Refuse a database that an index could not be shared by."""
    from callslip.storage import postgres_store

    postgres_store.check_database(address)


def share_index(path: str | Path, address: str) -> None:
    """Move the documents of an index into a PostgreSQL database that several machines share.

    Copy the folder to each machine afterwards: it has the model, a snapshot, and the address of the database.
    """
    from callslip.storage import postgres_store

    home = Home.open(path)
    consent.trust(consent.STORE, address)
    try:
        if not isinstance(home.store, SqliteStore):
            raise CallslipError(f"{path} keeps its documents in PostgreSQL already")
        with folders.locked(home.path):
            home.store.retire()  # later changes would be lost
            try:
                facts = {name: value for name, value in home.store.facts().items() if name not in ("retired", "mark")}
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
