"""API keys and what they allow. A key is compared in constant time and never logged; files of keys are private."""

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
"""What a route asks for: nothing, or one of the three things that a key may allow."""
SCOPES = frozenset(get_args(Scope)) - {"open"}
LEAST_BYTES = 32


class Keys:
    """Who may do what. On loopback anybody may search; everything else takes a key."""

    def __init__(self, keys: Mapping[str, frozenset[str]], *, anonymous: frozenset[str] = frozenset()) -> None:
        for scopes in keys.values():
            if unknown := sorted(scopes - SCOPES):
                raise BadSetting(f"unknown scope {unknown[0]!r}", f"Scopes: {', '.join(sorted(SCOPES))}.")
        if any(len(key.encode()) < LEAST_BYTES for key in keys):
            raise BadSetting(
                f"an API key of fewer than {LEAST_BYTES} bytes",
                'Make one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
            )
        # Digests are compared, so that not even the length of a key can be told from the time it takes.
        self._keys = [(_digest(key), scopes) for key, scopes in keys.items()]
        self.anonymous = anonymous

    def allowed(self, key: str | None) -> frozenset[str] | None:
        """The scopes of a key, or of nobody's; None if the key is not one of ours."""
        if key is None:
            return self.anonymous
        given, found = _digest(key), None
        for digest, scopes in self._keys:  # all of them, whichever fits
            if hmac.compare_digest(given, digest):
                found = scopes
        return None if found is None else found | self.anonymous


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_keys(path: Path) -> dict[str, frozenset[str]]:
    """Keys of a file: one a line, then what it may do, as in `KEY search,write`; # begins a comment."""
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(path, f"the keys cannot be read: {error}", remedy="Give a text file.") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(path, "others may read these keys", remedy=f"Keep them to yourself: chmod 600 {path}")
    keys: dict[str, frozenset[str]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            remedy = "Write KEY search,write,admin: the key, and the scopes that it has."
            raise BadInput(path, "a key and its scopes are wanted", line=number, remedy=remedy)
        keys[words[0]] = frozenset(filter(None, words[1].split(",")))
    if not keys:
        raise BadInput(path, "there is no key in this file", remedy="Write KEY search,write,admin.")
    return keys


def own_keys(folder: Path | None = None) -> tuple[Path, dict[str, frozenset[str]]]:
    """This user's key file, made with a key for everything if there is none, and what it holds."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = (folder or home / "callslip") / "keys"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        contents = f"# callslip serve: a key, then what it may do\n{secrets.token_urlsafe(32)} search,write,admin\n"
        try:
            # Private from its first byte on, and never through a link that somebody else has laid there.
            place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:  # another server was faster
            return path, read_keys(path)
        with os.fdopen(place, "w", encoding="utf-8") as file:
            file.write(contents)
    return path, read_keys(path)


def is_loopback(host: str) -> bool:
    """Whether an address to listen at can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # a name may stand for any address


def keys_for(host: str, path: Path | None) -> tuple[Keys, Path | None]:
    """The keys of a server at this address, and the file where they are; an address that others reach needs a file."""
    if is_loopback(host):
        used, keys = (path, read_keys(path)) if path is not None else own_keys()
        return Keys(keys, anonymous=frozenset({"search"})), used
    if path is None:
        raise BadSetting(
            f"{host} can be reached from other machines, and there are no API keys",
            "Give --keys FILE with a key a line (KEY search,write,admin; 32 bytes or more), or stay on 127.0.0.1.",
        )
    return Keys(read_keys(path)), path
