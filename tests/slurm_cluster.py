"""A real Slurm for tests: munged, slurmctld and slurmds out of one temporary folder, on loopback or on hosts.

Owns: the configuration, starting, stopping, Slurm's commands. Must not know: Airyard.
Everything runs as root, without systemd and without /etc/slurm. On one machine each node is a slurmd of a port of its
own; given hosts of namespaces (e2e.hosts), a node is one of them, and its jobs see that host's network and processes.
Pitfalls kept away here: a node claims more CPUs and GPUs than the machine has (``config_overrides``, GPU files made by
mknod); ``linuxproc`` tracks processes by their parents alone, so what a job's process detaches is not killed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue")
START_S = 60.0
END_S = 30.0
LOOPBACK = "127.0.0.1"


def why_no_slurm() -> str | None:
    """Return why Slurm cannot be started here; None when it can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in DAEMONS if _find(name) is None]
    packages = "munge, slurmctld, slurmd, slurm-client; `make packages` installs them"
    return f"not installed: {', '.join(missing)} (packages {packages})" if missing else None


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a daemon runs: its host's name and address, and what makes a command run there."""

    hostname: str
    address: str = LOOPBACK
    prefix: tuple[str, ...] = ()


def here() -> Place:
    """Return this machine, without a namespace."""
    return Place(hostname=socket.gethostname().partition(".")[0])


def _free_ports(count: int) -> list[int]:
    """Return ports that are free at this moment."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class SlurmCluster:
    """Nodes n0, n1, ... in the partition ``yard``, none in use; ``folder`` holds everything.

    ``controller`` and the places of the nodes are this machine unless given. A node has ``cpus`` CPUs and ``gpus``
    GPUs that are only files; jobs may share it as far as they go.
    """

    def __init__(
        self, nodes: int | Sequence[Place], *, controller: Place | None = None, cpus: int = 8, gpus: int = 0
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ay-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.places = [here()] * nodes if isinstance(nodes, int) else list(nodes)
        self.names = [f"n{number}" for number in range(len(self.places))]
        self._controller = controller or here()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._write(cpus, gpus)

    @property
    def config(self) -> Path:
        """The file that SLURM_CONF names."""
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with what Slurm's commands need, and nothing of another Slurm."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return {**kept, "SLURM_CONF": str(self.config)}

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the line that runs one of Slurm's commands where the controller is; it needs ``environment``."""
        return [*self._controller.prefix, _find(name) or name, *arguments]

    def run(self, name: str, *arguments: str, timeout: float = 60) -> str:
        """Run one of Slurm's commands to its end, which must be good; return what it printed."""
        done = subprocess.run(
            self.command(name, *arguments),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.folder,
        )
        assert done.returncode == 0, (name, arguments, done.stdout, done.stderr, self.logs())
        return done.stdout.strip()

    def start(self) -> None:
        """Start the daemons and wait until every node is idle."""
        munge = [_find("munged") or "munged", "--foreground", "--force", "--num-threads=2"]
        paths = {
            "key-file": "key",
            "socket": "munge.socket",
            "pid-file": "munge.pid",
            "log-file": "munge.log",
        }
        files = [f"--{option}={self.folder / 'munge' / name}" for option, name in paths.items()]
        self._start("munged", [*munge, *files, f"--seed-file={self.folder / 'munge' / 'seed'}"])
        self._wait(lambda: (self.folder / "munge" / "munge.socket").exists(), "munged's socket")
        self._start("slurmctld", self.command("slurmctld", "-D"))
        for name, place in zip(self.names, self.places, strict=True):
            self._start(name, [*place.prefix, _find("slurmd") or "slurmd", "-D", "-N", name])
        self._wait(self._all_idle, "idle nodes")

    def state_of(self, job: str) -> str:
        """Return a job's state, such as RUNNING; ``ENDED`` when the queue has forgotten it."""
        found = self.run("squeue", "--noheader", "--states=all", "--format=%i %T")
        states = dict(line.split() for line in found.splitlines())
        return states.get(job, "ENDED")

    def logs(self) -> str:
        """Return the end of what the daemons wrote."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')[-1500:]}" for file in files)

    def close(self) -> None:
        """End the jobs and the daemons, kill what is left of them, and remove the folder; harmless when down."""
        if len(self._processes) > 1:
            subprocess.run(
                self.command("scancel", "--full", "--signal=KILL", "--user=root"),
                env=self.environment,
                capture_output=True,
                timeout=END_S,
                check=False,
            )
        for process in reversed(self._processes):
            _end(process)
        self._processes.clear()
        self._sweep()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, cpus: int, gpus: int) -> None:
        for name in ("munge", "state", "spool", "dev", *(f"spool/{name}" for name in self.names)):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for number in range(gpus):
            os.mknod(self.folder / "dev" / f"g{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        ports = _free_ports(1 + len(self.places))
        resources = f"CPUs={cpus} RealMemory=16000" + (f" Gres=gpu:{gpus}" if gpus else "")
        lines = [*_SETTINGS, f"SlurmctldPort={ports[0]}", f"AuthInfo=socket={self.folder}/munge/munge.socket"]
        lines += [f"SlurmctldHost={self._controller.hostname}({self._controller.address})"]
        lines += [f"StateSaveLocation={self.folder}/state", f"SlurmdSpoolDir={self.folder}/spool/%n"]
        lines += [
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
        ]
        lines += ["GresTypes=gpu"] if gpus else []
        for name, place, port in zip(self.names, self.places, ports[1:], strict=True):
            where = f"NodeHostname={place.hostname} NodeAddr={place.address} Port={port}"
            lines.append(f"NodeName={name} {where} {resources}")
        lines.append("PartitionName=yard Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        self.config.write_text("\n".join(lines) + "\n")
        files = f"Name=gpu File={self.folder}/dev/g[0-{gpus - 1}]\n" if gpus else ""
        (self.folder / "gres.conf").write_text(files)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start(self, name: str, line: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    line,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def _all_idle(self) -> bool:
        found = subprocess.run(
            self.command("sinfo", "--noheader", "--Node", "--format=%T"),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.split() == ["idle"] * len(self.names)

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not done():
            ended = [process.args for process in self._processes if process.poll() is not None]
            assert not ended, (ended, self.logs())
            assert time.monotonic() < deadline, (f"no {what} within {START_S:g} s", self.logs())
            time.sleep(0.05)

    def _sweep(self) -> None:
        """Kill what carries this cluster's SLURM_CONF: slurmd's steps, and what a job left behind."""
        mark = f"SLURM_CONF={self.config}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:  # it ended meanwhile
                continue


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a daemon and its group: on a host, the child of nsenter is the daemon."""
    for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, END_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(wait_s)
            return
        except subprocess.TimeoutExpired:
            continue


_SETTINGS = (
    "ClusterName=yard",
    "SlurmUser=root",
    "SlurmdUser=root",
    "AuthType=auth/munge",
    "CredType=cred/munge",
    "MpiDefault=none",
    "SwitchType=switch/none",
    "ProctrackType=proctrack/linuxproc",
    "TaskPlugin=task/none",
    "JobAcctGatherType=jobacct_gather/none",
    "AccountingStorageType=accounting_storage/none",
    "SelectType=select/cons_tres",
    "SelectTypeParameters=CR_CPU",
    "SchedulerType=sched/backfill",
    "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0",
    "SlurmdParameters=config_overrides",
    "ReturnToService=2",
    "KillWait=5",
    "InactiveLimit=0",
    "SlurmctldTimeout=30",
    "SlurmdTimeout=30",
    "SlurmctldDebug=info",
    "SlurmdDebug=info",
)
