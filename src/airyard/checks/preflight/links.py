"""PCIe errors, access of GPUs to each other, and ACS on the way between GPUs and network adapters.

Owns: reading replay counters, AER, the peer matrix and ACS. Must not know: NVLinks (``gpu_checks.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, text_of, warned
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest

_WATCH_S = 1.0
_ACS_CAPABILITY = 0x000D
_PEER = {0: "read", 1: "write", 2: "NVLink"}
_GPU_CLASS, _RDMA_VENDOR = "0x03", "0x15b3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buses:
    """What the PCIe ways of the GPUs say. ``replays``: how many within the time that was watched, by device."""

    replays: Mapping[int, int] = field(default_factory=dict)
    aer: Mapping[str, int] = field(default_factory=dict)
    """Uncorrectable errors since boot, by PCI address of a GPU."""
    peers: tuple[tuple[int, int, str, int], ...] = ()
    """Pairs and what they may not do, with NVML's code: ``(0, 3, "NVLink", 4)``. Not those that it does not tell."""
    pairs: int = 0
    """How many pairs were asked."""
    acs: Mapping[str, bool | None] = field(default_factory=dict)
    """By PCI address of a bridge: whether it redirects; None where that cannot be read."""
    devices: int = 0
    error: str = ""


def collect(site: Site) -> Buses:
    """Read twice, a second apart. Cost: one second where there are GPUs."""
    aer, acs = _aer(site), _acs(site)
    try:
        import pynvml
    except ImportError:
        return Buses(aer=aer, acs=acs, error="nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except pynvml.NVMLError as error:
        return Buses(aer=aer, acs=acs, error=str(error))
    before = _replays(pynvml, handles)
    if before:
        time.sleep(_WATCH_S)
    after = _replays(pynvml, handles)
    asked, bad = _peers(pynvml, handles)
    return Buses(
        replays={index: after[index] - value for index, value in before.items() if index in after},
        aer=aer,
        acs=acs,
        peers=tuple(bad),
        pairs=asked,
        devices=len(handles),
    )


def _replays(nvml: Any, handles: list[Any]) -> dict[int, int]:
    found = {}
    for index, handle in enumerate(handles):
        try:
            found[index] = int(nvml.nvmlDeviceGetPcieReplayCounter(handle))
        except nvml.NVMLError:
            continue
    return found


def _peers(nvml: Any, handles: list[Any]) -> tuple[int, list[tuple[int, int, str, int]]]:
    asked, bad = 0, []
    for one, first in enumerate(handles):
        for other, second in enumerate(handles):
            if one == other:
                continue
            for kind, word in _PEER.items():
                try:
                    state = int(nvml.nvmlDeviceGetP2PStatus(first, second, kind))
                except nvml.NVMLError:
                    continue
                asked += 1
                if state != 0:
                    bad.append((one, other, word, state))
    return asked, bad


def _devices(site: Site) -> Iterator[Path]:
    folder = site.path("/sys/bus/pci/devices")
    yield from sorted(folder.iterdir()) if folder.is_dir() else ()


def _is_nvidia(device: Path) -> bool:
    return text_of(device / "vendor") == "0x10de" and text_of(device / "class").startswith(_GPU_CLASS)


def _aer(site: Site) -> dict[str, int]:
    found = {}
    for device in _devices(site):
        if not _is_nvidia(device):
            continue
        texts = [text_of(device / name) for name in ("aer_dev_fatal", "aer_dev_nonfatal")]
        if any(texts):
            found[device.name] = sum(_total(text) for text in texts)
    return found


def _total(text: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("TOTAL_ERR") and value.strip().isdigit():
            return int(value)
    return 0


def _acs(site: Site) -> dict[str, bool | None]:
    """Look at the bridges above GPUs and RDMA adapters; a machine of the cloud shows none, and is left alone."""
    bridges: dict[str, Path] = {}
    for device in _devices(site):
        if _is_nvidia(device) or text_of(device / "vendor") == _RDMA_VENDOR:
            for above in device.resolve().parents:
                if (above / "config").exists() and text_of(above / "class").startswith("0x0604"):
                    bridges[above.name] = above
    return {name: redirects(_config(path)) for name, path in bridges.items()}


def _config(path: Path) -> bytes:
    try:
        return (path / "config").read_bytes()
    except OSError:
        return b""


def redirects(config: bytes) -> bool | None:
    """Return whether ACS of a bridge redirects requests; None where its extended space cannot be read (not root)."""
    if len(config) < 0x104:
        return None
    at, steps = 0x100, 0
    while at and at + 8 <= len(config) and steps < 64:
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            control = int.from_bytes(config[at + 6 : at + 8], "little")
            return bool(control & 0x0C)  # request and completion redirect
        at, steps = header >> 20, steps + 1
    return False


def _replay(read: Buses, limits: Thresholds) -> Iterator[CheckResult]:
    name, most = "pcie.errors", limits["pcie_replays_fail"]
    if not read.replays and not read.aer:
        yield skipped(name, read.error or "this machine does not tell")
        return
    bad = 0
    for device, count in read.replays.items():
        if count >= most:
            bad += 1
            yield failed(
                name,
                f"GPU {device}: {count} PCIe transfers had to be repeated within {_WATCH_S:g} s",
                "reseat the board or look at the riser; reboot",
                Component.GPU,
                Remedy.REBOOT,
                Retest.T2,
                device=device,
                value=count,
                threshold=most,
            )
    for address, count in read.aer.items():
        if count > 0:
            bad += 1
            yield failed(
                name,
                f"{count} uncorrectable PCIe errors at {address} since boot",
                "look at slot, riser and power; reboot",
                Component.GPU,
                Remedy.REBOOT,
                Retest.T2,
                value=count,
                threshold=0,
            )
    if not bad:
        yield passed(name, f"{max(len(read.replays), len(read.aer))} GPUs")


def _matrix(read: Buses, limits: Thresholds) -> Iterator[CheckResult]:
    name = "pcie.peers"
    if read.devices < 2:
        yield skipped(name, read.error or "fewer than two GPUs")
        return
    if not read.pairs:
        yield skipped(name, "this driver does not tell")
        return
    wanted = bool(limits.get("nvswitch"))
    for one, other, what, state in read.peers[:8]:
        text = f"GPU {one} has no access to GPU {other} by {what} (status {state})"
        if wanted:
            yield failed(
                name,
                text,
                "look at fabric manager, MIG and IOMMU; reset all GPUs of the machine",
                Component.NVLINK,
                Remedy.GPU_RESET,
                Retest.T3,
                device=one,
                value=state,
                threshold=0,
            )
        elif what != "NVLink":
            yield warned(name, text, "copies between these two go through the host", device=one, value=state)
    if not read.peers or (not wanted and all(what == "NVLink" for _, _, what, _ in read.peers)):
        yield passed(name, f"{read.devices} GPUs reach each other")


def _redirect(read: Buses, limits: Thresholds) -> Iterator[CheckResult]:
    name = "pcie.acs"
    told = {bridge: state for bridge, state in read.acs.items() if state is not None}
    if not told:
        yield skipped(name, "no PCIe bridge above GPUs that can be read (in a VM, or not as root)")
        return
    on = sorted(bridge for bridge, state in told.items() if state)
    if on:
        yield warned(
            name,
            f"ACS redirects on {len(on)} bridges above GPUs or adapters: {', '.join(on[:4])}",
            "on bare metal turn it off (setpci, or the BIOS): peers go through the root complex",
            value=len(on),
            threshold=0,
        )
    else:
        yield passed(name, f"off on {len(told)} bridges")


PROBE = Probe(
    name="links",
    collect=collect,
    deadline_s=15.0,
    checks=(
        Check(
            name="pcie.errors",
            number=17,
            title="PCIe errors",
            passes="fewer than pcie_replays_fail repeats in a second, no uncorrectable error since boot",
            judge=_replay,
            component=Component.GPU,
        ),
        Check(
            name="pcie.peers",
            number=21,
            title="access of GPUs to each other",
            passes="every pair, by read, write and NVLink, on boards with NVSwitch (else a warning)",
            judge=_matrix,
            component=Component.NVLINK,
        ),
        Check(
            name="pcie.acs",
            number=23,
            title="ACS above GPUs and adapters",
            passes="off on bare metal (else a warning)",
            judge=_redirect,
            component=Component.GPU,
        ),
    ),
)
