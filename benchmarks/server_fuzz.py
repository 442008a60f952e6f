"""Made-up requests against a real server: `python benchmarks/server_fuzz.py INDEX [--cases 5000]`.

The same as `tests/server/test_fuzz.py` with many more cases: any 5xx, undeclared status or answer that does not fit the
API's description ends it with the request that caused it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from server import Server  # benchmarks/server.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--cases", type=int, default=5000, help="in all; spread over the operations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import importlib.util

    spec = importlib.util.spec_from_file_location("fuzzing", Path(__file__).parent.parent / "tests/server/fuzzing.py")
    fuzzing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzing)
    seen: Counter = Counter()
    with tempfile.TemporaryDirectory() as place:
        server = Server(Path(shutil.copytree(options.index, Path(place) / "index")))
        try:
            rounds = 0
            while sum(seen.values()) < options.cases:
                seen += fuzzing.fuzz(f"http://127.0.0.1:{server.port}", server.key, 60, options.seed + rounds)
                rounds += 1
                print(sum(seen.values()), "cases", flush=True)
        finally:
            server.stop()
    statuses: Counter = Counter()
    for (_, status), count in seen.items():
        statuses[status] += count
    result = {
        "cases": sum(seen.values()),
        "server_errors": sum(count for status, count in statuses.items() if status >= 500),
        "statuses": dict(sorted(statuses.items())),
        "operations": {name: sum(n for (one, _), n in seen.items() if one == name) for name, _ in sorted(seen)},
        "seed": options.seed,
    }
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
