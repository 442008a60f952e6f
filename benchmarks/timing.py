"""What the speed benchmarks share: interleaved timing, and a file of results that says where it was measured.

Machines are noisy, so figures to compare are taken in turns within one run, and medians are reported.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Median milliseconds of each function, all of them called in turn `rounds` times."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(warm_up + rounds):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if number >= warm_up:
                times[name].append(1000 * (time.perf_counter() - began))
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def machine() -> dict[str, Any]:
    import torch

    from callslip.runtime.process import versions

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": versions(),
    }


def save(name: str, sections: dict[str, Any]) -> None:
    """Write results/NAME.json, keeping the sections of an earlier run that this one did not measure."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(before | sections, indent=2) + "\n", encoding="utf-8")


def show(title: str, figures: Mapping[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<44} {value}", flush=True)
