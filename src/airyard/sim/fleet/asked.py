"""What a person asks of a running fleet by ``airyard dev fault``: two files of lines, read while it runs.

Owns: following them, the events that come of made-up faults, whose they are. Must not know: rules, connections.

One file is that of an agent with simulated nodes, judged by the same code. The other one, ``ASKED`` in the fleet's
folder, has entries of a faults file, one JSON object a line. What stood there before the fleet began is over.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airyard.core.errors import AiryardError
from airyard.core.health.sightings import Novelty
from airyard.node.health_simulated import SimulatedFaults
from airyard.sim.fleet.faults import Injector, read_fault
from airyard.sim.fleet.machine import Machine

ASKED = "asked.jsonl"
EVERY_S = 0.5


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class Asked:
    """Follows the two files for all machines."""

    def __init__(
        self,
        machines: Sequence[Machine],
        injector: Injector,
        *,
        faults: Path,
        entries: Path,
        refuse: Callable[[str], None],
    ) -> None:
        self._machines = {machine.node_name: machine for machine in machines}
        self._injector = injector
        self._entries = entries
        self._position = _size(entries)
        self._refuse = refuse
        self._novelty = Novelty()
        self._faults = SimulatedFaults(faults, _size(faults), refuse)
        self._faults.nodes({name: machine.devices for name, machine in self._machines.items()})

    async def follow(self) -> None:
        """Look again and again."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Do what was asked since."""
        steady_ms, now_ms = time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000
        for one in self._novelty.new(self._faults.look(), steady_ms):
            machine = self._machines[one.node]
            machine.report(one.event(uuid.uuid4().hex, machine.name, now_ms).as_json())
        for entry in self._new_entries():
            try:
                self._injector.strike(read_fault(entry, len(self._machines)))
            except AiryardError as error:
                self._refuse(error.message)

    def _new_entries(self) -> list[Mapping[str, Any]]:
        try:
            with self._entries.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._position += whole
        found = []
        for line in data[:whole].splitlines():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                self._refuse(f"{self._entries}: {error}")
        return found
