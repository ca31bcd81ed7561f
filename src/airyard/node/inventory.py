"""What this machine offers: its nodes and devices, real, simulated and CPU slots.

Owns: naming of nodes and models, reading NVML, shares of cores and memory.
Must not know: who runs what, the server, attempts (it is told which processes are ours).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from airyard.checks.nvml_client import NvmlClient, NvmlRefused, NvmlSilent, there_is_a_library
from airyard.node.allotment import Allotment, own
from airyard.node.gpu_locks import GpuLocks, shared_folder, user_name
from airyard.node.identity import switchable
from airyard.node.network import Wish
from airyard.node.telling import tell

_SIMULATED = re.compile(r"GPU_([1-9][0-9]{0,2})x([A-Za-z0-9][A-Za-z0-9_.-]*)")
_NOISE = re.compile(
    r"^(?:NVIDIA|Tesla|Quadro|GeForce|GRID|Graphics|Device|PCIe?|SXM\d?|NVL|HBM\d\w?|MIG|\d+GB|Generation)$",
    re.I,
)
_LEAST_CPU_SLOTS = 4
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one CPU slot; ``owner`` names who else has it."""

    index: int
    uuid: str
    owner: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the wire form."""
        return {"index": self.index, "uuid": self.uuid, "owner": self.owner}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A schedulable unit of this machine."""

    name: str
    accelerator: str
    model: str | None
    devices: tuple[Device, ...]
    cpus: float
    memory_bytes: int
    simulated: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    run_as: str = ""
    """As whom members can be started here: ``*`` as anybody, else the one account of this process."""

    def as_json(self) -> dict[str, Any]:
        """Return the wire form."""
        return {
            "name": self.name,
            "accelerator": self.accelerator,
            "model": self.model,
            "devices": [device.as_json() for device in self.devices],
            "cpus": self.cpus,
            "memory_bytes": self.memory_bytes,
            "simulated": self.simulated,
            "labels": dict(self.labels),
            "run_as": self.run_as,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is offered besides real GPUs, and in a fleet who this machine is: its name, address and labels there."""

    simulate: Mapping[str, int] = field(default_factory=dict)
    cpu_slots: int | None = None
    lock_folder: Path | None = None
    machine: str = ""
    """Its name in a fleet, part of all its nodes' names; empty where one machine is all there is."""
    address: str = LOOPBACK
    """Where members of a gang reach each other. All nodes of a local yard are on one machine: loopback does."""
    labels: Mapping[str, str] = field(default_factory=dict)
    network: Wish = field(default_factory=Wish)
    allotment: Allotment | None = None
    """How much of this machine may be offered; None: what this process was given."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Offer:
        """Build from ``hello.config``. Raises: ValueError for a type that is no ``GPU_<k>x<MODEL>``."""
        simulate = {str(name): int(count) for name, count in (data.get("simulate") or {}).items()}
        for name in simulate:
            if not _SIMULATED.fullmatch(name):
                raise ValueError(f"{name!r} cannot be simulated: it is no GPU_<count>x<MODEL>")
        slots, folder = data.get("cpu_slots"), data.get("system_gpu_lock_folder")
        return cls(
            simulate=simulate,
            cpu_slots=int(slots) if slots is not None else None,
            lock_folder=Path(folder) if folder else None,
            machine=str(data.get("machine") or ""),
            address=str(data.get("address") or LOOPBACK),
            labels={str(name): str(value) for name, value in (data.get("labels") or {}).items()},
            network=Wish.from_json(data.get("network")),
            allotment=Allotment.from_json(data["allotment"]) if data.get("allotment") else None,
        )


class Nvml(Protocol):
    """The part of NVML that the inventory and the sampler use."""

    def gpus(self) -> list[Gpu]:
        """Return the GPUs in index order."""
        ...

    def values(self, index: int, *, rare: bool = False) -> dict[str, float]:
        """Return the present metrics of one GPU by MLflow's names without ``gpu_<i>_``.

        ``rare``: also those that seldom change or cost more to read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One real GPU and the processes on it."""

    index: int
    uuid: str
    name: str
    pids: frozenset[int]
    problem: str = ""
    """Why it cannot be used although it is there: it does not answer any more."""


def host_name() -> str:
    """Return the machine's short name, safe in a node name."""
    short = socket.gethostname().split(".")[0].lower()
    return re.sub(r"[^a-z0-9-]+", "-", short).strip("-") or "machine"


def model_of(name: str) -> str:
    """Name a model from NVML's product name: ``NVIDIA A100-SXM4-80GB`` is ``A100``.

    Letters before a number are joined to it (``RTX 4090`` is ``RTX4090``, ``RTX 6000 Ada`` is ``RTX6000Ada``).
    """
    words = [word for word in re.split(r"[\s\-_/]+", name) if word and not _NOISE.match(word)]
    if not words:
        return re.sub(r"[^A-Za-z0-9]+", "", name) or "GPU"
    if re.fullmatch(r"[A-Za-z]+", words[0]):
        return "".join(words)
    return words[0]


class Inventory:
    """The machine's nodes, read anew on request."""

    def __init__(self, offer: Offer, nvml: Nvml | None) -> None:
        self._offer = offer
        self._nvml = nvml
        self._host = offer.machine or host_name()
        self._locks: GpuLocks | None = None
        self._run_as = switchable()
        self._allotment = offer.allotment if offer.allotment is not None else own()
        cpus, memory_bytes = psutil.cpu_count() or 1, int(psutil.virtual_memory().total)
        self.cpus = max(1, min(cpus, int(self._allotment.cpus or cpus)))
        self.memory_bytes = min(memory_bytes, self._allotment.memory_bytes or memory_bytes)

    def nodes(self, ours: frozenset[int]) -> list[Node]:
        """Return all nodes; ``ours`` are the processes of our attempts. Claims free real GPUs."""
        nodes = [*self._real(ours), *self._simulated(), *self._cpu_slots()]
        extra = self._offer.labels
        return [replace(node, labels={**node.labels, **extra}, run_as=self._run_as) for node in nodes]

    def close(self) -> None:
        """Let go of the GPUs."""
        if self._locks is not None:
            self._locks.release_all()

    def _real(self, ours: frozenset[int]) -> list[Node]:
        seen = self._nvml.gpus() if self._nvml is not None else []
        gpus = [gpu for gpu in seen if self._allotment.allows(gpu.index, gpu.uuid, len(seen))]
        by_model: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            by_model.setdefault(model_of(gpu.name), []).append(gpu)
        nodes = []
        for model, group in by_model.items():
            share = len(group) / len(gpus)
            nodes.append(
                Node(
                    name=self._host if len(by_model) == 1 else f"{self._host}-{model.lower()}",
                    accelerator=f"GPU_{len(group)}x{model}",
                    model=model,
                    devices=tuple(
                        Device(index=gpu.index, uuid=gpu.uuid, owner=gpu.problem or self._owner(gpu, ours))
                        for gpu in group
                    ),
                    cpus=self.cpus * share,
                    memory_bytes=int(self.memory_bytes * share),
                    labels={"product": group[0].name},
                )
            )
        return nodes

    def _owner(self, gpu: Gpu, ours: frozenset[int]) -> str | None:
        """Say who else has the GPU: another yard by its lock, or any process that is not ours."""
        try:
            if self._locks is None:
                self._locks = GpuLocks(shared_folder(self._offer.lock_folder))
            holder = self._locks.claim(gpu.uuid)
        except OSError as error:
            return f"nobody can be asked: the lock folder cannot be used ({error})"
        if holder is not None:
            return holder
        strangers = sorted(gpu.pids - ours)
        return ", ".join(_describe(pid) for pid in strangers[:3]) or None

    def _simulated(self) -> list[Node]:
        nodes = []
        prefix = f"{self._offer.machine}-" if self._offer.machine else ""
        for accelerator, count in self._offer.simulate.items():
            match = _SIMULATED.fullmatch(accelerator)
            assert match is not None
            size, model = int(match.group(1)), match.group(2)
            for number in range(count):
                name = f"{prefix}sim-{size}x{model.lower()}-{number}"
                nodes.append(
                    Node(
                        name=name,
                        accelerator=accelerator,
                        model=model,
                        devices=tuple(Device(index=i, uuid=f"SIM-{name}-{i}") for i in range(size)),
                        cpus=float(self.cpus),
                        memory_bytes=self.memory_bytes,
                        simulated=True,
                    )
                )
        return nodes

    def _cpu_slots(self) -> list[Node]:
        asked = self._offer.cpu_slots
        slots = asked if asked is not None else max(_LEAST_CPU_SLOTS, self.cpus)
        return [
            Node(
                name=f"{self._host}-cpu-{number}",
                accelerator="CPU",
                model=None,
                devices=(Device(index=0, uuid=f"CPU-{self._host}-{number}"),),
                # Slots share the cores, so a slot offers at least one; memory cannot be shared that way.
                cpus=max(1.0, self.cpus / slots),
                memory_bytes=self.memory_bytes // slots,
            )
            for number in range(slots)
        ]


def _describe(pid: int) -> str:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return f"PID {pid}"
    return f"PID {pid}, user {user_name(uid)}"


class NvidiaMl:
    """NVML through a process of its own, which may hang without the agent; made by ``open_nvml``."""

    def __init__(self, client: NvmlClient) -> None:
        self.client = client
        self._seen: dict[int, Gpu] = {}

    def gpus(self) -> list[Gpu]:
        """See ``Nvml``. One that was there and does not answer any more keeps its place, with its problem.

        Else a node of eight would become one of seven, of another type, whenever a GPU is lost.
        """
        try:
            found = self.client.ask("seen")
        except (NvmlSilent, NvmlRefused) as error:
            found = {"error": str(error), "gpus": []}
        if found["error"]:
            return [
                replace(gpu, pids=frozenset(), problem=_silent(found["error"])) for gpu in self._seen.values()
            ]
        for one in found["gpus"]:
            index = int(one["index"])
            if "error" not in one:
                self._seen[index] = Gpu(
                    index=index, uuid=one["uuid"], name=one["name"], pids=frozenset(one["pids"])
                )
            elif index in self._seen:
                self._seen[index] = replace(
                    self._seen[index], pids=frozenset(), problem=_silent(one["error"])
                )
        return [self._seen[index] for index in sorted(self._seen)]

    def values(self, index: int, *, rare: bool = False) -> dict[str, float]:
        """See ``Nvml``. What a GPU does not tell, or not in time, is left out."""
        try:
            found = self.client.ask("values", index=index, rare=rare)
            return {str(name): float(value) for name, value in found.items()}
        except (NvmlSilent, NvmlRefused):
            return {}


def _silent(error: str) -> str:
    return f"nobody: it does not answer any more ({error})"


def open_nvml() -> NvidiaMl | None:
    """Return NVML when the library and a driver are there, else None.

    A driver that does not answer at once is there all the same: it is asked again later.
    Cost: where there is no library next to nothing, else a process.
    """
    if not there_is_a_library():
        return None
    client = NvmlClient()
    try:
        client.ask("open")
    except NvmlRefused:
        client.close()
        return None
    except NvmlSilent as error:
        tell(f"NVML: {error}; it is asked again later")
    return NvidiaMl(client)
