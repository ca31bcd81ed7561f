"""A fleet of four hosts for the benchmark of gangs, and gangs on it that say when they began and were stopped.

Owns: the fleet on hosts of namespaces, the way onto the server's network, files of workloads. Must not know: what is
measured, other people's launchers.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from airyard.sdk import Client
from airyard.sdk.config import Target
from airyard.sdk.submission import prepare
from benchmarks.yards import environment_cache, wait_ended, yard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from e2e.fleet import Fleet
from e2e.gang_stamps import MEMBER, stamps_ms
from e2e.hosts import Host, Hosts

MEMBERS = 4
KINDS = ("GPU_1xA10", "GPU_1xL4", "GPU_1xT4", "GPU_1xV100", "GPU_1xP100")
"""Kinds of which every host has one simulated node, so that a gang of four lies on four hosts."""
_CLONE_NEWNET = 0x40000000
_WAIT_S = 120.0


@contextmanager
def on_network_of(host: Host) -> Iterator[None]:
    """Have this thread's new sockets, and the processes that it starts, on a host's network."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(fd, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {path}")
        finally:
            os.close(fd)

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(f"/run/netns/{host.namespace}")
        yield
    finally:
        enter(f"/proc/self/fd/{home}")
        os.close(home)


@contextmanager
def gang_fleet(folder: Path) -> Iterator[Fleet]:
    """Give a fleet without tracking: the server on h0, and h1 to h4 with a CPU slot and a node of each kind."""
    cache = folder / "fleet-cache"
    cache.mkdir()
    (cache / "envs").symlink_to(environment_cache(folder))
    # The hosts reach nothing but each other, so the environment is built where there is a network.
    with yard(folder / "alone", cache=environment_cache(folder)) as alone:
        alone.warm()
    with ExitStack() as stack:
        hosts = Hosts(1 + MEMBERS)
        fleet = Fleet(hosts, folder / "fleet", cache)
        stack.callback(fleet.remove_temporary)
        stack.callback(hosts.close)
        fleet.up()
        stack.callback(fleet.close)
        more = [word for kind in KINDS for word in ("--simulated", f"{kind}=1")]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: fleet.join(host, *more), hosts.hosts[1:]))
        yield fleet


class Gangs:
    """Submits gangs over a live client. Use it on the network of h0."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.client = Client(target=Target(home=fleet.home), announce=lambda line: None)
        self._count = 0
        self._code = fleet.folder / "member"
        self._code.mkdir()
        shutil.copy(MEMBER, self._code)

    def folder(self) -> Path:
        """Make a folder for the stamps of a gang."""
        self._count += 1
        folder = self.fleet.folder / f"gang{self._count}"
        folder.mkdir()
        return folder

    def file(self, command: str, accelerator: str = "CPU", **fields: Any) -> Path:
        """Write a workload file of four members."""
        return Path(self.fleet.file(command, accelerator=accelerator, nodes=MEMBERS, **fields))

    def submit(self, path: Path) -> int:
        """Submit a workload file."""
        return int(self.client.submit_prepared(prepare(path))["run"]["run_id"])

    def waiting(self, accelerator: str = "CPU") -> tuple[int, Path]:
        """Start a gang that waits to be stopped; return it once all members have begun."""
        folder = self.folder()
        source = {"type": "snapshot", "snapshot": {"root_path": str(self._code)}}
        command = f"exec python {MEMBER.name} {folder}"
        run_id = self.submit(self.file(command, accelerator, code_source=source))
        until(lambda: len(stamps_ms(folder, "began")) == MEMBERS, f"run {run_id} to begin")
        return run_id, folder

    def attempt(self, run_id: int) -> dict[str, Any]:
        """Return a run's first attempt, whose members must lie on as many hosts."""
        attempt: dict[str, Any] = dict(self.client.get(run_id)["attempts"][0])
        assert len({member["machine"] for member in attempt["members"]}) == MEMBERS, json.dumps(attempt)
        return attempt

    def end(self, run_id: int) -> None:
        """Cancel a run and wait for its end."""
        self.client.cancel(run_id)
        wait_ended(self.client, run_id)


def all_stamps(folder: Path, what: str) -> dict[int, float]:
    """Wait until all members have left a stamp of this kind; return them in milliseconds of CLOCK_BOOTTIME."""
    until(lambda: len(stamps_ms(folder, what)) == MEMBERS, f"{MEMBERS} times {what!r} in {folder}")
    return stamps_ms(folder, what)


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll every 5 ms. Raises: RuntimeError after two minutes."""
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {_WAIT_S:.0f} s for {what}")
        time.sleep(0.005)


def boot_now_ms() -> float:
    """Return CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1e6
