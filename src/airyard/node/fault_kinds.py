"""Kinds of faults by name that a simulated node can be given: what stands for each in the file of made-up faults.

Owns: names, words, the lines. Must not know: who asks, how a line is judged (``health_simulated.py`` and the rules).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PORT = "mlx5_0/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind. ``lines``: what is written for it, without the node.

    ``of``: a ``device``, the whole ``node``, the ``machine`` (of a dev fleet only), or what a ``run`` does there.
    """

    name: str
    text: str
    of: str
    lines: tuple[Mapping[str, Any], ...] = ()
    seen_as: str = ""
    """The rule that speaks against the node."""


def _xid(name: str, number: int, said: str, text: str) -> FaultKind:
    line = f"NVRM: Xid (PCI:{{pci}}): {number}, {said}"
    return FaultKind(name=name, text=text, of="device", lines=({"kernel": line},), seen_as=f"xid.{number}")


def _reading(name: str, text: str, seen_as: str, **readings: Any) -> FaultKind:
    return FaultKind(name=name, text=text, of="device", lines=({"nvml": readings},), seen_as=seen_as)


def _port(name: str, text: str, seen_as: str, *downs_s: int) -> FaultKind:
    lines = tuple({"port": PORT, "down_s": seconds} for seconds in downs_s)
    return FaultKind(name=name, text=text, of="node", lines=lines, seen_as=seen_as)


KINDS: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        _xid("xid-79", 79, "GPU has fallen off the bus.", "the GPU falls off the bus"),
        FaultKind(
            name="off-bus",
            text="the GPU falls off the bus, and no Xid says so",
            of="device",
            lines=({"kernel": "NVRM: GPU {pci}: GPU has fallen off the bus."},),
            seen_as="gpu.off_bus",
        ),
        _xid("xid-48", 48, "DBE (double bit error) ECC error", "a memory error that ECC cannot correct"),
        _xid(
            "xid-63",
            63,
            "Row Remapper: New row marked for remapping, reset gpu to activate.",
            "a row is replaced",
        ),
        _xid("xid-64", 64, "Row Remapper: failed to write to the remap table", "a row cannot be replaced"),
        _xid(
            "xid-74",
            74,
            "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
            "NVLink",
        ),
        _reading("row-remap-failed", "NVML: replacing a row has failed", "gpu.rows", remap_failure=True),
        _reading("nvlink-down", "NVML: an NVLink is down", "gpu.nvlink", links=[True, False, True, True]),
        _reading("pcie-width", "NVML: the PCIe link has lost lanes", "gpu.pcie_width", pcie_width=8),
        FaultKind(
            name="thermal",
            text="slowed down by heat for a minute at work",
            of="device",
            lines=({"load": {"temperature_c": 92, "clock_reasons": 0x040, "seconds": 60}},),
            seen_as="gpu.throttled_long",
        ),
        FaultKind(
            name="power-brake",
            text="slowed down by the power brake for a minute at work",
            of="device",
            lines=({"load": {"clock_reasons": 0x080, "seconds": 60}},),
            seen_as="gpu.throttled_long",
        ),
        _port("ib-down", "an RDMA port is down for four minutes", "rdma.gone", 240),
        _port("ib-flap", "an RDMA port is down for 8 s, four times", "rdma.downtime", 8, 8, 8, 8),
        FaultKind(
            name="slow-pair",
            text="slow in tests with another node",
            of="node",
            lines=({"pair": {"busbw_share": 0.4}},),
            seen_as="fabric.node, by a sweep in pairs",
        ),
        FaultKind(name="power-off", text="the machine is off", of="machine"),
        FaultKind(name="partition", text="the machine is cut off; what runs on it runs on", of="machine"),
        FaultKind(name="kill-agent", text="its agent is gone; runners live on", of="machine"),
        FaultKind(name="slow", text="each of its messages takes half a second longer", of="machine"),
        FaultKind(name="hang", text="the commands of runs on the node stand still", of="run"),
        FaultKind(name="straggler", text="the commands of runs on the node get half of the time", of="run"),
    )
}
"""By name, in the order in which they are shown."""


def lines_of(kind: FaultKind, node: str, device: int) -> list[dict[str, Any]]:
    """Return the lines that give a node this fault."""
    pci = f"0000:{0x10 + device:02x}:00"
    place: dict[str, Any] = {"node": node, **({"device": device} if kind.of == "device" else {})}
    return [{**place, **_filled(line, pci)} for line in kind.lines]


def clearing_of(node: str, devices: Sequence[int]) -> list[dict[str, Any]]:
    """Return the lines after which a node reads as a good one. What was reported of it stays: it has to be mended."""
    return [
        {"node": node, "pair": None},
        *({"node": node, "device": device, "nvml": None} for device in devices),
    ]


def _filled(line: Mapping[str, Any], pci: str) -> dict[str, Any]:
    return {
        key: value.replace("{pci}", pci) if isinstance(value, str) else value for key, value in line.items()
    }
