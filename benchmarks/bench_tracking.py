"""A metric batch through the proxy beside the same batch straight to MLflow, and what the embedded MLflow costs.

Owns: the comparison. Must not know: the control loop. Both ways end in the same MLflow process and database; rounds
alternate, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI

from airyard.adapters.mlflow_rest import MlflowTracker
from airyard.adapters.mlflow_server import EmbeddedMlflow
from airyard.adapters.tracking_spool import Spools
from airyard.ports.tracker import OpenRun, TrackerKind
from airyard.server.mlflow_proxy import MlflowProxy, router

ROUNDS = 300
METRICS = 10
START_LIMIT_S = 120.0


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an application on loopback from a thread."""
    # Naming the protocol matters: asyncio sets TCP_NODELAY only on sockets that carry its number.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def batches(client: httpx.Client, run_id: str, first: int) -> Callable[[], float]:
    """Return what sends one batch of metrics and says how many milliseconds it took."""
    step = first

    def send() -> float:
        nonlocal step
        step += 1
        points = [{"key": f"m{n}", "value": 0.5, "timestamp": step, "step": step} for n in range(METRICS)]
        body = {"run_id": run_id, "metrics": points}
        started = time.perf_counter()
        client.post("/api/2.0/mlflow/runs/log-batch", json=body).raise_for_status()
        return (time.perf_counter() - started) * 1000

    return send


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


def compare(mlflow: EmbeddedMlflow, spools: Spools, rounds: int) -> None:
    """Print the medians of both ways and their ratio."""
    proxy: MlflowProxy[None] = MlflowProxy(
        upstream=mlflow.endpoint,
        authorise=lambda request: None,
        scope_of=lambda principal: None,
        spools=spools,
    )
    app = FastAPI()
    app.include_router(router(proxy))
    tracker = MlflowTracker(mlflow.endpoint)
    opened = tracker.open_run(
        OpenRun(key="bench/1.0", experiment="bench", run_name="bench", start_ms=0, user="bench")
    )
    tracker.close()
    with served(app) as url, mlflow.endpoint.client() as straight:
        with httpx.Client(base_url=f"{url}/mlflow") as through:
            direct, proxied = (
                batches(straight, opened.run_id, 0),
                batches(through, opened.run_id, 1_000_000),
            )
            pairs = [(direct(), proxied()) for _ in range(rounds + 20)][20:]
    direct_ms, proxied_ms = (statistics.median(values) for values in zip(*pairs, strict=True))
    print(
        f"{METRICS} metrics a batch: straight {direct_ms:.1f} ms, through the proxy {proxied_ms:.1f} ms; "
        f"ratio {proxied_ms / direct_ms:.2f} (medians of {rounds} alternating rounds)"
    )


def main(argv: Sequence[str] = ()) -> int:
    """Print the start and memory of the embedded MLflow, then the cost of the proxy."""
    parser = argparse.ArgumentParser(prog="bench_tracking", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    rounds = 20 if parser.parse_args(argv).quick else ROUNDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spools = Spools(folder / "spool")
        mlflow = EmbeddedMlflow(folder / "mlflow", folder / "mlflow.log")
        mlflow.start()
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while mlflow.state().kind is not TrackerKind.UP:
                if time.monotonic() > deadline:
                    print(f"MLflow did not start: {mlflow.state().detail}")
                    return 1
                time.sleep(0.02)
            start_s, pid = (mlflow.start_duration_ms or 0) / 1000, mlflow.pid
            print(
                f"embedded MLflow: first answer after {start_s:.1f} s, {memory_mb(pid or 0):.0f} MB resident"
            )
            compare(mlflow, spools, rounds)
        finally:
            mlflow.stop()
            spools.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
