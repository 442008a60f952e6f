"""Load on a real server: its overhead, clients at once, overload, slow sockets, a soak.

    python benchmarks/server.py INDEX QUERIES.jsonl [--parts overhead,load,overload,slow,soak] [--out FILE.json]

The server is a process of its own, as `callslip serve` starts it; the client is this one, on the same machine and the
same cores, so what is measured is the two together. A client here is a bare socket: an HTTP library would cost more
than the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from callslip.runtime.process import prepare_threads

prepare_threads(searching=True)
START = "import sys; sys.argv = ['callslip', *sys.argv[1:]]; from callslip.cli import main; main()"


class Client:
    """One connection that is kept."""

    def __init__(self, port: int, key: str = "") -> None:
        self.port, self.key = port, key
        self.reader = self.writer = None

    async def request(self, method: str, path: str, body: dict | None = None) -> tuple[int, bytes]:
        if self.writer is None or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n"
        if self.key:
            head += f"Authorization: Bearer {self.key}\r\n"
        self.writer.write(head.encode() + b"\r\n" + data)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", answer)[1])
        return int(answer[9:12]), await self.reader.readexactly(length)

    async def search(self, query: str) -> int:
        return (await self.request("POST", "/v1/search", {"query": query, "k": 10}))[0]

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class Server:
    """The process that serves."""

    def __init__(self, index: Path) -> None:
        self.home = tempfile.mkdtemp(prefix="callslip-server-")
        env = {**os.environ, "XDG_CONFIG_HOME": self.home}
        command = [sys.executable, "-c", START, "serve", str(index), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        for line in self.process.stderr:
            if found := re.search(r"http://127.0.0.1:(\d+)/", line):
                self.port = int(found[1])
            if "keys for writing: " in line:
                self.key = Path(line.split(": ", 1)[1].strip()).read_text().split("\n")[1].split()[0]
                break

    def memory(self) -> tuple[float, float]:
        """The process's own resident memory in MB, and with the pages of mapped files (libraries, the index)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        own, whole = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("RssAnon", "VmRSS"))
        return own, whole

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        shutil.rmtree(self.home, ignore_errors=True)


def figures(seconds: list[float]) -> dict[str, float]:
    ms = 1000 * np.array(seconds)
    p50, p90, p99 = np.percentile(ms, [50, 90, 99])
    return {
        "p50_ms": round(p50, 2),
        "p90_ms": round(p90, 2),
        "p99_ms": round(p99, 2),
        "p99_over_p50": round(p99 / p50, 2),
    }


async def closed_loop(port: int, queries: list[str], clients: int, seconds: float) -> dict:
    """So many clients, each asking again as soon as it is answered."""
    times: list[float] = []
    statuses: dict[int, int] = {}
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        client, at = Client(port), number * 7
        while time.perf_counter() < end:
            began = time.perf_counter()
            status = await client.search(queries[at % len(queries)])
            times.append(time.perf_counter() - began)
            statuses[status] = statuses.get(status, 0) + 1
            at += 1
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    rate = statuses.get(200, 0) / (time.perf_counter() - began)
    return {"clients": clients, "per_second": round(rate, 1), "statuses": statuses, **figures(times)}


async def open_loop(port: int, queries: list[str], rate: float, seconds: float) -> dict:
    """Requests at a fixed rate, whether or not they are answered."""
    good: list[float] = []
    refused: list[float] = []
    statuses: dict[str, int] = {}
    free: list[Client] = []
    tasks = set()

    async def one(number: int) -> None:
        client = free.pop() if free else Client(port)
        began = time.perf_counter()
        try:
            status = str(await client.search(queries[number % len(queries)]))
        except (OSError, asyncio.IncompleteReadError) as error:
            client.close()
            status = type(error).__name__
            client = Client(port)
        took = time.perf_counter() - began
        statuses[status] = statuses.get(status, 0) + 1
        if status == "200":
            good.append(took)
        elif status == "503":
            refused.append(took)
        free.append(client)

    began = time.perf_counter()
    number = 0
    while (now := time.perf_counter() - began) < seconds:
        while number < now * rate:
            task = asyncio.create_task(one(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.sleep(0.002)
    answered = len(good)  # what came in time; the rest drains afterwards
    await asyncio.gather(*tasks)
    for client in free:
        client.close()
    return {
        "asked_per_second": round(number / seconds, 1),
        "good_per_second": round(answered / seconds, 1),
        "statuses": statuses,
        "good": figures(good),
        "refused": figures(refused) if refused else None,
    }


def overhead(server: Server, index: Path, queries: list[str], count: int) -> dict:
    """One request at a time against the library's own call, in turns."""
    from callslip import load

    library = load(index)
    loop = asyncio.new_event_loop()
    client = Client(server.port)
    own, served = [], []
    for number in range(count + 20):
        query = queries[number % len(queries)]
        began = time.perf_counter()
        library.search(query, k=10)
        middle = time.perf_counter()
        assert loop.run_until_complete(client.search(query)) == 200
        if number >= 20:
            own.append(middle - began)
            served.append(time.perf_counter() - middle)
    ratio = float(np.median(served) / np.median(own))
    each = sorted(a / b for a, b in zip(served, own, strict=True))
    return {"library": figures(own), "server": figures(served), "ratio_of_medians": round(ratio, 3),
            "median_of_ratios": round(each[len(each) // 2], 3)}  # fmt: skip


async def slow_sockets(port: int, queries: list[str], sockets: int, seconds: float) -> dict:
    """Good clients alone, and beside sockets that send a byte of their head every second and come back when cut off."""
    before = await closed_loop(port, queries, 2, seconds)
    over = asyncio.Event()
    opened = cut = 0

    async def slow() -> None:
        nonlocal opened, cut
        while not over.is_set():
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                opened += 1
                for byte in b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 1000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(1)
                    if over.is_set():
                        break
                writer.close()
            except OSError:
                cut += 1

    tasks = [asyncio.create_task(slow()) for _ in range(sockets)]
    await asyncio.sleep(3)
    beside = await closed_loop(port, queries, 2, seconds)
    over.set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"sockets": sockets, "opened": opened, "cut_off": cut, "alone": before, "beside": beside,
            "p99_ratio": round(beside["p99_ms"] / before["p99_ms"], 2)}  # fmt: skip


async def soak(server: Server, queries: list[str], minutes: float, pause: float) -> dict:
    """Searches, explanations, the tree, documents that come and go; memory and files every ten seconds."""
    end = time.perf_counter() + 60 * minutes
    statuses: dict[str, int] = {}
    samples: list[tuple[float, float, float, int]] = []

    async def ask(kind: str, number: int) -> None:
        client, at = Client(server.port, server.key), number
        while time.perf_counter() < end:
            query = queries[at % len(queries)]
            if kind == "search":
                status = await client.search(query)
                await asyncio.sleep(pause)
            elif kind == "read":
                status, _ = await client.request("GET", f"/v1/codes?prefix={at % 8}&depth=2")
                await asyncio.sleep(0.5)
            else:
                name = f"soak-{number}-{at % 5}"
                status, _ = await client.request("PUT", f"/v1/documents/{name}", {"text": query, "title": name})
                await asyncio.sleep(1)
                if at % 3 == 0:
                    status, _ = await client.request("DELETE", f"/v1/documents/{name}")
                if at % 60 == 59:  # deleted documents stay in memory until then
                    status, _ = await client.request("POST", "/v1/compact", {})
            key = f"{kind} {status}"
            statuses[key] = statuses.get(key, 0) + 1
            at += 1
        client.close()

    async def watch() -> None:
        began = time.perf_counter()
        while time.perf_counter() < end:
            samples.append((time.perf_counter() - began, *server.memory(), server.files()))
            await asyncio.sleep(10)

    await asyncio.gather(watch(), ask("read", 0), ask("write", 0), *(ask("search", 11 * n) for n in range(3)))
    at, memory, whole, files = (np.array(one) for one in zip(*samples, strict=True))
    settled = at > at[-1] / 3  # caches fill first
    slope = float(np.polyfit(at[settled] / 3600, memory[settled], 1)[0])
    mean = float(memory[settled].mean())
    return {
        "minutes": minutes,
        "pause_seconds": pause,
        "statuses": statuses,
        "memory_mb": {
            "first": round(memory[0], 1),
            "after_a_third": round(float(memory[settled][0]), 1),
            "last": round(memory[-1], 1),
            "most": round(float(memory.max()), 1),
        },
        "with_mapped_files_mb": {"first": round(whole[0], 1), "last": round(whole[-1], 1)},
        "slope_mb_per_hour": round(slope, 2),
        "slope_percent_per_hour": round(100 * slope / mean, 2),
        "files": {"first": int(files[0]), "last": int(files[-1]), "most": int(files.max())},
        "samples": [[round(a), round(m, 1), round(w, 1), int(f)] for a, m, w, f in samples],
    }  # fmt: skip


def run(server: Server, index: Path, queries: list[str], parts: list[str], options: argparse.Namespace) -> dict:
    found: dict = {}

    def done(name: str, value: dict) -> None:
        found[name] = value
        print(name, json.dumps({k: v for k, v in value.items() if k != "samples"}), flush=True)

    asyncio.run(closed_loop(server.port, queries, 4, 2))  # warm
    if "overhead" in parts:
        done("overhead", overhead(server, index, queries, options.count))
    peak = 0.0
    if "load" in parts or "overload" in parts:
        for clients in (1, 8, 32):
            one = asyncio.run(closed_loop(server.port, queries, clients, options.seconds))
            peak = max(peak, one["per_second"])
            done(f"load-{clients}", one)
    if "overload" in parts:
        one = asyncio.run(open_loop(server.port, queries, 4 * peak, options.seconds))
        done("overload", {"peak_per_second": peak, "goodput_of_peak": round(one["good_per_second"] / peak, 3), **one})
    if "slow" in parts:
        done("slow", asyncio.run(slow_sockets(server.port, queries, 1000, options.seconds)))
    if "soak" in parts:
        done("soak", asyncio.run(soak(server, queries, options.minutes, options.pause)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("queries", type=Path, help="JSONL with a text in each line")
    parser.add_argument("--parts", default="overhead,load,overload,slow")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between a soaking client's searches")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    queries = [json.loads(line)["text"] for line in options.queries.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as place:
        index = Path(shutil.copytree(options.index, Path(place) / "index"))  # a soak writes
        server = Server(index)
        try:
            found = run(server, index, queries, options.parts.split(","), options)
        finally:
            server.stop()
    from callslip.runtime.process import versions

    whole = {"versions": versions(), "cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS", "default"),
             "load_average": os.getloadavg(), **found}  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
