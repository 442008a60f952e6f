"""A server and a second process are killed while both change one index; `benchmarks/attacks.py` does it 500 times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROUNDS = int(os.environ.get("CALLSLIP_SERVED_KILLS", "15"))

# In a process of its own: it forks, and must hold neither torch nor the threads of other tests.
PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import served_kills, word_codes

word_codes.register()
print(served_kills.kills(Path(sys.argv[2]) / "index", int(sys.argv[3]), seed=11))
"""


def test_nothing_acknowledged_is_lost(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path), str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"'rounds': {ROUNDS}" in done.stdout, done.stdout
