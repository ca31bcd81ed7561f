"""Other launchers on the hosts of a fleet: actors of its Ray started cold, and Slurm's srun.

Owns: their set-up, a launch and a stop by each. Must not know: Airyard's control plane.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airyard.adapters.ray_command import ray_environment
from benchmarks.gang_fleet import MEMBERS, all_stamps, boot_now_ms, until
from benchmarks.yards import bare_environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from e2e.fleet import Fleet
from e2e.gang_stamps import MEMBER, stamps_ms
from slurm_cluster import Place, SlurmCluster, why_no_slurm

BEGAN = 'echo ${EPOCHREALTIME/./} > "$FOLDER/$RANK"'
"""What a member does that only says when it began, in microseconds of the wall clock: bash alone, no other process."""
_END_S = 60

RAY_DRIVER = """
import sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

class Member:
    def hello(self):
        return True

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error", namespace="bench")
nodes = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerAddress"] in sys.argv[2:]]
assert len(nodes) == len(sys.argv) - 2, ray.nodes()
remote = ray.remote(Member)
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    actors = [remote.options(num_cpus=0, scheduling_strategy=On(n, soft=False)).remote() for n in nodes]
    ray.get([actor.hello.remote() for actor in actors])
    print(f"{(time.perf_counter() - started) * 1000:.3f}", flush=True)
    for actor in actors:
        ray.kill(actor)
    time.sleep(0.5)
    print("ended", flush=True)
"""


def last_began_ms(folder: Path) -> float:
    """Wait until all members of ``BEGAN`` have begun; return when the last did, in milliseconds since 1970."""
    until(
        lambda: sum(bool(path.read_text()) for path in folder.iterdir()) == MEMBERS,
        f"{folder} to be complete",
    )
    return max(int(path.read_text()) for path in folder.iterdir()) / 1000


class RayActors:
    """A live driver on h0 that starts an actor on each of the other hosts, and times them to their first answer."""

    def __init__(self, fleet: Fleet) -> None:
        ports = json.loads((fleet.home / "server" / "ray" / "ports.json").read_text())
        first, *others = fleet.hosts.hosts
        addresses = [host.address for host in others]
        command = [sys.executable, "-c", RAY_DRIVER, f"{first.address}:{ports['gcs']}", *addresses]
        self._process = subprocess.Popen(
            [*first.prefix(), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=bare_environment() | ray_environment(fleet.token_file),
            cwd=fleet.folder,
        )
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        while (line := self._process.stdout.readline()).strip() != word:
            if not line:
                raise RuntimeError(f"Ray's driver ended: exit {self._process.wait(_END_S)}")

    def launch(self) -> float:
        """Return the milliseconds from the creation of four actors to the answers of all."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        spent_ms = float(self._process.stdout.readline())
        self._expect("ended")
        return spent_ms

    def close(self) -> None:
        """End the driver."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_END_S)


class Srun:
    """Slurm on the hosts of a fleet, its controller on h0."""

    def __init__(self, fleet: Fleet, cluster: SlurmCluster) -> None:
        self._fleet = fleet
        self._cluster = cluster
        self._count = 0

    def _srun(self, script: str, folder: Path) -> subprocess.Popen[bytes]:
        line = f"export FOLDER={folder} RANK=$SLURM_PROCID; {script}"
        return subprocess.Popen(
            self._cluster.command("srun", f"-N{MEMBERS}", "bash", "-c", line),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._cluster.environment,
            cwd=folder,
        )

    def _folder(self) -> Path:
        self._count += 1
        folder = self._fleet.folder / f"srun{self._count}"
        folder.mkdir()
        return folder

    def launch(self) -> float:
        """Return the milliseconds from the start of srun until all members have begun."""
        folder = self._folder()
        started_ms = time.time() * 1000
        process = self._srun(BEGAN, folder)
        if process.wait(_END_S) != 0:
            raise RuntimeError(f"srun: exit {process.returncode}\n{self._cluster.logs()}")
        return last_began_ms(folder) - started_ms

    def cancel(self) -> float:
        """Return the milliseconds from the start of scancel until SIGTERM has reached all members."""
        folder = self._folder()
        process = self._srun(f"NODE_RANK=$RANK exec {sys.executable} {MEMBER} $FOLDER", folder)
        until(lambda: len(stamps_ms(folder, "began")) == MEMBERS, "srun's members to begin")
        job = self._cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%i")
        started_ms = boot_now_ms()
        self._cluster.run("scancel", job)
        spent_ms = max(all_stamps(folder, "stopped").values()) - started_ms
        process.wait(_END_S)
        return spent_ms


@contextmanager
def slurm_on(fleet: Fleet) -> Iterator[Srun | None]:
    """Give Slurm on a fleet's hosts; None, with the reason printed, where there is none."""
    if (reason := why_no_slurm()) is not None:
        print(f"skipped srun: {reason}")
        yield None
        return
    first, *others = [
        Place(hostname=host.name, address=host.address, prefix=tuple(host.prefix()))
        for host in fleet.hosts.hosts
    ]
    cluster = SlurmCluster(others, controller=first)
    try:
        cluster.start()
        yield Srun(fleet, cluster)
    finally:
        cluster.close()
