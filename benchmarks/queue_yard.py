"""A real server and one process in place of the machine, for the benchmark of a long queue, and the load on them.

Owns: their start and end, what runs are submitted, the declared policy. Must not know: what is measured.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airyard.core.workload import (
    Compute,
    Priority,
    Timeouts,
    Tracking,
    Workload,
    freeze_parameters,
    pairs,
)
from airyard.sdk.embedded import read_endpoint
from benchmarks.bench_memory import NOTHING, Use, use_of
from benchmarks.yards import BenchYard

MEAN_S = 250.0
PROJECTS = 8
START_LIMIT_S = 60.0
NOFILE = 1024
"""Open files that a process may have unless it asks for more: what most systems give."""
SHAPES = ((1, 1, 140), (2, 1, 24), (4, 1, 20), (8, 1, 12), (8, 2, 3), (8, 4, 1))
"""Devices a node, nodes, and how many of two hundred runs are so."""
CLASSES = (Priority.CRITICAL, *([Priority.NORMAL] * 14), *([Priority.BEST_EFFORT] * 5))
SOURCE = "experiment_name: bench\ncommand: python train.py\n" * 8


@dataclass(slots=True)
class Load:
    """Runs that differ in shape, project, class, limit and parameters."""

    draw: random.Random = field(default_factory=lambda: random.Random(1))
    made: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> tuple[dict[str, Any], str]:
        """Return the next workload and its idempotency key. Any thread."""
        with self.lock:
            return self._next()

    def _next(self) -> tuple[dict[str, Any], str]:
        draw, self.made = self.draw, self.made + 1
        devices, nodes, _ = draw.choices(SHAPES, weights=[shape[2] for shape in SHAPES])[0]
        compute = Compute.of(f"GPU_{devices}xH100", nodes=nodes)
        project = draw.randrange(PROJECTS)
        rate = draw.uniform(1e-5, 1e-2)
        workload = Workload(
            experiment=f"bench-{project}-{draw.randrange(5)}",
            command="python train.py --config conf/base.yaml",
            compute=replace(compute, priority=draw.choice(CLASSES)),
            project=f"p{project}",
            tags=pairs({"sweep": str(self.made // 50), "team": f"t{project}"}),
            env_variables=pairs({"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"}),
            parameters_json=freeze_parameters(
                {"lr": rate, "layers": draw.randrange(4, 48), "data": "pile-v2"}
            ),
            attempt_timeout_s=draw.choice((None, 3_600, 4 * 3_600, 86_400)),
            timeouts=Timeouts(total_s=draw.choice((None, 7 * 86_400))),
            tracking=Tracking(enabled=False),
        )
        return workload.to_json(), f"bench-{self.made}"


class QueueYard:
    """The two processes and a client of theirs."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.yard = BenchYard(folder / "home", tracking="off")
        home = ["--home", str(self.yard.home)]
        size = ["--nodes", str(nodes), "--mean-s", str(MEAN_S)]
        self.agent = self._start("stand_in_agent", *home, *size)
        _until((self.yard.home / "node" / "agent.sock").exists, START_LIMIT_S, "the stand-in agent")
        self.server = self._start("queue_server", *home, limits=f"ulimit -Sn {NOFILE}; ")
        _until(lambda: read_endpoint(self.yard.home) is not None, START_LIMIT_S, "the server")
        _until((self.yard.home / "server" / "endpoint.json").exists, START_LIMIT_S, "the server")
        self.client = self.yard.client()
        self.load = Load()
        self.client.declare_policy(_policy(nodes * 8))

    def _start(self, module: str, *arguments: str, limits: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
        with open(self.yard.home / f"{module}.log", "ab") as log:
            return subprocess.Popen(
                ["bash", "-c", f'{limits}exec "$@"', "bash", *command],
                cwd=Path(__file__).resolve().parent.parent,
                env=self.yard.environment,
                stdout=log,
                stderr=log,
            )

    def submit(self) -> float:
        """Submit one run; return the milliseconds."""
        workload, key = self.load.next()
        begun = time.perf_counter()
        self.client.submit(workload, source_yaml=SOURCE, idempotency_key=key)
        return (time.perf_counter() - begun) * 1000

    def counts(self) -> tuple[int, int]:
        """Return how many wait and how many are active."""
        counts = self.client.status()["counts"]
        return int(counts["queued"]), int(counts["active"])

    def use(self) -> dict[str, Use]:
        """Return what the processes use."""
        found = {"server": use_of(self.server.pid), "stand-in": use_of(self.agent.pid)}
        rest = [pid for pid in self.yard.processes() if pid not in (self.server.pid, self.agent.pid)]
        found["others"] = sum((use_of(pid) for pid in rest), NOTHING)
        return found | {"all": sum(found.values(), NOTHING)}

    def close(self) -> None:
        """End both at once: eleven thousand runs are not cancelled one by one."""
        for process in (self.server, self.agent):
            process.kill()
            process.wait()
        self.yard.close()


def _policy(devices: int) -> dict[str, Any]:
    """Half of the pool is guaranteed; one project limits who waits."""
    share = devices // (2 * PROJECTS)
    projects = [
        {
            "name": f"p{index}",
            "pools": [{"pool": "h100", "guarantee": share, "weight": 1 + index % 3}],
            "critical": ["*"],
            "per_user": {"waiting": 20_000} if index == 0 else {},
        }
        for index in range(PROJECTS)
    ]
    return {"pools": [{"name": "h100", "accelerator": "GPU_8xH100"}], "projects": projects}


@contextmanager
def queue_yard(folder: Path, nodes: int) -> Iterator[QueueYard]:
    """Give the processes, and end them afterwards."""
    made = QueueYard(folder, nodes)
    try:
        yield made
    except Exception:
        print((made.yard.home / "queue_server.log").read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        made.close()


def _until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come in {limit_s:.0f} s")
        time.sleep(0.05)
