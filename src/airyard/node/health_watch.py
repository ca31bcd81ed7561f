"""Watches the health of the agent's machine: threads that look at one thing after the other, and what they have found.

Owns: the threads, when each source is looked at, ids and times of events, where the reading goes on after a restart.
Must not know: what a reading means (``core/health``, ``checks``), sockets, the server. No source ends a thread: one
that breaks is told of in the agent's log and looked at again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airyard.checks.kernel_follow import KMSG
from airyard.checks.nvml_client import NvmlClient
from airyard.core.health.facts import HealthEvent
from airyard.core.health.sightings import Novelty, Sighting
from airyard.node.exit_record import boot_id, read_json, write_json_by_rename
from airyard.node.health_evidence import EvidenceKeeper
from airyard.node.health_host import HostItself, Ports
from airyard.node.health_kernel import KernelSource, Places
from airyard.node.health_limits import MachineLimits
from airyard.node.health_outbox import HealthOutbox
from airyard.node.health_settings import HealthSettings
from airyard.node.health_simulated import FAULT_FILE, SimulatedFaults

if TYPE_CHECKING:
    from airyard.node.health_gpus import GpuLoads
    from airyard.node.inventory import Node

FOLDER = "health"
MOST_AT_ONCE = 50
AGAIN_S = 15.0
"""What the server has not taken by then is sent again."""
_POSITION_EVERY_S = 30.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_EVER_S = 1e9
_OF_ONE_GPU = ("xid.", "nvlink.", "gpu.")
_JOIN_S = 1.0


class Source(Protocol):
    """Something that is looked at again and again."""

    def every_s(self, settings: HealthSettings) -> float:
        """Return how often."""
        ...

    def look(self) -> list[Sighting]:
        """Look once. What it raises is told of, and it is looked at again. May block its own thread only."""
        ...


class HealthWatch:
    """The health of one machine. Made and spoken to by the agent's own thread."""

    def __init__(
        self, node_folder: Path, on_news: Callable[[], None], nvml: NvmlClient | None = None
    ) -> None:
        """``on_news`` is called from any thread when there is something to send."""
        folder = node_folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._on_news = on_news
        self._settings = HealthSettings.load(folder / "settings.json")
        self._outbox = HealthOutbox(folder / "outbox.jsonl", boot=boot_id())
        self._novelty = Novelty()
        self._evidence = EvidenceKeeper(folder)
        self._lock = threading.Lock()
        self._machine = ""
        self._offered: frozenset[str] = frozenset()
        self._boot = boot_id()
        self.places = Places()
        kernel, faults = self._position()
        self._kernel = KernelSource(self.places, kernel)
        self.limits = MachineLimits(node_folder)
        self._faults = SimulatedFaults(folder / FAULT_FILE, faults, limits=self.limits)
        self._saved: dict[str, Any] = {}  # what the file says now
        self._save_due_s = 0.0
        self._closing = threading.Event()
        self._loads: GpuLoads | None = None
        # Each on a thread of its own: a driver or a disk that does not answer keeps nothing else waiting.
        threads: dict[str, tuple[Source, ...]] = {
            "log": (self._kernel, self._faults),
            "host": (HostItself(node_folder, self.limits, tells_kills=not os.access(KMSG, os.R_OK)),),
        }
        if (ports := Ports()).there:
            threads["ports"] = (ports,)
        if nvml is not None:
            # Here, because most of it is of no use where there is no GPU.
            from airyard.node.health_gpus import GpuLoads, GpuReadings, GpuRules

            rules = GpuRules(self.limits)
            self._loads = GpuLoads(nvml, rules)
            threads["gpus"] = (GpuReadings(nvml, rules, self.places), self._loads)
        self._threads = [
            threading.Thread(target=self._run, args=(sources,), name=f"health-{name}", daemon=True)
            for name, sources in threads.items()
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End soon; a source that blocks is not waited for."""
        self._closing.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)
        self._evidence.close()
        self._save_position()

    def configure(self, said: Mapping[str, Any] | None, machine: str) -> None:
        """Follow what a server says of monitoring; None: it is one that says nothing of it."""
        self._machine = machine
        if said is None:
            return
        settings = HealthSettings.from_json(said)
        if settings != self._settings:
            self._settings = settings
            with contextlib.suppress(OSError):
                settings.save(self._folder / "settings.json")

    def offers(self, nodes: Iterable[Node]) -> None:
        """Say what the agent offers: what happens to other GPUs of the machine is nobody's concern here."""
        known = list(nodes)
        self._faults.nodes(
            {node.name: [one.uuid for one in node.devices] for node in known if node.simulated}
        )
        self._offered = frozenset(one.uuid for node in known for one in node.devices)

    def busy(self, runs_on_gpus: bool) -> None:
        """Say whether a run has a real GPU: then load is looked at more often."""
        if self._loads is not None:
            self._loads.busy = runs_on_gpus

    def waiting(self) -> list[dict[str, Any]]:
        """Return events that the server has not taken yet, the oldest first."""
        return self._outbox.waiting(MOST_AT_ONCE)

    def taken(self, ids: Iterable[str]) -> None:
        """Take note of what the server has."""
        self._outbox.taken(ids)

    # --- the threads

    def _run(self, sources: Sequence[Source]) -> None:
        looked_s = [-_EVER_S] * len(sources)
        told: set[str] = set()
        pause_s = 0.0
        while not self._closing.wait(pause_s):
            settings = self._settings
            for place, source in enumerate(sources):
                if not settings.enabled or time.monotonic() < looked_s[place] + source.every_s(settings):
                    continue
                try:
                    self._report(source.look())
                except Exception as error:  # a bug in one look must not end all the others
                    if repr(error) not in told:
                        told.add(repr(error))
                        traceback.print_exc()
                looked_s[place] = time.monotonic()
            if time.monotonic() >= self._save_due_s:
                self._save_position()
            due_s = min(at + source.every_s(settings) for at, source in zip(looked_s, sources, strict=True))
            # What is wanted may change: it is asked for again soon.
            pause_s = min(max(due_s - time.monotonic(), _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            pause_s = pause_s if settings.enabled else _LONGEST_PAUSE_S

    def _report(self, found: Iterable[Sighting]) -> None:
        steady_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            new = self._novelty.new(filter(self._is_ours, found), steady_ms)
            events = self._evidence.note(self._event(one, now_ms, steady_ms) for one in new)
            if not events or not self._outbox.add(events):
                return
            self._save_position()
        self._on_news()

    def _is_ours(self, one: Sighting) -> bool:
        """False for a GPU of this machine that the agent does not offer: a batch system may have given it to others."""
        if one.node or not self._offered:
            return True
        if one.device_uuid:
            return one.device_uuid in self._offered
        return not (one.pci and one.rule.startswith(_OF_ONE_GPU) and self.places)

    def _event(self, one: Sighting, now_ms: int, steady_ms: int) -> HealthEvent:
        # A line of the kernel's is the same event also when an agent reads it twice.
        event_id = f"{self._boot[:8]}-{one.mark}-{one.rule}" if one.mark else uuid.uuid4().hex
        at_ms = now_ms if one.at_ms is None else now_ms - max(steady_ms - one.at_ms, 0)
        return one.event(event_id, self._machine, at_ms)

    def _position(self) -> tuple[int | None, int]:
        found = read_json(self._folder / "position.json") or {}
        kernel = found.get("kernel") if found.get("boot_id") == self._boot else None
        faults = found.get("faults")
        return (
            kernel if isinstance(kernel, int) else None,
            faults if isinstance(faults, int) else 0,
        )

    def _save_position(self) -> None:
        """Note how far was read. After a crash what came since is read again, and gets the same ids."""
        self._save_due_s = time.monotonic() + _POSITION_EVERY_S
        now = {
            "boot_id": self._boot,
            "kernel": self._kernel.position,
            "faults": self._faults.position,
        }
        if now != self._saved:
            with contextlib.suppress(OSError):
                write_json_by_rename(self._folder / "position.json", now)
            self._saved = now
