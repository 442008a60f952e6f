"""What is shipped: a wheel and an sdist that pass `twine check` and run on their own; the Dockerfile."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / ".ci"))


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    for name in ("build", "hatchling", "twine"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} of the extra 'ship' is not installed")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_both_pass_twine_check_and_hold_every_file(dist):
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    listed = subprocess.run(["git", "ls-files", "callslip"], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = set(listed.stdout.split())
    with zipfile.ZipFile(wheel) as held:
        assert ours <= set(held.namelist())
    with tarfile.open(sdist) as held:
        inside = {name.partition("/")[2] for name in held.getnames()}
    assert ours | {"pyproject.toml", "README.md", "LICENSE"} <= inside


def test_the_wheel_runs_where_nothing_else_of_us_is(dist, tmp_path):
    """A new environment with the wheel; its dependencies are this environment's, for they are gigabytes."""
    venv.create(tmp_path / "env", with_pip=True)
    (site,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    paths = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    (site / "dependencies.pth").write_text("\n".join(sorted(paths)) + "\n")
    (wheel,) = dist.glob("*.whl")
    python = tmp_path / "env" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", wheel]
    subprocess.run([*install, "--disable-pip-version-check", "--prefix", tmp_path / "env"], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def callslip(*arguments):
        command = [tmp_path / "env" / "bin" / "callslip", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = subprocess.run(
        [python, "-c", "import callslip; print(callslip.__file__)"], capture_output=True, text=True, env=environment,
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert str(tmp_path / "env") in where.stdout
    callslip("fit", "demo", "--method", "bm25", "--out", "index")
    assert "subprocess" in callslip("search", "index", "run a command and capture what it prints")
    assert "nci" in callslip("methods")


def test_the_dockerfile_is_multi_stage_without_root_and_checks_its_health():
    from run_dockerfile import instructions

    found = instructions((ROOT / "Dockerfile").read_text())
    names = [name for name, _ in found]
    assert names.count("FROM") == 2 and names.index("USER") < names.index("ENTRYPOINT") and "HEALTHCHECK" in names
    assert dict(found)["USER"] == "10001" and dict(found)["VOLUME"] == "/data"
    runs = [rest for name, rest in found if name == "RUN"]
    assert len(runs) == 6 and any("--require-hashes" in line for line in runs)
    for file in re.findall(r"\b(?:constraints|weights)\.txt", " ".join(runs)):
        assert (ROOT / file).is_file()


def test_the_run_lines_are_executed(tmp_path, monkeypatch):
    """The script itself, on a Dockerfile that installs nothing."""
    import run_dockerfile

    (tmp_path / "root").mkdir()
    text = (
        'FROM a AS b\nRUN python -c "print(1)" \\\n  > /wheels/one\nFROM a\nRUN useradd x && cp /wheels/one /data-one\n'
    )
    (tmp_path / "root" / "Dockerfile").write_text(text)
    monkeypatch.setattr(run_dockerfile, "ROOT", tmp_path / "root")
    monkeypatch.setattr(run_dockerfile, "PLACES", ("/wheels", "/data-one"))
    run_dockerfile.run(tmp_path / "out", None, [])
    assert (tmp_path / "out" / "data-one").read_text() == "1\n"
