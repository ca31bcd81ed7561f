"""Who the GPUs are, and whether driver, library and module belong together.

Owns: reading identities and versions, and their rules. Must not know: memory, links, load (``gpu_checks.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, warned
from airyard.checks.preflight.setting import setting_of
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One device's name and pages; None is what it does not tell."""

    index: int
    uuid: str = ""
    name: str = ""
    retired_pages: int | None = None
    clock_mhz: int | None = None
    clock_default_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """What NVML and the kernel say of driver and devices. ``error`` is NVML's when it did not open."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    library: str = ""
    module: str = ""
    error: str = ""
    known_uuids: frozenset[str] = field(default_factory=frozenset)
    known_driver: str = ""

    @property
    def product(self) -> str:
        """The first device's name, by which limits are chosen."""
        return self.cards[0].name if self.cards else ""


def collect(site: Site) -> Cards:
    """Read identities. Cost: some ms a device."""
    setting = setting_of(site)
    known = frozenset(setting.known.get("uuids", "").split()), setting.known.get("driver", "")
    module = _read(site.path("/sys/module/nvidia/version"))
    try:
        import pynvml
    except ImportError:
        return Cards(error="nvidia-ml-py is not installed", module=module, known_uuids=known[0])
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        driver, library = _text(pynvml.nvmlSystemGetDriverVersion()), _text(pynvml.nvmlSystemGetNVMLVersion())
    except pynvml.NVMLError as error:
        return Cards(error=str(error), module=module, known_uuids=known[0])
    cards = tuple(_card(pynvml, index) for index in range(count))
    return Cards(
        cards=cards,
        driver=driver,
        library=library,
        module=module,
        known_uuids=known[0],
        known_driver=known[1],
    )


def _card(nvml: Any, index: int) -> Card:
    def ask(call: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, call)(*arguments)
        except nvml.NVMLError:
            return None

    handle = ask("nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return Card(index=index)
    pages = [ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in (0, 1)]
    return Card(
        index=index,
        uuid=_text(ask("nvmlDeviceGetUUID", handle) or ""),
        name=_text(ask("nvmlDeviceGetName", handle) or ""),
        retired_pages=None if None in pages else sum(len(each) for each in pages),
        clock_mhz=ask("nvmlDeviceGetApplicationsClock", handle, 1),
        clock_default_mhz=ask("nvmlDeviceGetDefaultApplicationsClock", handle, 1),
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _same_devices(read: Cards, limits: Thresholds) -> Iterator[CheckResult]:
    found = {card.uuid for card in read.cards if card.uuid}
    if read.known_uuids and read.error:
        yield failed(
            "card.identity",
            f"NVML does not open on a machine that had {len(read.known_uuids)} GPUs: {read.error}",
            "look at `nvidia-smi` and the kernel's log; load the driver, or reboot",
            Component.DRIVER,
            Remedy.REBOOT,
        )
    elif read.error or not found:
        yield skipped("card.identity", read.error or "no GPU to look at")
    elif not read.known_uuids:
        yield skipped("card.identity", "nobody has said yet which GPUs belong to this machine")
    elif gone := sorted(read.known_uuids - found):
        yield failed(
            "card.identity",
            f"{len(gone)} of the GPUs that this machine had are not there any more: {', '.join(gone[:3])}",
            "look at the kernel's log; if a board was replaced, enrol the machine again",
            Component.GPU,
            Remedy.REBOOT,
            Retest.T2,
            value=len(found),
            threshold=len(read.known_uuids),
        )
    else:
        yield passed("card.identity", f"{len(found)} GPUs, the same as before", value=len(found))


def _versions(read: Cards, limits: Thresholds) -> Iterator[CheckResult]:
    if read.error:
        yield skipped("card.driver", read.error)
        return
    wanted = {
        "the kernel's module": read.module,
        "NVML's library": _of_library(read.library, read.driver),
        "what the run's other nodes have": read.known_driver,
    }
    for what, version in wanted.items():
        if version and version != read.driver:
            yield failed(
                "card.driver",
                f"the driver says {read.driver}; {what}: {version}",
                "drain the machine and reboot it, or load the module again",
                Component.DRIVER,
                Remedy.REBOOT,
            )
            return
    yield passed("card.driver", f"driver {read.driver}")


def _of_library(version: str, driver: str) -> str:
    """NVML's version is the driver's behind the number of CUDA: ``12.570.124.06``."""
    return version.partition(".")[2] if version.count(".") == driver.count(".") + 1 else ""


def _pages(read: Cards, limits: Thresholds) -> Iterator[CheckResult]:
    told = [card for card in read.cards if card.retired_pages is not None]
    if not told:
        yield skipped("card.retired_pages", read.error or "these GPUs replace rows instead")
        return
    most = limits["retired_pages_fail"]
    bad = [card for card in told if (card.retired_pages or 0) > most]
    for card in bad:
        yield failed(
            "card.retired_pages",
            f"GPU {card.index} ({card.uuid}): {card.retired_pages} pages of memory are retired",
            "plan its replacement: the table holds 64",
            Component.GPU_MEMORY,
            Remedy.REPLACE,
            Retest.T2,
            device=card.index,
            value=card.retired_pages,
            threshold=most,
        )
    if not bad:
        yield passed("card.retired_pages", f"{len(told)} GPUs")


def _clocks(read: Cards, limits: Thresholds) -> Iterator[CheckResult]:
    name = "card.application_clocks"
    told = [card for card in read.cards if card.clock_mhz is not None and card.clock_default_mhz is not None]
    if not told:
        yield skipped(name, read.error or "these GPUs, or this driver, do not tell")
        return
    fine = 0
    for card in told:
        drift = abs((card.clock_mhz or 0) - (card.clock_default_mhz or 0))
        text = f"GPU {card.index} ({card.uuid}): its clocks are pinned {drift} MHz away from its own"
        step = f"`nvidia-smi -i {card.index} -rac`, unless it is meant so"
        more: dict[str, Any] = {"device": card.index, "value": drift, "unit": "MHz"}
        if drift >= limits["clock_drift_mhz_fail"]:
            yield failed(name, text, step, Component.GPU, threshold=limits["clock_drift_mhz_fail"], **more)
        elif drift >= limits["clock_drift_mhz_warn"]:
            yield warned(name, text, step, threshold=limits["clock_drift_mhz_warn"], **more)
        else:
            fine += 1
    if fine:
        yield passed(name, f"{fine} of {len(told)} GPUs")


PROBE = Probe(
    name="cards",
    collect=collect,
    deadline_s=15.0,
    checks=(
        Check(
            name="card.identity",
            number=2,
            title="the same GPUs as before",
            passes="none of those that were enrolled is missing",
            judge=_same_devices,
            component=Component.GPU,
        ),
        Check(
            name="card.driver",
            number=3,
            title="driver, library and kernel module",
            passes="of one version, and that of the run's other nodes",
            judge=_versions,
            component=Component.DRIVER,
        ),
        Check(
            name="card.retired_pages",
            number=10,
            title="retired pages (Volta and older)",
            passes="at most retired_pages_fail",
            judge=_pages,
            component=Component.GPU_MEMORY,
        ),
        Check(
            name="card.application_clocks",
            number=13,
            title="application clocks",
            passes="less than clock_drift_mhz_fail from the default",
            judge=_clocks,
            component=Component.GPU,
        ),
    ),
)
