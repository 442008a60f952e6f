"""API keys and their scopes. Keys are compared in constant time and never logged; key files must be private."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from callslip.errors import BadInput, BadSetting

Scope = Literal["open", "search", "write", "admin"]
"""The scope that a route requires: none, or one of the three scopes of a key."""
SCOPES = frozenset(get_args(Scope)) - {"open"}
LEAST_BYTES = 32


class Keys:
    """Access control. On loopback anyone may search; everything else needs a key."""

    def __init__(self, keys: Mapping[str, frozenset[str]], *, anonymous: frozenset[str] = frozenset()) -> None:
        for scopes in keys.values():
            if unknown := sorted(scopes - SCOPES):
                raise BadSetting(f"unknown scope {unknown[0]!r}", f"Scopes: {', '.join(sorted(SCOPES))}.")
        if any(len(key.encode()) < LEAST_BYTES for key in keys):
            raise BadSetting(
                f"an API key has fewer than {LEAST_BYTES} bytes",
                'Generate one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
            )
        # Compare digests, so that timing does not reveal even the length of a key.
        self._keys = [(_digest(key), scopes) for key, scopes in keys.items()]
        self.anonymous = anonymous

    def allowed(self, key: str | None) -> frozenset[str] | None:
        """The scopes of a key, or of anonymous requests without a key; None if the key is unknown."""
        if key is None:
            return self.anonymous
        given, found = _digest(key), None
        for digest, scopes in self._keys:  # always compare all, for constant time
            if hmac.compare_digest(given, digest):
                found = scopes
        return None if found is None else found | self.anonymous


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> dict[str, frozenset[str]]:
    """Read a key file: one key per line, followed by its scopes, as in `KEY search,write`; # starts a comment."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(path, f"the keys cannot be read: {error}", remedy="Give a text file.") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(path, "other users can read the key file", remedy=f"Make it private: chmod 600 {path}")
    keys: dict[str, frozenset[str]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            remedy = "Write KEY search,write,admin: the key, followed by its scopes."
            raise BadInput(path, "expected a key and its scopes", line=number, remedy=remedy)
        keys[words[0]] = frozenset(filter(None, words[1].split(",")))
    if not keys:
        raise BadInput(path, "the key file is empty", remedy="Write KEY search,write,admin.")
    return keys


def own_keys(folder: Path | None = None) -> tuple[Path, dict[str, frozenset[str]]]:
    """The user's key file, created with one key of all scopes if missing, and its keys."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = (folder or home / "callslip") / "keys"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        contents = f"# callslip serve: a key, followed by its scopes\n{secrets.token_urlsafe(32)} search,write,admin\n"
        try:
            # Private from the start, and never through a symlink planted by another user.
            place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:  # another server created it first
            return path, read_keys(path)
        with os.fdopen(place, "w", encoding="utf-8") as file:
            file.write(contents)
    return path, read_keys(path)


def is_loopback(host: str) -> bool:
    """Whether a listening address accepts only local connections."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a host name may resolve to any address


def keys_for(host: str, path: Path | None) -> tuple[Keys, Path | None]:
    """The keys of a server at this address, and their file, which is required for addresses other than loopback."""
    if is_loopback(host):
        used, keys = (path, read_keys(path)) if path is not None else own_keys()
        return Keys(keys, anonymous=frozenset({"search"})), used
    if path is None:
        raise BadSetting(
            f"{host} is reachable from other machines, but there are no API keys",
            "Give --keys FILE with one key per line (KEY search,write,admin; 32 bytes or more), or use 127.0.0.1.",
        )
    return Keys(read_keys(path)), path
