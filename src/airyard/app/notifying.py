"""Makes messages of the journal's events: who gets one, and what stands in it.

Owns: that, as plain data. Must not know: delivery, signatures, where messages are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from airyard.app.views import rfc3339, with_number
from airyard.core.events import Recorded
from airyard.core.notices import Notice, notice_of
from airyard.core.notify import FleetNotice, RunNotice, shown_target
from airyard.core.run import Run
from airyard.ports.notice_store import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReceiver:
    """Where messages about the yard go, as the configuration says."""

    on: Collection[FleetNotice]
    to: str
    secret: str | None = None
    """The secret itself; None: unsigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What every message says of the yard, and where messages about it go."""

    yard: str
    """The yard's id: it keeps the ids of messages of several yards apart."""
    server: str
    """The address by which people reach the server."""
    fleet: Sequence[FleetReceiver] = ()

    def messages(self, recorded: Recorded, find_run: Callable[[int], Run | None]) -> list[Message]:
        """Return the messages of one event, at most one for each target; ``find_run`` is asked only when needed."""
        notice = notice_of(recorded)
        if notice is None:
            return []
        if notice.run_id is None:
            wanted = [(receiver.on, receiver.to, None) for receiver in self.fleet]
            return self._to_each(recorded, notice, None, wanted)
        run = find_run(notice.run_id)
        if run is None:
            return []
        rules = [(rule.on, rule.to, rule.secret) for rule in run.workload.notify]
        return self._to_each(recorded, notice, run, rules)

    def _to_each(
        self,
        recorded: Recorded,
        notice: Notice,
        run: Run | None,
        rules: Sequence[tuple[Collection[RunNotice | FleetNotice], str, str | None]],
    ) -> list[Message]:
        out: dict[str, Message] = {}
        for kind in notice.kinds:
            for on, target, secret in rules:
                if kind in on and target not in out:
                    out[target] = self._message(recorded, notice, run, kind.value, target, secret)
        return list(out.values())

    def _message(
        self, recorded: Recorded, notice: Notice, run: Run | None, kind: str, target: str, secret: str | None
    ) -> Message:
        # The same over restarts and takeovers, for it follows from the journal alone.
        material = "\n".join((self.yard, notice.key, notice.kinds[0].value, target))
        message_id = "msg_" + hashlib.sha256(material.encode()).hexdigest()[:32]
        body = {
            "id": message_id,
            "kind": kind,
            "at": rfc3339(notice.at_ms),
            "text": text_of(notice, run, kind),
            "yard": self.yard,
            "server": self.server,
            "command": command_of(notice),
            "message": notice.message,
            "next_step": _next_step(notice),
            "run": _run_facts(run, notice) if run is not None else None,
            "node": notice.node,
            "pool": notice.pool,
            "place": notice.place,
            "by": notice.by,
            "cause": notice.cause,
        }
        return Message(
            message_id=message_id,
            seq=recorded.seq,
            at_ms=recorded.at_ms,
            kind=kind,
            run_id=notice.run_id,
            target=target,
            queue=queue_of(run.owner if run is not None else "", target),
            secret=secret,
            body=json.dumps(body, ensure_ascii=False, separators=(",", ":")),
        )


def queue_of(owner: str, target: str) -> str:
    """Return the queue of an owner's messages to one address: of two on one host only one may be at fault."""
    mark = hashlib.sha256(target.encode()).hexdigest()[:12]
    return f"{owner} {shown_target(target)} {mark}"


def _next_step(notice: Notice) -> str | None:
    step, run_id = notice.next_step, notice.run_id
    return with_number(step, run_id) if step is not None and run_id is not None else step


def command_of(notice: Notice) -> str:
    """Return the command that shows more."""
    if notice.run_id is not None:
        return f"airyard explain {notice.run_id}"
    if notice.node is not None:
        return f"airyard nodes {notice.node}"
    told = notice.pool is not None or notice.place is not None
    return "airyard health events" if told else "airyard status"


def text_of(notice: Notice, run: Run | None, kind: str) -> str:
    """Return one line for people: chat services show it."""
    said = notice.message.strip().rstrip(".")
    why = f": {said}" if said else ""
    return f"{_subject(notice, run, kind)}{why}. More: {command_of(notice)}"


def _subject(notice: Notice, run: Run | None, kind: str) -> str:
    if run is not None:
        what = {
            RunNotice.PREEMPTED.value: "was preempted and waits again",
            RunNotice.STALLED.value: "makes no progress",
        }.get(kind)
        outcome = (notice.outcome or "").lower().replace("_", " ")
        named = run.name if run.name == run.workload.experiment else f"{run.name}, {run.workload.experiment}"
        return f"Run {run.run_id} ({named}, of {run.owner}) {what or f'has ended: {outcome}'}"
    if kind == FleetNotice.FABRIC_FAULT.value:
        return f"Pair tests in pool {notice.pool} found a fault between nodes"
    if kind == FleetNotice.FABRIC_WELL.value:
        return f"Pair tests in pool {notice.pool} found well what was at fault between nodes"
    if notice.pool is not None:
        return f"The breaker of pool {notice.pool} is open: nothing more is taken out by itself"
    if notice.place is not None:
        supply = (notice.cause or "").removeprefix("facility.").capitalize()
        if kind == FleetNotice.FACILITY_WELL.value:
            return f"{supply} of {notice.place} is well again"
        return f"{supply} of {notice.place} fails, no node is blamed"
    if notice.node is not None:
        what = {
            FleetNotice.NODE_CORDONED.value: f"was cordoned by {notice.by}",
            FleetNotice.NODE_QUARANTINED.value: "is quarantined",
            FleetNotice.NODE_RETIRED.value: "is retired",
            FleetNotice.NODE_BACK.value: "works again, on probation",
        }[kind]
        return f"Node {notice.node} {what}"
    return "A server has begun to lead the yard"


def _run_facts(run: Run, notice: Notice) -> dict[str, Any]:
    compute = run.workload.compute
    return {
        "run_id": run.run_id,
        "name": run.name,
        "experiment": run.workload.experiment,
        "owner": run.owner,
        "project": run.project,
        "tags": dict(run.workload.tags),
        "accelerator": compute.accelerator,
        "nodes": compute.nodes,
        "attempt": notice.attempt,
        "outcome": notice.outcome,
        "cause": notice.cause,
        "submitted_at": rfc3339(run.submitted_ms),
    }
