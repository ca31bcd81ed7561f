"""Who the GPUs are, and whether driver, library and module belong together.

Owns: the rules over identities and versions. Must not know: memory, links, load (``gpu_checks.py``), NVML's calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airyard.checks import nvml
from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, text_of, warned
from airyard.checks.nvml import Gpus
from airyard.checks.preflight.setting import setting_of
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """What NVML and the kernel say of driver and devices, and what they were before."""

    nvml: Gpus = field(default_factory=Gpus)
    module: str = ""
    known_uuids: frozenset[str] = field(default_factory=frozenset)


def collect(site: Site) -> Cards:
    """Read identities. Cost: that of reading all GPUs."""
    known = setting_of(site).known
    return Cards(
        nvml=nvml.read(),
        module=text_of(site.path("/sys/module/nvidia/version")),
        known_uuids=frozenset(known.get("uuids", "").split()),
    )


def _same_devices(read: Cards, limits: Thresholds) -> Iterator[CheckResult]:
    found = {card.uuid for card in read.nvml.gpus if card.uuid}
    if read.known_uuids and read.nvml.error_text:
        yield failed(
            "card.identity",
            f"NVML does not open on a machine that had {len(read.known_uuids)} GPUs: {read.nvml.error_text}",
            "look at `nvidia-smi` and the kernel's log; load the driver, or reboot",
            Component.DRIVER,
            Remedy.REBOOT,
        )
    elif read.nvml.error_text or not found:
        yield skipped("card.identity", read.nvml.error_text or "no GPU to look at")
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
    if read.nvml.error_text:
        yield skipped("card.driver", read.nvml.error_text)
        return
    wanted = {
        "the kernel's module": read.module,
        "NVML's library": _of_library(read.nvml.library, read.nvml.driver),
    }
    for what, version in wanted.items():
        if version and version != read.nvml.driver:
            yield failed(
                "card.driver",
                f"the driver says {read.nvml.driver}; {what}: {version}",
                "drain the machine and reboot it, or load the module again",
                Component.DRIVER,
                Remedy.REBOOT,
            )
            return
    yield passed("card.driver", f"driver {read.nvml.driver}")


def _of_library(version: str, driver: str) -> str:
    """NVML's version is the driver's behind the number of CUDA: ``12.570.124.06``."""
    return version.partition(".")[2] if version.count(".") == driver.count(".") + 1 else ""


def _pages(read: Cards, limits: Thresholds) -> Iterator[CheckResult]:
    told = [card for card in read.nvml.gpus if card.retired_pages is not None]
    if not told:
        yield skipped("card.retired_pages", read.nvml.error_text or "these GPUs replace rows instead")
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
    told = [
        card for card in read.nvml.gpus if card.clock_mhz is not None and card.clock_default_mhz is not None
    ]
    if not told:
        yield skipped(name, read.nvml.error_text or "these GPUs, or this driver, do not tell")
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
            passes="of one version; that of the gang's other nodes, before its code",
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
