"""A copy of an index at one moment."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from callslip import durable
from callslip.errors import CallslipError, Unsupported
from callslip.storage import folder as folders
from callslip.storage.home import Home
from callslip.storage.sqlite_store import SqliteStore


def copy_index(source: str | Path, target: str | Path) -> None:
    """Copy an index while others use it; whole or not at all. The copy is checked by its hashes when it is opened."""
    target = Path(target)
    if target.exists():
        raise CallslipError(f"{target} exists", "Choose a folder that does not.")
    home = Home.open(source)
    try:
        if not isinstance(home.store, SqliteStore):
            raise Unsupported(
                f"{source} keeps its documents in PostgreSQL", "Copy the folder, and back the database up with pg_dump."
            )
        with folders.locked(home.path):  # no new generation meanwhile; searches and changes go on
            home = Home.open(source)
            _copy(home, home.manifest["store"]["file"], target)
    except OSError as error:
        raise CallslipError(f"cannot write to {target}: {error.strerror}", "Choose another place.") from None
    finally:
        home.close()


def _copy(home: Home, store_name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        draft.chmod(0o755)
        for name in home.manifest["files"]:
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(home.path / name, draft / name)
        assert isinstance(home.store, SqliteStore)
        home.store.copy_to(draft / store_name)
        # A copied database has its own pages: the seal of the original is not its seal.
        copied = SqliteStore(draft / store_name)
        version = copied.version()
        copied.close()
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
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        durable.system.sync(file.fileno())
