"""Faults that are made up for simulated nodes, for tests and for trying out: a file of lines, judged as real ones are.

Owns: the file, its lines and what is wrong with them, which nodes they may concern. Must not know: what a line of a
kernel or a reading means. A line that is none is told of once, in the agent's log, and keeps no other from being read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from airyard.checks.kernel_follow import LineFindings
from airyard.core.health.kernel_watch import KernelWatch
from airyard.core.health.sightings import Sighting
from airyard.core.plain import is_number
from airyard.node.health_limits import MachineLimits
from airyard.node.health_settings import HealthSettings
from airyard.node.pair_simulated import script_of
from airyard.node.telling import tell

if TYPE_CHECKING:
    from airyard.checks.contract import Thresholds
    from airyard.checks.gpu_watch import GpuWatch
    from airyard.checks.nvml import Gpu
    from airyard.checks.port_watch import PortWatch

FAULT_FILE = "simulated-faults.jsonl"
_MOST_BYTES = 1 << 20
_LONGEST_DOWN_S = 86_400
_LONGEST_LOAD_S = 600
_LOOKS_EVERY_S = 5
_WHAT = ("kernel", "nvml", "load", "port", "pair")
_NO_READINGS = frozenset({"index", "uuid", "errors"})
_KEYS = frozenset({"node", "device", "down_s", *_WHAT})


class SimulatedFaults:
    """One fault a line. Nothing in it can concern a node that is not simulated.

    ``{"node": "sim-8xh100-0", "device": 3, "kernel": "NVRM: Xid (PCI:0000:14:00): 79, ..."}`` is what its kernel says.
    ``{"node": "sim-8xh100-0", "device": 3, "nvml": {"recovery_action": 2}}`` is how its GPU reads from now on, by the
    names of ``checks/nvml.py``; null: as a good one. ``{"node": "sim-8xh100-0", "device": 3, "load": {"clock_reasons":
    64, "temperature_c": 92, "seconds": 60}}`` is a GPU that was at work like this for so long, by the names of
    ``checks/nvml_load.py``. ``{"node": "sim-8xh100-0", "port": "mlx5_0/1", "down_s": 240}`` is an RDMA port that has
    been down for so long. ``{"node": "sim-8xh100-0", "pair": {"busbw_share": 0.4}}`` is how it fares in tests of pairs
    (``pair_simulated.py`` reads it then). ``tell`` gets what is wrong with a line, with its number.
    """

    def __init__(
        self,
        path: Path,
        after: int,
        tell: Callable[[str], None] = tell,
        limits: MachineLimits | None = None,
    ) -> None:
        self._path = path
        self.position = after
        """How much of the file was read."""
        self._line: int | None = 0 if not after else None
        """The number of the last line that was read; None until it was counted."""
        self._tell = tell
        self._limits = limits or MachineLimits(path)  # of no folder: the packaged ones
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._kernels: dict[str, tuple[LineFindings, KernelWatch]] = {}
        self._gpus: dict[str, _SimulatedGpus] = {}
        self._ports: dict[str, _SimulatedPorts] = {}
        self._number = 0

    def nodes(self, simulated: Mapping[str, Sequence[str]]) -> None:
        """Say which nodes are simulated, with the names of their devices. Any thread."""
        self._nodes = {name: tuple(devices) for name, devices in simulated.items()}

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.kernel_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``."""
        if not self._nodes:
            return []
        found: list[Sighting] = []
        for number, line in self._new_lines():
            if not line.strip():
                continue
            try:
                found += self._fault(_object(line))
            except ValueError as error:
                self._tell(f"{self._path}, line {number}: {error}; it is left out")
        return found

    def _new_lines(self) -> list[tuple[int, bytes]]:
        """Return the whole lines that were written since, with their numbers."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self.position:
                    self.position, self._line = 0, 0  # another file
                file.seek(0)
                if self._line is None:
                    self._line = file.read(self.position).count(b"\n")
                file.seek(self.position)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        # A line without an end is still being written, unless it is longer than any can be.
        whole = data.rfind(b"\n") + 1 or (len(data) if len(data) == _MOST_BYTES else 0)
        self.position += whole
        first = self._line + 1
        self._line += data[:whole].count(b"\n")
        lines = data[:whole].split(b"\n")
        return list(enumerate(lines if lines[-1] else lines[:-1], start=first))

    def _fault(self, said: Mapping[str, Any]) -> list[Sighting]:
        """Return what a line leads to. Raises: ValueError that says what is wrong with it."""
        node, devices, device = self._place(said)
        what = next((name for name in _WHAT if name in said), "")
        if sum(name in said for name in _WHAT) != 1:
            raise ValueError(f"it needs one of {', '.join(_WHAT)}")
        if ("down_s" in said) is not (what == "port"):
            raise ValueError("port and down_s go together")
        if what == "kernel":
            found = self._said(node, said["kernel"])
        elif what == "nvml":
            found = self._gpus_of(node, devices).changed(device, said["nvml"])
        elif what == "load":
            found = self._gpus_of(node, devices).worked(device, said["load"])
        elif what == "pair":
            script_of(said["pair"])
            found = []
        else:
            found = self._ports.setdefault(node, _SimulatedPorts()).down(said["port"], said["down_s"])
        uuid = devices[device] if device is not None else ""
        return [
            replace(one, node=node, device=device, device_uuid=uuid, mark="", at_ms=None) for one in found
        ]

    def _gpus_of(self, node: str, devices: Sequence[str]) -> _SimulatedGpus:
        limits = self._limits.of("", node)
        found = self._gpus.get(node)
        if found is None:
            found = self._gpus[node] = _SimulatedGpus(devices, limits)
        found.follow(limits)
        return found

    def _place(self, said: Mapping[str, Any]) -> tuple[str, tuple[str, ...], int | None]:
        if unknown := sorted(set(said) - _KEYS):
            raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(_KEYS))}")
        node, device = said.get("node"), said.get("device")
        devices = self._nodes.get(node) if isinstance(node, str) else None
        if devices is None:
            raise ValueError(f"node {node!r} is none of the simulated ones here: {', '.join(self._nodes)}")
        if device is not None and (type(device) is not int or not 0 <= device < len(devices)):
            raise ValueError(f"device {device!r}: {node} has devices 0 to {len(devices) - 1}")
        return str(node), devices, device

    def _said(self, node: str, text: Any) -> list[Sighting]:
        if not isinstance(text, str):
            raise ValueError("kernel is a text")
        lines, watch = self._kernels.setdefault(node, (LineFindings(node), KernelWatch()))
        self._number += 1
        finding, _ = lines.take(text.encode(), self._number)
        if finding is None:
            raise ValueError("no rule knows this line of a kernel's log, or it is not the kernel's own")
        now_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
        return watch.judge([finding], now_ms)


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        said = json.loads(line)
    except RecursionError:
        said = None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ValueError("it is no JSON object")
    return said


def _of_kind(name: str, value: Any) -> Any:
    """Return what a reading means, a list as a tuple. Raises: ValueError where it is not of its kind."""
    from airyard.checks.nvml import Gpu

    kinds = get_type_hints(Gpu)[name]
    for kind in get_args(kinds) if isinstance(kinds, UnionType) else (kinds,):
        if get_origin(kind) is tuple and isinstance(value, list):
            if all(_is(each, get_args(kind)[0]) for each in value):
                return tuple(value)
        elif _is(value, kind):
            return value
    raise ValueError(f"{name} is {kinds if isinstance(kinds, UnionType) else kinds.__name__}, not {value!r}")


def _is(value: Any, kind: Any) -> bool:
    return is_number(value) if kind is float else type(value) is kind


class _SimulatedGpus:
    """The GPUs of one simulated node: in good health until the file says otherwise."""

    def __init__(self, devices: Sequence[str], limits: Thresholds) -> None:
        # Here, because an agent needs all this only where there are GPUs, or somebody makes faults up.
        from airyard.checks.gpu_watch import GpuWatch
        from airyard.checks.nvml import Gpu

        self._watch: GpuWatch = GpuWatch(limits)
        self._gpus: list[Gpu] = [
            Gpu(
                index=index,
                uuid=uuid,
                name="simulated",
                corrected=0,
                uncorrected=0,
                remapped_uncorrected=0,
                remap_pending=False,
                remap_failure=False,
                recovery_action=0,
                pcie_width=16,
                pcie_width_max=16,
                links=(True,) * 4,
            )
            for index, uuid in enumerate(devices)
        ]
        self._good = list(self._gpus)
        self._now_ms = 0
        self._read()

    def worked(self, device: int | None, said: Any) -> list[Sighting]:
        """Have one GPU have been at work for a while; its time is made up. Raises: ValueError."""
        from airyard.checks.nvml_load import Load

        if device is None:
            raise ValueError("load needs a device")
        if not isinstance(said, dict) or any(type(value) is not int for value in said.values()):
            raise ValueError("load is an object of whole numbers")
        seconds = said.get("seconds", 0)
        if not 0 < seconds <= _LONGEST_LOAD_S:
            raise ValueError(f"seconds of load are 1 to {_LONGEST_LOAD_S}")
        try:
            at_work = {"utilization": 100, **{key: value for key, value in said.items() if key != "seconds"}}
            load = Load(**{**at_work, "index": device})
        except TypeError as error:
            raise ValueError(f"load: {error}") from None
        found: dict[str, Sighting] = {}
        for _ in range(0, seconds + 1, _LOOKS_EVERY_S):
            self._now_ms += 1000 * _LOOKS_EVERY_S
            for one in self._watch.work([load], self._now_ms):
                found[one.rule] = one
        self._now_ms += 1000 * _LONGEST_LOAD_S  # what comes next is another time
        return list(found.values())

    def follow(self, limits: Thresholds) -> None:
        """Go by these from now on."""
        self._watch.limits = limits

    def changed(self, device: int | None, readings: Any) -> list[Sighting]:
        """Change what one GPU reads as; two looks, because some rules want to see it twice. Raises: ValueError."""
        if device is None:
            raise ValueError("nvml needs a device")
        if readings is None:
            self._gpus[device] = self._good[device]
            return self._read()
        if not isinstance(readings, dict) or not readings:
            raise ValueError("nvml is an object of readings")
        # Not `errors` and `index`: they are not what a GPU reads as.
        known = {field.name: field for field in fields(self._gpus[device]) if field.name not in _NO_READINGS}
        if unknown := sorted(set(readings) - set(known)):
            raise ValueError(f"unknown reading: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        given = {name: _of_kind(name, value) for name, value in readings.items()}
        before = self._gpus[device]
        self._gpus[device] = replace(before, **given)
        try:
            return [*self._read(), *self._read()]
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            self._gpus[device] = before
            raise ValueError(f"a reading is not of its kind: {error}") from None

    def _read(self) -> list[Sighting]:
        from airyard.checks.nvml import Gpus

        return self._watch.read(Gpus(gpus=tuple(self._gpus)))


class _SimulatedPorts:
    """The RDMA ports of one simulated node: up until the file says otherwise. Their time is made up."""

    def __init__(self) -> None:
        # Here for the same reason as above.
        from airyard.checks.port_watch import PortWatch

        self._watch: PortWatch = PortWatch()
        self._up: dict[str, bool] = {}
        self._now_ms = 0

    def down(self, name: Any, seconds: Any) -> list[Sighting]:
        """Return what the rules say of a port that was up and has been down for so long. Raises: ValueError."""
        from airyard.checks.port_watch import PortReading

        if not isinstance(name, str) or not name:
            raise ValueError("port is a name such as mlx5_0/1")
        if type(seconds) is not int or not 0 <= seconds <= _LONGEST_DOWN_S:
            raise ValueError(f"down_s is a number of seconds, {_LONGEST_DOWN_S:,} at most")
        found: dict[str, Sighting] = {}
        for second in range(-1, seconds + 1):
            self._now_ms += 1_000
            self._up[name] = second < 0
            # All that are known: one that is not read any more is an adapter that is gone.
            readings = [PortReading(name=port, up=up) for port, up in self._up.items()]
            for one in self._watch.look(readings, self._now_ms):
                if one.place == name:
                    found.setdefault(one.rule, one)
        return list(found.values())
