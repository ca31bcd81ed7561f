"""All checks there are, a site's own among them, and the table of them for docs/health.md.

Owns: the list, and loading files of a site. Must not know: how checks are run.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
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
from airyard.checks.contract import Check, Probe, Profile
from airyard.checks.preflight.probes import PROBES as PREFLIGHT
from airyard.core.errors import UserError

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


def probes(profile: Profile, own: Sequence[Probe] = ()) -> list[Probe]:
    """Return the probes of a profile; the full one has the fast one's, too."""
    return [probe for probe in (*PROBES, *own) if profile is Profile.FULL or probe.profile is Profile.FAST]


def load_own(folder: Path) -> list[Probe]:
    """Return the probes of a site: each ``*.py`` file below ``folder`` has one, called ``PROBE``.

    Raises: UserError that names the file, for what is no probe, cannot be loaded, or has a name that is taken.
    """
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder} with checks",
            code="BAD_CHECK",
            fix="Name the folder that has the site's own checks.",
        )
    taken = {check.name for probe in PROBES for check in probe.checks}
    found = []
    for path in sorted(folder.glob("*.py")):
        probe = _load(path)
        for check in probe.checks:
            if check.name in taken:
                raise _refusal(path, f"the name {check.name} is taken")
            taken.add(check.name)
        found.append(probe)
    return found


def _load(path: Path) -> Probe:
    described = importlib.util.spec_from_file_location(f"airyard_site_check_{path.stem}", path)
    if described is None or described.loader is None:
        raise _refusal(path, "it cannot be loaded")
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = (
        module  # what the probe reads comes back from another process by its class's name
    )
    try:
        described.loader.exec_module(module)
    except Exception as error:  # whatever stands in the file
        raise _refusal(path, f"{type(error).__name__}: {error}") from error
    probe = getattr(module, "PROBE", None)
    if not isinstance(probe, Probe) or not all(isinstance(check, Check) for check in probe.checks):
        raise _refusal(path, "it has no PROBE of the class airyard.checks.contract.Probe")
    return probe


def _refusal(path: Path, why: str) -> UserError:
    return UserError(
        f"the check in {path} cannot be used: {why}",
        code="BAD_CHECK",
        fix="docs/operate/own-checks.md shows what such a file has.",
    )


def table() -> str:
    """Return the catalogue as the table of docs/health.md."""
    lines = ["| check | what | passes when | probe |", "| --- | --- | --- | --- |"]
    for probe in PROBES:
        lines += [
            f"| `{check.name}` | {check.title} | {check.passes} | {probe.name} |" for check in probe.checks
        ]
    return "\n".join(lines)
