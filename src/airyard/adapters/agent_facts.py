"""What an agent says, as facts of the engine port. Pure.

Owns: reading hello's answer and the pushes. Must not know: how the lines came here, who takes the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airyard.core.cluster import Device, Machine, Node
from airyard.core.commands import MachineSeen, MemberGone, SeenMember, SeenState
from airyard.core.exit_reports import exit_of
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import MemberKey
from airyard.core.run import Cause, Exit, LogClose
from airyard.ports.engine import ContainmentSeen, Fact, Sample, Samples


def facts_of_hello(result: Mapping[str, Any], now_ms: int) -> tuple[ContainmentSeen, MachineSeen]:
    """Read the result of ``hello``. Raises: KeyError, ValueError."""
    about = result["machine"]
    name = str(about["name"])
    machine = Machine(
        name=name,
        boot_id=str(about["boot_id"]),
        address=str(about["address"]),
        alive=True,
        network=str((about.get("network") or {}).get("summary") or ""),
        version=str(about.get("version") or ""),
    )
    return (
        ContainmentSeen(machine=name, containment=dict(about["containment"])),
        MachineSeen(
            machine=machine,
            nodes=tuple(_node(item, name) for item in result["nodes"]),
            members=tuple(_seen(item, now_ms) for item in result["attempts"]),
        ),
    )


def fact_of_push(event: str, message: Mapping[str, Any], now_ms: int) -> Fact | None:
    """Read a push; None for one that says nothing to the loop. Raises: KeyError, ValueError."""
    if event == "samples":
        return Samples(samples=tuple(_sample(item) for item in message["samples"]))
    if event in ("exited", "died"):
        return MemberGone(seen=_seen({**message, "state": event}, now_ms))
    return None


CLOCKS_AGREE_MS = 2_000


def health_of_push(
    message: Mapping[str, Any], machine: str, nodes: frozenset[str], now_ms: int
) -> tuple[list[str], tuple[HealthEvent, ...]]:
    """Read what a machine's monitors saw: all ids, and those events that are any.

    An event of a kind that is not known here is left out, and taken all the same: it would come for ever. A machine
    speaks for itself and its own nodes only, and its clock is put right by when it sent this. Raises: KeyError.
    """
    sent_ms = message.get("sent_ms")
    ahead_ms = sent_ms - now_ms if isinstance(sent_ms, int) else 0
    ids, events = [], []
    for item in message["events"]:
        ids.append(str(item["event_id"]))
        try:
            event = HealthEvent.from_json({**item, "machine": machine})
        except (KeyError, ValueError, TypeError):
            continue
        if event.node and event.node not in nodes:
            continue
        at_ms = event.at_ms - ahead_ms if abs(ahead_ms) > CLOCKS_AGREE_MS else event.at_ms
        events.append(replace(event, at_ms=min(at_ms, now_ms)))
    return ids, tuple(events)


def fact_of_refused_start(key: MemberKey, error: Mapping[str, Any], now_ms: int) -> MemberGone:
    """Say that a member was not started, and why."""
    cause = "STORAGE" if error.get("code") == "NODE_DISK_FULL" else "PLATFORM"
    return MemberGone(seen=_died(key, cause, f"the member was not started: {error['message']}", now_ms))


def _seen(item: Mapping[str, Any], now_ms: int) -> SeenMember:
    key = MemberKey.parse(str(item["key"]))
    state = SeenState(item["state"])
    if state is SeenState.DIED:
        return _died(key, str(item.get("cause") or "PLATFORM"), str(item.get("detail") or ""), now_ms)
    record = item.get("exit")
    if not record:
        return SeenMember(key=key, state=state)
    logs = record.get("logs")
    return SeenMember(
        key=key,
        state=state,
        # The runner's clock is taken for the server's.
        exit=exit_of(record["exited"], int(record["exited"].get("at_ns", 0)) // 1_000_000),
        logs=LogClose(last_seq=int(logs["last_seq"]), sha256=str(logs["sha256"])) if logs else None,
    )


def _died(key: MemberKey, cause: str, detail: str, now_ms: int) -> SeenMember:
    exit_ = Exit(code=None, signal=None, started=False, cause=Cause(cause), message=detail, at_ms=now_ms)
    return SeenMember(key=key, state=SeenState.DIED, exit=exit_)


def _node(item: Mapping[str, Any], machine: str) -> Node:
    return Node(
        name=str(item["name"]),
        machine=machine,
        accelerator=str(item["accelerator"]),
        model=item["model"],
        devices=tuple(
            Device(index=int(device["index"]), uuid=str(device["uuid"]), owner=device["owner"])
            for device in item["devices"]
        ),
        cpus=float(item["cpus"]),
        memory_bytes=int(item["memory_bytes"]),
        simulated=bool(item["simulated"]),
        labels=dict(item["labels"]) or None,
        run_as=str(item.get("run_as") or ""),
    )


def _sample(item: Mapping[str, Any]) -> Sample:
    return Sample(
        key=MemberKey.parse(str(item["key"])),
        node=str(item["node"]),
        time_ms=int(item["time_ms"]),
        values={str(name): float(value) for name, value in item["values"].items()},
    )
