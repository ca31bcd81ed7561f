"""The remedies and their order: which one is next, how often, how long a node waits before it may come back.

Owns: the ladder's numbers and rules. Must not know: how a remedy is carried out, states of other nodes.
"""

from __future__ import annotations

from airyard.core.health.blame import gravest
from airyard.core.health.facts import Component, Remedy, Retest
from airyard.core.health.states import Hit, NodeHealth

RUNGS = (Remedy.GPU_RESET, Remedy.REBOOT, Remedy.POWER_CYCLE)
ATTEMPTS = 3
"""Remedies in one quarantine, the first included."""
PASSES = 2
"""Tests in a row that have to pass."""
CLEAN_RUNS = 3
MINUTE_MS = 60_000
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
REMEDIES_A_WEEK = 5
PROBATION_MS = DAY_MS
SUSPECT_MS = DAY_MS
STRIKE_DECAYS_MS = 14 * DAY_MS
BACK_OFF_MS = 30 * MINUTE_MS
DEADLINE_MS = {
    Remedy.GPU_RESET: 5 * MINUTE_MS,
    Remedy.REBOOT: 20 * MINUTE_MS,
    Remedy.POWER_CYCLE: 20 * MINUTE_MS,
}
RETEST_MS = 30 * MINUTE_MS
IN_PAIRS_MS = 40 * MINUTE_MS
"""What T4 has beyond that: half an hour until two other nodes are idle, and the tests with them."""
PUT_OFF_MOST = 6
"""So often in one quarantine a remedy may say that it was not begun and can be tried later; then a person is asked."""
_OF_GPUS = frozenset({Component.GPU, Component.GPU_MEMORY, Component.NVLINK, Component.DRIVER, None})
_OFF_THE_BUS = frozenset({"xid.79", "gpu.lost", "gpu.off_bus", "check.gpu.lost"})
"""One fault by the names that the kernel's log, NVML and a check give it: a second time is the vendor's matter."""
CURES_OF_ONE_XID = 2
"""Who has the same Xid again after so many cures, with their strikes not forgotten, has what no restart cures."""


def next_rung(health: NodeHealth, asked: Remedy, *, gpus: bool = True) -> Remedy:
    """Return the next remedy: what the driver asked for first, then one rung higher each time.

    GPUs are reset only for a fault of one, on a node that has some (``gpus``).
    """
    best = gravest(health.hits)
    of_one = asked is Remedy.GPU_RESET or best is None or of_gpu(best)
    lowest = 0 if gpus and of_one else 1
    if health.attempt == 0:
        place = RUNGS.index(asked) if asked in RUNGS else 0
    else:
        place = RUNGS.index(health.remedy) + 1 if health.remedy in RUNGS else 0
    return RUNGS[min(max(place, lowest), len(RUNGS) - 1)]


def of_gpu(hit: Hit) -> bool:
    """True for evidence about a GPU, its links or driver; also where an older release did not keep what it is about."""
    return hit.device is not None or hit.component in _OF_GPUS


def at_its_end(health: NodeHealth, asked: Remedy, now_ms: int) -> str:
    """Say why the machine tries no more; empty while it may."""
    if asked is Remedy.REPLACE:
        return "the fault asks for a new part"
    if health.rule in _OFF_THE_BUS and not _OFF_THE_BUS.isdisjoint(health.past_rules):
        return f"a GPU was off the bus for the second time ({health.rule})"
    cured = health.past_rules.count(health.rule) if health.rule.startswith("xid.") else 0
    if cured >= CURES_OF_ONE_XID and strikes_left(health, now_ms) >= CURES_OF_ONE_XID:
        return f"{health.rule} came again after {cured} cures"
    if health.remedies >= ATTEMPTS:
        return f"{health.remedies} remedies did not help"
    recent = sum(at_ms > now_ms - WEEK_MS for at_ms in health.remedied_ms)
    if recent >= REMEDIES_A_WEEK:
        return f"{recent} remedies within seven days"
    return ""


def retest_ms(level: Retest) -> int:
    """Return how long a test may take until nobody waits for it any more."""
    return RETEST_MS + (IN_PAIRS_MS if level is Retest.T4 else 0)


def later_ms(put_off: int) -> int:
    """Return how long a remedy that was not begun waits: a minute, doubled each time, half an hour at most."""
    return min(MINUTE_MS << min(max(put_off - 1, 0), 16), BACK_OFF_MS)


def wait_ms(strikes: int) -> int:
    """Return how long a node that came back and failed again waits: 30 min, doubled each time, a day at most."""
    return min(BACK_OFF_MS * 2 ** min(strikes - 1, 16), DAY_MS) if strikes > 0 else 0


def strikes_left(health: NodeHealth, now_ms: int) -> int:
    """Return the strikes that count: one is forgotten every 14 days."""
    return max(health.strikes - max(now_ms - health.struck_ms, 0) // STRIKE_DECAYS_MS, 0)
