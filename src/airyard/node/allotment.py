"""How much of this machine is ours: what a batch system or a control group gave this process, else all of it.

Owns: reading Slurm's variables, CUDA_VISIBLE_DEVICES, affinity and limits of control groups; which GPUs are meant.
Must not know: nodes, the server. Who joins a yard from inside an allocation offers that allocation and nothing else.

Source: Slurm, srun(1) and sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; kernel Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MEBI = 1 << 20
_UNLIMITED_BYTES = 1 << 60
_CGROUPS = Path("/sys/fs/cgroup")
_NOBODY = {"", "none", "nodevfiles", "-1"}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What may be offered. None is everything that is there."""

    gpus: tuple[str, ...] | None = None
    """As CUDA_VISIBLE_DEVICES has them: numbers in NVML's order, or the beginnings of UUIDs."""
    cpus: float | None = None
    memory_bytes: int | None = None
    source: str = ""
    """Who gave it, in words: ``Slurm job 812``."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Allotment:
        """Build from an offer."""
        data = data or {}
        gpus, cpus, memory = data.get("gpus"), data.get("cpus"), data.get("memory_bytes")
        return cls(
            gpus=None if gpus is None else tuple(str(each) for each in gpus),
            cpus=None if cpus is None else float(cpus),
            memory_bytes=None if memory is None else int(memory),
            source=str(data.get("source") or ""),
        )

    def allows(self, index: int, uuid: str, count: int) -> bool:
        """Return whether a GPU may be offered; ``count`` are seen on this machine.

        Where a control group hides the others, the numbers that a batch system knows them by are beyond what is
        seen: then those that are seen are ours.
        """
        if self.gpus is None:
            return True
        numbers = [int(each) for each in self.gpus if each.isdigit()]
        if numbers and max(numbers) >= count and len(self.gpus) >= count:
            return True
        return index in numbers or any(not each.isdigit() and uuid.startswith(each) for each in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the kernel keeps this process to; None: no limit."""

    affinity: int | None = None
    quota_cpus: float | None = None
    memory_bytes: int | None = None


def read(environment: Mapping[str, str], held: Held) -> Allotment:
    """Return what this process was given. Pure."""
    job = environment.get("SLURM_JOB_ID", "")
    cpus = [float(each) for each in (held.affinity, held.quota_cpus) if each is not None]
    memory = [held.memory_bytes] if held.memory_bytes is not None else []
    if job:
        cpus += [float(count) for count in [_number(environment.get("SLURM_CPUS_ON_NODE"))] if count]
        memory += _slurm_memory(environment)
    gpus = _gpus(environment, in_a_job=bool(job))
    return Allotment(
        gpus=gpus,
        cpus=min(cpus, default=None),
        memory_bytes=min(memory, default=None),
        source=f"Slurm job {job}" if job else ("CUDA_VISIBLE_DEVICES" if gpus is not None else ""),
    )


def _gpus(environment: Mapping[str, str], *, in_a_job: bool) -> tuple[str, ...] | None:
    """A job that was given no GPU has none, though it may see them: others compute on them."""
    names = ["CUDA_VISIBLE_DEVICES", *(["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"] if in_a_job else [])]
    given = next((environment[name] for name in names if name in environment), None)
    if given is None:
        return () if in_a_job else None
    return parse_gpus(given)


def parse_gpus(text: str) -> tuple[str, ...] | None:
    """Read ``all``, ``none``, ``0,1``, ``0-3`` or UUIDs; None is all."""
    if text.strip().lower() == "all":
        return None
    out: list[str] = []
    for part in map(str.strip, text.split(",")):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        if span is not None:
            out += [str(number) for number in range(int(span[1]), int(span[2]) + 1)]
        elif part.lower() not in _NOBODY:
            out.append(part)
    return tuple(out)


def parse_memory(text: str) -> int:
    """Read ``64G``, ``512M``, ``1.5T`` (powers of 1024) as bytes. Raises: ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{text!r} is no amount of memory such as 64G or 512M")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _slurm_memory(environment: Mapping[str, str]) -> list[int]:
    """Slurm says MiB, a node or a CPU; 0 is all of the node, and nothing where it does not count memory."""
    node = _number(environment.get("SLURM_MEM_PER_NODE"))
    cpu = _number(environment.get("SLURM_MEM_PER_CPU"))
    cpus = _number(environment.get("SLURM_CPUS_ON_NODE"))
    if node:
        return [node * _MEBI]
    return [cpu * cpus * _MEBI] if cpu and cpus else []


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def held() -> Held:
    """Ask the kernel what this process is kept to."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    quotas, memory = [], []
    for folder in _own_groups():
        quotas += [each for each in (_quota_v2(folder), _quota_v1(folder)) if each is not None]
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _number(_text(folder / name))
            memory += [limit] if limit is not None and limit < _UNLIMITED_BYTES else []
    return Held(
        affinity=affinity if affinity != os.cpu_count() else None,
        quota_cpus=min(quotas, default=None),
        memory_bytes=min(memory, default=None),
    )


def _own_groups() -> Iterator[Path]:
    """Yield this process's folder in every tree of control groups, and those above it."""
    for line in (_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        roots: Sequence[Path] = [_CGROUPS / name for name in (controllers, *controllers.split(",")) if name]
        for root in roots or [_CGROUPS, _CGROUPS / "unified"]:
            folder = root / path.lstrip("/")
            while folder != root.parent:
                yield folder
                folder = folder.parent


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (_text(folder / "cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8").strip()
    return None


def own() -> Allotment:
    """Return what this very process was given."""
    return read(os.environ, held())
