"""Home: the open folder of an index and its store, which a retriever reads and writes its changes to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from callslip.errors import CallslipError, IndexCorrupt
from callslip.runtime import consent, durable
from callslip.runtime.process import versions
from callslip.storage import folder as folders
from callslip.storage.rows import NewRow, Numbers, Store, read_numbers
from callslip.storage.sqlite_store import SqliteStore, accept_loss, sha256_of

TRIES = 5


class Home:
    """One generation of an index's files, and the store, which has all changes since."""

    def __init__(self, path: Path, manifest: dict[str, Any], verify: bool = True) -> None:
        self.path = path
        self._held: int | None = None
        self._take(manifest, verify)
        self.store = open_store(path, manifest)
        if self.sequence.last() > int(self.store.facts()["last"]):
            raise IndexCorrupt(self.snapshot / folders.SEQUENCE, "it has rows that the store never had")

    def _take(self, manifest: dict[str, Any], verify: bool = False) -> None:
        snapshot = self.path / folders.generation_name(manifest["generation"])
        held = folders.hold(snapshot)
        self._let_go()
        self._held, self.manifest, self.snapshot = held, manifest, snapshot
        if verify:  # after `hold`, so that nobody removes the files meanwhile
            folders.verify_files(self.path, manifest)
        self.sequence = read_numbers(snapshot / folders.SEQUENCE)
        self.version = int(manifest["version"])
        """The version of the store that the snapshot was taken of."""

    @classmethod
    def open(cls, path: str | Path, verify: bool = True) -> Home:
        """Verify all files of a folder and open it; the leftovers of crashes are removed."""
        path = Path(path)
        for attempt in range(TRIES):
            manifest = folders.read_manifest(path, verify=False)
            try:
                found = cls(path, manifest, verify)
            except (IndexCorrupt, OSError) as error:
                # Another process may have replaced this generation while we were reading it.
                if attempt + 1 < TRIES and folders.read_manifest(path, verify=False) != manifest:
                    continue
                if isinstance(error, OSError):
                    raise IndexCorrupt(error.filename or path, f"cannot be read: {error.strerror}") from None
                raise
            found._clean_up()
            return found
        raise AssertionError  # pragma: no cover  (the last attempt returns or raises)

    @property
    def read_only(self) -> CallslipError | None:
        """Why this folder cannot be changed; None if it can."""
        return self.store.read_only

    def _clean_up(self) -> None:
        if self.read_only is not None:
            return
        with folders.locked(self.path, wait=False) as ours:
            if not ours:
                return
            manifest = folders.read_manifest(self.path, verify=False)
            folders.remove_orphans(self.path, manifest)
            if isinstance(self.store, SqliteStore) and "retired" in self.store.facts():
                self.store.retire(manifest["index"] != self.manifest["index"])  # writing its successor was interrupted

    def commit(self, add: Sequence[NewRow], delete: Sequence[str] = ()) -> int:
        """Change the store; when this returns, the change is on disk."""
        return self.store.commit(add, delete)

    def write_generation(self, save: folders.Save, sequence: Numbers, version: int, *, revised: bool = False) -> None:
        """Write a new generation with `save`, a snapshot of `version` of the store; then delete what it makes
        redundant. `revised` if it holds more than the changes in the store, so that every reader has to open it. The
        caller must hold the folder's lock (`folders.locked`)."""
        if self.read_only is not None:
            raise self.read_only
        before = folders.read_manifest(self.path, verify=False)
        if before["index"] != self.manifest["index"]:
            raise CallslipError("the index was replaced by another one", "Load it again.")
        number = before["generation"] + 1
        try:
            files = folders.write_generation(self.path, number, save, sequence)
            manifest = {**before, "generation": number, "version": version, "versions": versions(), "files": files}
            manifest["store"] = {key: value for key, value in before["store"].items() if key != "seal"}
            folders.write_manifest(self.path, manifest)
            self._take(manifest)
            if not self.store.shared:
                self.store.purge(version, sequence, number if revised else None)
                self.seal()
        except OSError as error:
            failed = durable.not_written(self.path, error)
            raise CallslipError(
                f"{self.path}: the new generation could not be written: {error.strerror}",
                f"The previous one is still in place. {failed.remedy}",
            ) from None
        folders.remove_orphans(self.path, self.manifest)

    def seal(self) -> None:
        """Checkpoint the store and write its hash into the manifest. The hash is valid until the next commit."""
        assert isinstance(self.store, SqliteStore)
        self.store.settle()
        version, path = self.store.version(), self.store.path
        entry = {"sha256": sha256_of(path), "bytes": path.stat().st_size, "version": version}
        if _log_is_empty(path) and self.store.version() == version:
            self.manifest = {**self.manifest, "store": {**self.manifest["store"], "seal": entry}}
            folders.write_manifest(self.path, self.manifest)

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def close(self) -> None:
        self._let_go()
        self.store.close()

    def __del__(self) -> None:
        self._let_go()


def accept_loss_of(path: str | Path) -> int:
    """Accept the store of an index as it is, without lost commits; returns the number of versions given up."""
    path = Path(path)
    described = folders.read_manifest(path, verify=False)["store"]
    if described["kind"] != "sqlite":
        raise CallslipError(f"{path} keeps its documents in PostgreSQL", "Restore the database from its own backup.")
    with folders.locked(path):
        return accept_loss(path / described["file"])


def open_store(path: Path, manifest: Mapping[str, Any]) -> Store:
    """The store that a manifest names. A store of another index, or an outdated one, is rejected."""
    described = manifest["store"]
    if described["kind"] == "postgres":
        from callslip.storage.postgres_store import PostgresStore

        consent.check_store(path, described["address"])
        store: Store = PostgresStore(described["address"], manifest["index"])
    else:
        check_seal(path / described["file"], described.get("seal"))
        store = SqliteStore(path / described["file"])
    facts = store.facts()
    if facts["index"] != manifest["index"]:
        raise IndexCorrupt(store.place, "it belongs to another index than the manifest")
    if int(facts["version"]) < int(manifest["version"]):
        raise IndexCorrupt(store.place, f"it is of version {facts['version']}, older than the snapshot")
    if not store.shared and int(facts["purged"]) > int(manifest["version"]):
        raise IndexCorrupt(path / folders.MANIFEST, "it is older than the snapshot that the store relies on")
    return store


def check_seal(path: Path, seal: Mapping[str, Any] | None) -> None:
    """Verify the hash of a store that has not been written to since the hash was taken."""
    if seal is None or not path.is_file() or not _log_is_empty(path):
        return
    if path.stat().st_size == seal["bytes"] and sha256_of(path) == seal["sha256"]:
        return
    try:
        store = SqliteStore(path)
        version = store.version()
        store.close()
    except IndexCorrupt:
        raise
    except CallslipError as error:
        raise IndexCorrupt(path, f"damaged: {error.problem}") from None
    # The log may have been empty only for a moment: a concurrent commit creates a new version.
    if version == seal["version"] and _log_is_empty(path) and sha256_of(path) != seal["sha256"]:
        raise IndexCorrupt(path, "the file's contents are not what was saved (SHA-256 differs)")


def _log_is_empty(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return not log.exists() or log.stat().st_size == 0
