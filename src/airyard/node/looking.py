"""Looks at all ranks of one member and their GPUs at once: ``python -m airyard.node.looking``, JSON in, JSON out.

Owns: which process is which rank's, how long a look may take, which GPU belongs to whom. Must not know: who asks, logs,
secrets (``member_look`` masks them), verdicts. A process of its own: what hangs here hangs nobody else.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from airyard.node.stacks import Seen, find_py_spy, look

MOST_RANKS = 64
LOOK_S = 12.0
_AT_ONCE = 4
_GPU_S = 5.0
_BETWEEN_READINGS_S = 0.5
_MOST_PROCESSES = 4096
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "env", "timeout", "nice", "sudo", "srun", "tini"})
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def ranks_of(pids: list[int], told: dict[int, int], member: int, local_size: int) -> dict[int, int]:
    """Return the process of each rank. ``told``: what the ranks themselves said, which goes first.

    Else a launcher's variables say it, of several processes with the same one that of the topmost; else it takes as
    many processes as ranks, seen from the top, shells and launchers left out.
    """
    alive = set(pids)
    found = {rank: pid for rank, pid in told.items() if pid in alive}
    parents = {pid: _parent(pid) for pid in pids[:_MOST_PROCESSES]}
    named: dict[int, int] = {}
    for pid in sorted(parents):
        rank = _rank(pid)
        if rank is not None and _rank(parents[pid]) != rank:
            named.setdefault(rank, pid)
    if named:
        found = {**named, **found}
    elif not found:
        level = [pid for pid in sorted(parents) if parents[pid] not in parents]
        while level and (len(level) < local_size or all(_name(pid) in _SHELLS for pid in level)):
            below = [pid for pid in sorted(parents) if parents[pid] in level]
            if not below:
                break
            level = below
        if len(level) == local_size:
            found = {member * local_size + n: pid for n, pid in enumerate(level)}
    return dict(sorted(found.items())[:MOST_RANKS])


def looked(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is seen of ``{pids, told, member, local_world_size, uuids}``. Cost: ``LOOK_S`` at most."""
    until_s = time.monotonic() + LOOK_S
    told = {int(rank): int(pid) for rank, pid in asked["told"].items()}
    size = int(asked["local_world_size"])
    ranks = ranks_of([int(pid) for pid in asked["pids"]], told, int(asked["member"]), size)
    py_spy = find_py_spy()
    with ThreadPoolExecutor(max_workers=_AT_ONCE + 1) as pool:
        reading = pool.submit(gpus, [str(uuid) for uuid in asked["uuids"]])
        seen = dict(zip(ranks, pool.map(lambda pid: look(pid, until_s, py_spy), ranks.values()), strict=True))
        devices, problem = reading.result()
    first = min(ranks, default=0)
    return {
        "ranks": [
            _row(rank, pid, seen[rank], _own(pid, rank - first, len(ranks), devices))
            for rank, pid in ranks.items()
        ],
        "gpus": devices,
        "gpu_problem": problem,
        "processes": len(asked["pids"]),
    }


def gpus(uuids: list[str]) -> tuple[list[dict[str, Any]], str]:
    """Return two readings of each GPU made one, and why there is none. Cost: half a second; ``_GPU_S`` each at most."""
    if not uuids:
        return [], ""
    from airyard.checks.nvml_client import NvmlClient, NvmlRefused, NvmlSilent

    client = NvmlClient()
    try:
        first = client.ask("states", wait_s=_GPU_S, uuids=uuids)
        time.sleep(_BETWEEN_READINGS_S)
        second = client.ask("states", wait_s=_GPU_S, uuids=uuids)
    except (NvmlSilent, NvmlRefused) as error:
        return [], f"NVML: {error}"
    finally:
        client.close()
    for one, other in zip(first, second, strict=True):
        busy = [row["utilization"] for row in (one, other) if "utilization" in row]
        other.update(least=min(busy), most=max(busy)) if busy else None
    return list(second), ""


def _own(pid: int, position: int, ranks: int, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs of one rank: those that the driver sees it on, else its share by its place."""
    on = [one for one in devices if pid in one.get("pids", ())]
    share = len(devices) // ranks if ranks else 0
    return on or devices[position * share : (position + 1) * share]


def _row(rank: int, pid: int, seen: Seen, devices: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rank": rank,
        "pid": pid,
        "state": seen.state,
        "stack": seen.main,
        "text": seen.text,
    }
    if seen.why:
        row["why"] = seen.why
    if any(one.get("lost") for one in devices):
        row["gpu_lost"] = True
    if devices and all("most" in one for one in devices):
        row.update(
            gpu_least=min(one["least"] for one in devices), gpu_most=max(one["most"] for one in devices)
        )
    return row


def _rank(pid: int) -> int | None:
    try:
        variables = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return None
    for name in _RANK_VARIABLES:
        value = variables.get(name, "")
        if value.isdecimal() and len(value) < 9:
            return int(value)
    return None


def _parent(pid: int) -> int:
    try:
        return psutil.Process(pid).ppid()
    except (psutil.Error, OSError):
        return 0


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except (psutil.Error, OSError):
        return ""


def main() -> int:
    """Answer the question on standard input, and be gone whatever hangs."""
    json.dump(looked(json.load(sys.stdin)), sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
