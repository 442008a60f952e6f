"""Execute the RUN lines of the Dockerfile in a virtual environment, where there is no Docker.

    python .ci/run_dockerfile.py [--reuse SITE_PACKAGES] [--skip WORD ...] FOLDER

Each stage gets a folder of its own; /src, /wheels and /data in a command become folders in it, and `python` the virtual
environment's. With --reuse, packages found in that folder are not downloaded again. Commands that need root and
concern the container alone (useradd, chown) are named and left out; so is a line that contains a --skip word.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTAINER = re.compile(r"^(useradd|chown)\b")
PLACES = ("/src", "/wheels", "/data")


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def run(folder: Path, reuse: Path | None, skip: list[str]) -> None:
    wheels = folder / "wheels"
    stage, where, bin_ = -1, folder, folder
    for name, rest in instructions((ROOT / "Dockerfile").read_text(encoding="utf-8")):
        if name == "FROM":
            stage += 1
            bin_ = environment(folder / f"stage-{stage}", reuse)
            where = folder
        elif name == "COPY" and not rest.startswith("--from"):
            source = folder / "src"
            files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
            for file in filter(None, files.decode().split("\0")):
                if (ROOT / file).is_file():
                    (source / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / file, source / file)
            where = source
        elif name == "RUN":
            wheels.mkdir(parents=True, exist_ok=True)
            execute(rest, where, bin_, folder, skip)


def environment(place: Path, reuse: Path | None) -> Path:
    """The programs of a new virtual environment."""
    venv.create(place, with_pip=True)
    if reuse is not None:
        (site,) = place.glob("lib/python3*/site-packages")
        (site / "reused.pth").write_text(f"{reuse}\n", encoding="utf-8")
    return place / "bin"


def execute(line: str, where: Path, bin_: Path, folder: Path, skip: list[str]) -> None:
    kept = []
    for part in line.split(" && "):
        if CONTAINER.match(part) or any(word in part for word in skip):
            print(f"left out: {part}", flush=True)
            continue
        for place in PLACES:
            part = re.sub(rf"(?<![\w.]){place}\b", str(folder / place[1:]), part)
        kept.append(part)
    if kept:
        command = " && ".join(kept)
        print(f"RUN {command}", flush=True)
        environ = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environ |= {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        subprocess.run(command, shell=True, cwd=where, env=environ, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reuse", type=Path)
    parser.add_argument("--skip", action="append", default=[])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    run(given.folder.resolve(), given.reuse, given.skip)
    program = given.folder.resolve() / "stage-1" / "bin" / "callslip"
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    print(f"the image's program: {shown.stdout.strip()}")


if __name__ == "__main__":
    sys.exit(main())
