"""The node's state machine: each thing that can happen, as a function from a record to the next one.

Owns: what happens when. Must not know: cordons, runs, who carries remedies out. Pure: time is an argument.
``reported`` only takes evidence in; ``verdict`` says what it asks for, and whoever keeps the budgets may refuse it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from airyard.core.health import ladder
from airyard.core.health.blame import CORDON_FROM, SUSPECT_FROM, gravest, joined, score
from airyard.core.health.facts import CheckStatus, Remedy, Retest, Severity
from airyard.core.health.states import WORKING, HealthState, Hit, NodeHealth, RemedyOutcome

S = HealthState
KNOWN = 64


def reported(health: NodeHealth, hits: Iterable[Hit], now_ms: int) -> NodeHealth:
    """Return the record with evidence taken in; the same object when it says nothing new."""
    # A cure that is still to come was noted by a clock that was ahead: it says nothing of what came before it.
    cured_ms = health.cured_ms if health.cured_ms <= now_ms else 0
    new = [hit for hit in hits if hit.at_ms >= cured_ms and hit.event_id not in health.known]
    kept = joined((*health.hits, *new), now_ms)
    if set(kept) <= set(health.hits):
        return health
    best = gravest(kept)
    return replace(
        health,
        hits=kept,
        score=score(kept),
        rule=best.rule if best is not None and health.state not in _CURING else health.rule,
        retest=_level(health, kept),
    )


def _level(health: NodeHealth, hits: Iterable[Hit]) -> Retest:
    """Return how thoroughly a node has to be tested: what its faults ask for since it worked last, not older ones."""
    asked = [hit.retest for hit in hits]
    if health.state not in WORKING:
        asked.append(health.retest)
    return max(asked, key=lambda level: level.value, default=Retest.T1)


_CURING = frozenset({S.CORDONED, S.DRAINING, S.QUARANTINED, S.RESETTING, S.RETESTING, S.RETIRED})


def verdict(health: NodeHealth) -> HealthState | None:
    """Return the state that the evidence asks for, if it asks for another one: SUSPECT or CORDONED."""
    # Not the score that was noted: an older release may have counted what a job printed.
    if health.state in (S.HEALTHY, S.SUSPECT) and score(health.hits) >= CORDON_FROM:
        return S.CORDONED
    # On probation a suspicion is enough, but not one that a job could have printed.
    if health.state is S.PROBATION and score(hit for hit in health.hits if hit.confirmed) >= SUSPECT_FROM:
        return S.CORDONED
    if health.score >= SUSPECT_FROM and health.state is S.HEALTHY:
        return S.SUSPECT
    return None


def is_hard(health: NodeHealth) -> bool:
    """True when a confirmed critical fault decided, so that nobody is left on the node."""
    return any(hit.confirmed and hit.weight >= CORDON_FROM for hit in health.hits)


def is_critical(health: NodeHealth) -> bool:
    """True when runs on the node cannot go on."""
    return any(
        hit.confirmed and hit.weight >= CORDON_FROM and hit.severity is Severity.CRITICAL
        for hit in health.hits
    )


def suspected(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return the record of a node under suspicion."""
    return replace(health, state=S.SUSPECT, since_ms=now_ms)


def cordoned(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return the record of a node that is taken out: a new session begins, with a strike for one that came back."""
    strikes = ladder.strikes_left(health, now_ms) + (health.session > 0)
    return replace(
        health,
        state=S.CORDONED,
        since_ms=now_ms,
        session=health.session + 1,
        attempt=0,
        put_off=0,
        remedy=Remedy.NONE,
        passes=0,
        clean=0,
        strikes=strikes,
        struck_ms=now_ms,
        not_before_ms=now_ms + ladder.wait_ms(strikes),
        waits_for="",
    )


def drained(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return the record of a node that is being emptied (from CORDONED) or is empty (from DRAINING)."""
    after = S.DRAINING if health.state is S.CORDONED else S.QUARANTINED
    return replace(health, state=after, since_ms=now_ms)


def attempt_name(node: str, health: NodeHealth) -> str:
    """Return the name of the remedy in flight: the same however often it is asked for."""
    return f"{node}/{health.session}/{health.attempt}"


def test_name(node: str, health: NodeHealth) -> str:
    """Return the name of the test in flight."""
    return f"{attempt_name(node, health)}/{health.passes}"


def reserved(health: NodeHealth, now_ms: int, *, gpus: bool = True) -> NodeHealth:
    """Return the record with the next remedy reserved, or of a retired node: what is done is counted before it is.

    ``gpus``: the node has some.
    """
    asked = _asked(health)
    end = ladder.at_its_end(health, asked, now_ms)
    if end:
        return retired(health, end, now_ms)
    recent = tuple(at_ms for at_ms in health.remedied_ms if at_ms > now_ms - ladder.WEEK_MS)
    return replace(
        health,
        state=S.RESETTING,
        since_ms=now_ms,
        attempt=health.attempt + 1,
        remedy=ladder.next_rung(health, asked, gpus=gpus),
        passes=0,
        remedied_ms=(*recent, now_ms),
    )


def beyond_cure(health: NodeHealth, now_ms: int) -> str:
    """Say why no remedy is tried any more, not even when its back-off is over; empty while one may be."""
    return ladder.at_its_end(health, _asked(health), max(now_ms, health.not_before_ms))


def _asked(health: NodeHealth) -> Remedy:
    kept = [hit for hit in health.hits if hit.remedy is not Remedy.NONE]
    best = gravest(kept)
    return best.remedy if best is not None else Remedy.NONE


def retired(health: NodeHealth, why: str, now_ms: int) -> NodeHealth:
    """Return the record of a node that only a person brings back."""
    return replace(health, state=S.RETIRED, since_ms=now_ms, waits_for=f"{why}: a person has to look")


def remedied(health: NodeHealth, outcome: RemedyOutcome, said: str, now_ms: int) -> NodeHealth:
    """Return the record after a remedy; only one that certainly was carried out leads to a test."""
    if outcome is RemedyOutcome.SUCCEEDED:
        return replace(health, state=S.RETESTING, since_ms=now_ms, passes=0)
    back = replace(health, state=S.QUARANTINED, since_ms=now_ms)
    if outcome is RemedyOutcome.TRANSIENT:
        return _put_off(back, said, now_ms)
    return replace(back, waits_for=said or "see what became of the remedy")


def _put_off(health: NodeHealth, said: str, now_ms: int) -> NodeHealth:
    """Return the record after a remedy that was certainly not begun: the same rung again later, and nothing is counted.

    That it could not be begun says nothing of the node: it is never scrapped for it. In the end a person is asked.
    """
    place = ladder.RUNGS.index(health.remedy) if health.remedy in ladder.RUNGS else 0
    put_off = health.put_off + 1
    asked = f"see why the {health.remedy.value} cannot be begun: it said so {put_off} times"
    return replace(
        health,
        remedy=ladder.RUNGS[place - 1] if place else Remedy.NONE,
        put_off=put_off,
        remedied_ms=health.remedied_ms[:-1],
        not_before_ms=now_ms + ladder.later_ms(put_off),
        waits_for=(f"{asked}: {said}" if said else asked) if put_off >= ladder.PUT_OFF_MOST else "",
    )


def excused(health: NodeHealth, hits: Collection[Hit], now_ms: int) -> NodeHealth:
    """Return the record without evidence that turned out to be no fault of the node, also when it is said again."""
    kept = tuple(hit for hit in health.hits if hit not in hits)
    best = gravest(kept)
    left = replace(
        health,
        hits=kept,
        score=score(kept),
        rule=best.rule if best is not None else "",
        known=(*health.known, *(hit.event_id for hit in hits))[-KNOWN:],
    )
    if left.state is S.SUSPECT and left.score < SUSPECT_FROM:
        return replace(left, state=S.HEALTHY, since_ms=now_ms)
    return left


def retested(
    health: NodeHealth, status: CheckStatus, said: str, now_ms: int, *, gpus: bool = True
) -> NodeHealth:
    """Return the record after a test; what could not be told is no pass, and a person is asked."""
    enrolling = health.state is S.ENROLLING
    if status in (CheckStatus.PASS, CheckStatus.WARN):
        passed = replace(health, passes=health.passes + 1)
        if passed.passes < ladder.PASSES:
            return replace(passed, since_ms=now_ms)  # the next test has all of its time again
        if enrolling:
            return healed(passed, now_ms)
        past = (*health.past_rules, health.rule)[-8:] if health.rule else health.past_rules
        return replace(_settled(passed, now_ms), state=S.PROBATION, since_ms=now_ms, past_rules=past)
    if status is CheckStatus.FAIL and not enrolling:
        return reserved(replace(health, passes=0), now_ms, gpus=gpus)
    why = said or f"its test came to {status.value.lower()}"
    return replace(health, state=S.QUARANTINED, since_ms=now_ms, passes=0, waits_for=why)


def ran_well(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Count a run that ended well on a node on probation; three end it. None helps one that only a budget keeps."""
    if verdict(health) is S.CORDONED:
        return health
    clean = health.clean + 1
    if clean < ladder.CLEAN_RUNS:
        return replace(health, clean=clean)
    return healed(health, now_ms)


def healed(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return the record of a node that is well again; strikes and what it had before are kept."""
    return replace(_settled(health, now_ms), state=S.HEALTHY, since_ms=now_ms, rule="")


def _settled(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return the record with its evidence put away: whatever is delivered again of it counts no more."""
    known = (*health.known, *(hit.event_id for hit in health.hits))[-KNOWN:]
    return replace(
        health,
        hits=(),
        score=0.0,
        known=known,
        cured_ms=now_ms,
        clean=0,
        retest=Retest.T1,
        waits_for="",
    )


def without(health: NodeHealth, rule: str, before_ms: int) -> NodeHealth:
    """Return the record with the evidence of one rule put away that a test since has settled; else the same object."""
    gone = [hit for hit in health.hits if hit.rule == rule and hit.at_ms <= before_ms]
    if not gone:
        return health
    kept = tuple(hit for hit in health.hits if hit not in gone)
    known = (*health.known, *(hit.event_id for hit in gone))[-KNOWN:]
    return replace(health, hits=kept, score=score(kept), known=known)


def aged(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return what time alone makes of a record: suspicion and probation end, what does not answer is given up."""
    late_ms = now_ms - health.since_ms
    if health.state is S.SUSPECT and late_ms >= ladder.SUSPECT_MS:
        return healed(health, now_ms)
    if health.state is S.PROBATION and late_ms >= ladder.PROBATION_MS:
        return healed(health, now_ms)
    if health.state is S.RESETTING and late_ms >= ladder.DEADLINE_MS.get(health.remedy, ladder.RETEST_MS):
        said = f"nobody knows what became of the {health.remedy.value}: it did not answer in time"
        return remedied(health, RemedyOutcome.PERMANENT, said, now_ms)
    if health.state in (S.RETESTING, S.ENROLLING) and late_ms >= ladder.retest_ms(health.retest):
        return retested(health, CheckStatus.UNKNOWN, "its test did not answer in time", now_ms)
    return health


IN_FLIGHT = frozenset({S.RESETTING, S.RETESTING, S.ENROLLING})


def jumped(health: NodeHealth, by_ms: int) -> NodeHealth:
    """Return the record after the clock was set ahead: what is under way has all of its time still."""
    return replace(health, since_ms=health.since_ms + by_ms) if health.state in IN_FLIGHT else health


def maintained(health: NodeHealth, now_ms: int, *, on: bool) -> NodeHealth:
    """Return the record of a node that a person takes over, or gives back to be tested."""
    if on:
        level = _level(health, health.hits)
        return replace(health, state=S.MAINTENANCE, since_ms=now_ms, retest=level, waits_for="")
    return replace(
        _settled(health, now_ms),
        state=S.ENROLLING,
        since_ms=now_ms,
        session=health.session + 1,
        attempt=0,
        put_off=0,
        passes=0,
        retest=health.retest,
        past_rules=(),
    )


def acquitted(health: NodeHealth, now_ms: int) -> NodeHealth:
    """Return the record of a node of which a person says that it was a false alarm."""
    strikes = max(health.strikes - 1, 0)
    return replace(_settled(health, now_ms), state=S.PROBATION, since_ms=now_ms, strikes=strikes)
