"""Why a run waits or runs, in words: the page of ``explain``, what ``queue`` and ``list`` say of starts, dry runs.

Owns: how an ExplainDoc (docs/internals.md, "Explanations") reads. Pure. Must not know: the network, terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

from airyard.cli import formats, verdict_text
from airyard.cli.formats import about, duration, plural

Found = Mapping[str, Any]
Pair = tuple[str, object]
MOMENTS = frozenset({"begin_ms", "not_before_ms", "from_ms"})
"""Evidence that is a point in time."""


def page(found: Found, zone: tzinfo | None = None, now: datetime | None = None) -> str:
    """Return everything ``explain`` shows."""
    pairs = [*_waiting(found, zone, now), *_running(found, zone, now), *_both(found, zone), *_progress(found)]
    pairs += _slowed(found, zone, now)
    evidence = found.get("evidence") or {}
    pairs += _facts(evidence, {found.get("reason"), found.get("message")}, zone)
    pairs += verdict_text.short(found.get("judgement"))
    pairs.append(("estimates", estimates(found.get("estimates"))))
    pairs += [("not told" if not place else "", _not_told(one)) for place, one in enumerate(_untold(found))]
    pairs.append(("next", _next(found)))
    return f"{heading(found)}\n\n{formats.fields(pairs)}".rstrip()


def _untold(found: Found) -> Sequence[Found]:
    return found.get("notifications") or ()


def _not_told(one: Found) -> str:
    """``failed to https://hooks.example.org (given up, tries: 3): answered 404``."""
    what = "given up" if one["state"] == "GIVEN_UP" else "tried again"
    return f"{one['kind']} to {one['to']} ({what}, tries: {one['tries']}): {one['error']}"


def heading(found: Found) -> str:
    """``Run 812 is waiting (NO_FREE_NODES): it asks 2 nodes; 1 of 4 has 8 free now.``"""
    state, message = found.get("state"), str(found.get("message") or "").rstrip(".")
    what = {"QUEUED": "is waiting", "ACTIVE": "is active", "ENDED": "has ended"}.get(str(state), str(state))
    return f"Run {found.get('run_id')} {what} ({found.get('reason')}): {message}."


def starts(eta: Found | None, zone: tzinfo | None = None, now: datetime | None = None) -> str:
    """``about 14:05, by 16:30``: when it starts, and at the latest nine times in ten; empty when nobody knows."""
    if not eta:
        return ""
    first, last = about(eta["p50"], zone, now), about(eta["p90"], zone, now)
    return f"about {first}" if first == last else f"about {first}, by {last}"


def estimates(found: Found | None) -> str:
    """Say how good expected starts have been."""
    if not found:
        return ""
    return (
        f"of {plural(found['count'], 'expected start')} {found['before_p50']:.0%} came before the first time, "
        f"{found['before_p90']:.0%} before the second; median error {duration(found['median_error_ms'])}"
    )


def waits_for(run: Found, zone: tzinfo | None = None, now: datetime | None = None) -> str:
    """Say in a few words why a run of a list waits, and until when; empty for one that does not."""
    pending = run.get("pending")
    if not pending:
        return ""
    when = starts(pending.get("eta"), zone, now)
    return f"{pending.get('reason')}, {when}" if when else str(pending.get("reason"))


def would_start(one: Found, zone: tzinfo | None = None, now: datetime | None = None) -> str:
    """``when run 71 ends, about 14:00``; with the command that makes the change, where there is one."""
    text = str(one["text"])
    if one.get("at"):
        text += f", about {about(one['at'], zone, now)}"
    return f"{text}: `{one['command']}`" if one.get("command") else text


def _waiting(found: Found, zone: tzinfo | None, now: datetime | None) -> Iterator[Pair]:
    if found.get("state") != "QUEUED":
        return
    if found.get("position"):
        yield "position", f"{found['position']} of {found.get('waiting')}"
    ahead = found.get("ahead") or []
    yield "ahead", "; ".join(f"{one['count']} {one['text']} ({_ids(one)})" for one in ahead)
    yield "expected", starts(found.get("eta"), zone, now)
    promise = found.get("promise")
    if promise:
        nodes = ", ".join(promise["nodes"][:8]) + (" ..." if len(promise["nodes"]) > 8 else "")
        devices = plural(promise["devices_per_node"], "device")
        yield "promised", f"{devices} on {nodes} from about {about(promise['from_at'], zone, now)}"
    may_evict = found.get("may_evict")
    if may_evict:
        runs, when = may_evict["runs"], about(may_evict["from_at"], zone, now)
        named = f"{_word('run', runs)} {', '.join(map(str, runs))}"
        yield "may evict", f"{named}, from {when} on unless there is room before: {may_evict['text']}"
    yield "lasts", _lasts(found.get("predicted"))
    yield "evicted last", _evicted(found, zone, now)
    for place, one in enumerate(found.get("counterfactuals") or []):
        yield "" if place else "would start", would_start(one, zone, now)
    if found.get("counterfactuals_failed"):
        yield "would start", "unknown: the search for what would help failed; server.log says how"


def _word(word: str, found: Sequence[object]) -> str:
    return word if len(found) == 1 else f"{word}s"


def _ids(one: Found) -> str:
    more = one["count"] - len(one["runs"])
    return ", ".join(map(str, one["runs"])) + (f" and {more} more" if more > 0 else "")


def _lasts(predicted: Found | None) -> str:
    if not predicted:
        return ""
    p50, p90 = duration(predicted["p50_ms"]), duration(predicted["p90_ms"])
    span = p50 if p50 == p90 else f"{p50}, {p90} nine times in ten"
    samples, text = predicted.get("samples"), str(predicted["text"])
    if samples == 1:
        text = text.replace("runs ", "run ", 1)
    known = f"{samples} " if samples else ""
    return f"about {span} (from {known}{text})"


def _running(found: Found, zone: tzinfo | None, now: datetime | None) -> Iterator[Pair]:
    told = found.get("preemption")
    if not told:
        return
    yield "ends", starts(told.get("ends"), zone, now)
    if not told.get("leaving"):
        yield "may evict it", "; ".join(_evictors(told, zone, now)) or "nobody"
        until = told.get("spared_until")
        spared = f", spared until {about(until, zone, now)} while there is another choice" if until else ""
        yield (
            "evicted last",
            (_evicted(found, zone, now) or _moment(told.get("evicted_at"), zone, now)) + spared,
        )
    since = (
        "its last checkpoint"
        if told.get("acknowledged")
        else "it started; this attempt has saved no checkpoint"
    )
    yield "would lose", f"{duration(told['lost_device_seconds'] * 1000)} of device time since {since}"


def _evicted(found: Found, zone: tzinfo | None, now: datetime | None) -> str:
    """``14:05, preempted for run 12 (CRITICAL)``."""
    told = found.get("evicted")
    return f"{_moment(told['at'], zone, now)}, {told['text']}" if told else ""


def _moment(at: str | None, zone: tzinfo | None, now: datetime | None) -> str:
    return about(at, zone, now) if at else ""


def _evictors(told: Found, zone: tzinfo | None, now: datetime | None) -> Iterator[str]:
    from_at = about(told["from_at"], zone, now)
    if told["classes"]:
        yield f"{' and '.join(told['classes'])} runs, from {from_at}"
    if told["owners"]:
        owners = ", ".join(told["owners"])
        yield f"{told['own_class']} runs within the guarantee of {owners}, of which it borrows, from {from_at}"
    if told["younger"]:
        when = about(told["younger_from_at"], zone, now)
        yield f"{told['own_class']} runs that have not had their first slice, from {when}"


def _both(found: Found, zone: tzinfo | None) -> Iterator[Pair]:
    """Yield who went before whom although it was queued later."""
    for name, key in (("went first", "passed_by"), ("went before", "went_before")):
        told = found.get(key) or {}
        shown: Sequence[Found] = told.get("runs") or []
        for place, one in enumerate(shown):
            yield "" if place else name, f"{one['text']} ({formats.clock_time(one['at'], zone)})"
        if told.get("count", 0) > len(shown):
            yield "", f"and {told['count'] - len(shown)} more"


_SIGNS = {"metrics": "MLflow metrics", "logs": "log lines", "gpu": "GPUs at work"}


def _progress(found: Found) -> Iterator[Pair]:
    """Yield what the run tells of its steps: whether it makes any, who holds it up, and who is slow."""
    told = found.get("progress")
    if not told:
        return
    by = told.get("source", "steps")
    if by == "steps" or (by == "metrics" and told["step"]):
        yield "step", told["step"]
    if by != "steps" and told.get("limit_ms"):
        ago, limit = (duration(told[name]) for name in ("age_ms", "limit_ms"))
        yield "watched by", f"{_SIGNS.get(by, by)}: the last {ago} ago; none for {limit} is a stall"
    stall = told.get("stall")
    if stall:
        yield "stalled", f"{stall['text']} (confidence {stall['confidence']:.0%})"
        for each in stall["evidence"]:
            for line in str(each).splitlines():
                yield "", line
    for place, one in enumerate(told.get("stragglers") or []):
        yield "" if place else "slow", one["text"]


def _slowed(found: Found, zone: tzinfo | None, now: datetime | None) -> Iterator[Pair]:
    """Yield what power and cooling do to the run's nodes, and where to look."""
    for place, one in enumerate(found.get("slowed") or []):
        yield "" if place else "slowed down", f"{one['text']} (since {about(one['since'], zone, now)})"
        yield "", one["next_step"]


def _facts(evidence: Mapping[str, Any], said: set[object], zone: tzinfo | None = None) -> Iterator[Pair]:
    """Yield the evidence that says something new; moments, which it has in Unix milliseconds, as people read them."""
    for key, value in evidence.items():
        if key in MOMENTS and isinstance(value, int):
            at = datetime.fromtimestamp(value / 1000, UTC)
            yield key.removesuffix("_ms").replace("_", " "), formats.moment(at.isoformat(), zone)
        elif (
            key != "next_step" and value is not None and (isinstance(value, list | dict) or value not in said)
        ):
            yield str(key).replace("_", " "), _value(value)


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    return str(value)


def _next(found: Found) -> object:
    fix = found.get("fix")
    return fix.get("text") if isinstance(fix, dict) else fix
