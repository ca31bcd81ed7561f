"""What a round of checks says of a mended node: whether it passed the test that its fault asks for.

Owns: which checks each level needs. Must not know: who ran them, what follows for the node.

A level is passed only when every check that it needs was carried out and passed: one that crashed, was stopped or was
skipped because something is missing is no pass, and the verdict names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from airyard.core.health.check_events import line_of
from airyard.core.health.facts import CheckResult, CheckStatus, Retest

_STATIC = ("gpu.count", "gpu.lost")
_WORK = ("compute.copies", "compute.gemm", "compute.memory", "compute.checksum")
_LONG = ("compute.burn", "rdma.loopback")
_OF_SEVERAL = ("compute.peers", "compute.all_reduce")
_ON_CPUS = ("host.disk",)
_WELL = frozenset({CheckStatus.PASS, CheckStatus.WARN})
_SAID = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the test came to, and why: the first lines of evidence, or what is missing."""

    status: CheckStatus
    message: str


def needed(level: Retest, devices: int) -> tuple[str, ...]:
    """Return the checks that a level needs on a node with so many GPUs; none: a slot of CPUs."""
    if devices == 0:
        return _ON_CPUS
    found: tuple[str, ...] = _STATIC
    if level is not Retest.T1:
        found += _WORK
        if devices > 1:
            found += _OF_SEVERAL
    if level in (Retest.T3, Retest.T4):
        found += _LONG
    return found


def judged(
    level: Retest, results: Sequence[CheckResult], devices: int, only: Collection[str] | None = None
) -> Verdict:
    """Say whether a node passed its test. A failure of any check is one of the test.

    ``only``: the checks of the part that was run; None: all.
    """
    failures = [line_of(one) for one in results if one.status is CheckStatus.FAIL]
    if failures:
        return Verdict(status=CheckStatus.FAIL, message=_joined(failures))
    missing = [
        said
        for check in needed(level, devices)
        if only is None or check in only
        if (said := _missing(check, results))
    ]
    if missing:
        return Verdict(status=CheckStatus.UNKNOWN, message=f"{level.value} needs {_joined(missing)}")
    if level is Retest.T4:
        # Between nodes: one node's own checks cannot say it.
        said = "T4 needs tests in pairs with certified nodes; the node's own checks passed"
        return Verdict(status=CheckStatus.UNKNOWN, message=said)
    carried_out = {one.check for one in results if one.status in _WELL}
    return Verdict(status=CheckStatus.PASS, message=f"{len(carried_out)} checks passed, none failed")


def _missing(check: str, results: Iterable[CheckResult]) -> str:
    """Say why a check does not count as passed; empty when it does."""
    found = [one for one in results if one.check == check]
    if any(one.status in _WELL for one in found) and not any(
        one.status is CheckStatus.UNKNOWN for one in found
    ):
        return ""
    other = next((one for one in found if one.status not in _WELL), None)
    return (
        f"{check} ({other.status.value.lower()}: {other.message})" if other else f"{check} (it was not run)"
    )


def _joined(lines: Sequence[str]) -> str:
    more = f"; {len(lines) - _SAID} more" if len(lines) > _SAID else ""
    return "; ".join(lines[:_SAID]) + more
