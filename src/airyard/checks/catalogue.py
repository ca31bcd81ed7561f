"""All checks there are, and the table of them for docs/health.md.

Owns: the list, which names a site's own checks may not have. Must not know: how checks are run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from airyard.checks import (
    board_checks,
    gpu_checks,
    host_checks,
    kernel_checks,
    mount_checks,
    rdma_checks,
    shape_checks,
)
from airyard.checks.contract import Probe, Profile
from airyard.checks.own_files import Folder
from airyard.checks.preflight import compute, load, storage
from airyard.checks.preflight.probes import PROBES as PREFLIGHT

PROBES: tuple[Probe, ...] = (
    replace(gpu_checks.PROBE, checks=(*gpu_checks.PROBE.checks, *board_checks.CHECKS)),
    host_checks.HOST,
    shape_checks.PROBE,
    host_checks.NAMES,
    mount_checks.PROBE,
    kernel_checks.PROBE,
    rdma_checks.PROBE,
    *PREFLIGHT,
)

SURE = frozenset(
    {
        "gpu.count",
        "gpu.lost",
        "gpu.ecc_uncorrected",
        "gpu.rows",
        "gpu.recovery",
        "card.driver",
        "card.identity",
        "host.disk",
    }
)
"""What speaks against a node even where nobody asked for checks: what the driver says itself, and a disk that is full.

The rest may be meant so (links of a GPU that a virtual machine was given, ECC that is off), be long cured (the kernel's
log), or have limits that are guesses.
"""
_OURS = frozenset(check.name for probe in PROBES for check in probe.checks)


def is_sure(check: str) -> bool:
    """True for the surest checks, and for a site's own, which nobody puts there for nothing."""
    return check in SURE or check not in _OURS


def probes(profile: Profile) -> list[Probe]:
    """Return the probes of a profile; the full one has the fast one's, too."""
    return [probe for probe in PROBES if profile is Profile.FULL or probe.profile is Profile.FAST]


OWN = "own"
"""In a list of checks that are wanted: those of a site's own."""
READING = "reading"


def parts(*, gpus: bool) -> dict[str, tuple[str, ...]]:
    """Return the parts of the full profile that are run one after another, each with its checks; the shortest first.

    All that is quick is one part; what takes longer is one for each check. Without ``gpus`` nothing that needs them.
    """
    quick = [probe for probe in PROBES if probe.profile is Profile.FAST and probe.name != compute.PROBE.name]
    found = {READING: (*(check.name for probe in quick for check in probe.checks), OWN)}
    if gpus:
        found |= {name: (name, load.NAME) for name in compute.NAMES}
    for probe in PROBES:
        if probe.profile is Profile.FULL and (gpus or probe is storage.SPEED):
            found[probe.checks[0].name] = tuple(check.name for check in probe.checks)
    return found


def only(found: Sequence[Probe], wanted: Collection[str]) -> list[Probe]:
    """Return of some probes those that have checks that are wanted, with these alone.

    What reads GPUs stays, for of which generation they are decides the limits of all others.
    """
    kept = []
    for probe in found:
        mine = tuple(check for check in probe.checks if check.name in wanted)
        if mine or probe.name == gpu_checks.PROBE.name:
            kept.append(replace(probe, checks=mine))
    return kept


def own(folder: Path, profile: Profile) -> Folder:
    """Return the files of a site: each ``*.py`` has one probe, called ``PROBE``. Raises: UserError for no folder."""
    return Folder(folder, profile, _OURS)


def table() -> str:
    """Return the catalogue as the table of docs/health.md."""
    lines = ["| check | what | passes when | probe |", "| --- | --- | --- | --- |"]
    for probe in PROBES:
        lines += [
            f"| `{check.name}` | {check.title} | {check.passes} | {probe.name} |" for check in probe.checks
        ]
    return "\n".join(lines)
