"""How nodes read in text: their state in a word, the list, one node with its runs, what was done to them.

Owns: these texts. Must not know: the network, any verb.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from airyard.cli import formats

Document = dict[str, Any]
_REASON = 60
"""So much of a reason stands in the list; the page of a node has all of it."""
_BY_HAND = frozenset({"PERSON", "BREAKER"})
_IN_SHORT = {
    "RUNS": "its runs",
    "BACK_OFF": "the next remedy",
    "BUDGET": "room in the budgets",
    "BREAKER": "airyard health breaker reset",
    "PERSON": "a person",
}
_UNTIL = {"BACK_OFF": "at"}
_LONG_UNTIL = {
    "RUNS": "empty by",
    "BACK_OFF": "next remedy at",
    "REMEDY": "given up at",
    "TEST": "given up at",
    "TRUST": "well again by",
}


def state(node: Document) -> tuple[str, str]:
    """Return the state of a node in a word or two, and its colour."""
    closed = _closed(node)
    if not node.get("alive", True):
        return f"down, {closed}" if closed else "down", "red"
    health = str((node.get("health") or {}).get("state") or "HEALTHY").lower()
    if health not in ("healthy", "suspect", "probation"):
        return health, "red"
    if closed:
        return closed, "yellow"
    if health != "healthy":
        return health, "yellow"
    if node.get("reservation_id"):
        return "reserved", "yellow"
    return ("simulated", "blue") if node.get("simulated") else ("up", "green")


def _closed(node: Document) -> str:
    draining = node.get("draining")
    if draining:
        return "drained" if draining.get("drained") else "draining"
    return "cordoned" if node.get("cordoned") else ""


def listing(nodes: Sequence[Document], colour: bool) -> str:
    """Return the table of all nodes; columns that would be empty are left out."""
    rows = []
    for node in nodes:
        devices = node.get("devices") or []
        free = sum(device.get("state") == "free" for device in devices)
        word, hue = state(node)
        rows.append(
            [
                node["name"],
                node["accelerator"],
                node.get("pool") or "-",
                formats.paint(word, hue, colour),
                f"{free}/{len(devices)}",
                _uses(devices),
            ]
        )
    head = ["NODE", "ACCELERATOR", "POOL", "STATE", "FREE", "IN USE BY"]
    _more(head, rows, nodes, "CLOSED BY", _closer)
    _more(head, rows, nodes, "WAITS FOR", _awaited)
    _more(head, rows, nodes, "LABELS", _labels)
    _more(head, rows, nodes, "TO UPGRADE", lambda node: node.get("version") if node.get("upgrade") else "")
    return formats.table(head, rows, right=(4,))


def _more(head: list[str], rows: list[list[str]], nodes: Sequence[Document], title: str, text: Any) -> None:
    cells = [text(node) for node in nodes]
    if any(cells):
        head.append(title)
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell or "-")


def _labels(node: Document) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted((node.get("labels") or {}).items()))


def _closer(node: Document) -> str:
    """Say who closed it and why, in short; of a drain with a deadline that still goes on, until when."""
    word = node.get("draining") or node.get("cordon")
    if not word:
        return ""
    until = None if word.get("drained") else word.get("deadline_at")
    parts = [word["by"] or "?", f"by {formats.about(until)}" if until else ""]
    who = ", ".join(part for part in parts if part)
    return f"{who}: {formats.cut(word['reason'], _REASON)}" if word["reason"] else who


def _awaited(node: Document) -> str:
    """Say in short what a node that is out for its health waits for."""
    wait = (node.get("health") or {}).get("waits")
    if not wait or wait["what"] == "TRUST":
        return ""
    word = _IN_SHORT.get(wait["what"]) or formats.cut(wait["text"], _REASON)
    until = wait["until"]
    return f"{word}, {_UNTIL.get(wait['what'], 'by')} {formats.about(until)}" if until else word


def _uses(devices: Sequence[Document]) -> str:
    runs = sorted({int(device["run_id"]) for device in devices if device.get("run_id") is not None})
    foreign = [
        str(device["detail"]) for device in devices if device.get("detail") and not device.get("run_id")
    ]
    return ", ".join([*(f"run {run_id}" for run_id in runs), *dict.fromkeys(foreign)]) or "-"


def page(found: Document, colour: bool) -> str:
    """Return one node: what it is, who closed it, its devices, and the runs on it."""
    node, machine = found["node"], found["machine"]
    devices = node.get("devices") or []
    free = sum(device.get("state") == "free" for device in devices)
    word, hue = state(node)
    reservation = node.get("reservation_id")
    lines = formats.fields(
        [
            ("node", node["name"]),
            ("state", formats.paint(word, hue, colour)),
            ("health", _health(node.get("health"))),
            ("cordoned", _told(node.get("cordon"))),
            ("drained" if _closed(node) == "drained" else "draining", _told(node.get("draining"))),
            ("reservation", reservation),
            ("machine", f"{machine['name']} ({machine['address']}), {_presence(machine)}"),
            ("network", machine.get("network")),
            ("agent", _agent(node)),
            ("accelerator", f"{node['accelerator']}, {free} of {len(devices)} devices free"),
            ("pool", node.get("pool")),
            ("labels", _labels(node)),
            ("cores, memory", f"{node['cpus']:g}, {formats.size(node['memory_bytes'])}"),
        ]
    )
    if steps := found.get("story"):
        lines += f"\n\n{story(steps)}"
    incidents, slowdowns = found.get("incidents") or [], found.get("slowdowns") or []
    if incidents or slowdowns:
        lines += "\n\n" + "\n".join([*map(_incident, incidents), *map(_slowdown, slowdowns)])
    if tests := found.get("tests"):
        lines += "\n\n" + "\n".join(_test(test) for test in tests)
    rows = [_resident(run) for run in found["runs"]]
    if not rows:
        return f"{lines}\n\nNo run holds a device of it."
    return f"{lines}\n\n" + formats.table(("RUN", "NAME", "OWNER", "DEVICES", "PHASE", "LEAVES"), rows)


def _presence(machine: Document) -> str:
    if machine["alive"]:
        return "up"
    since = machine.get("away_since")
    return f"away since {formats.moment(since)}" if since else "away"


def _health(health: Document | None) -> str:
    if not health:
        return ""
    since = f" since {formats.moment(health['since'])}" if health["since"] else ""
    parts = [f"{health['state'].lower()}{since}"]
    if health["rule"] and (health["state"] != "HEALTHY" or health["score"]):
        parts.append(f"{health['rule']}, score {health['score']:g}")
    if health["attempt"] and health["state"] not in ("HEALTHY", "PROBATION", "RESETTING"):
        parts.append(f"remedy {health['attempt']} of 3 ({health['remedy']})")
    if wait := health.get("waits"):
        parts.append(f"next: {wait['text']}" if wait["what"] in _BY_HAND else wait["text"])
        if wait["until"]:
            parts.append(f"{_LONG_UNTIL.get(wait['what'], 'until')} {formats.moment(wait['until'])}")
    elif health["waits_for"]:  # of a server that does not tell the rest
        parts.append(f"next: {health['waits_for']}")
    return "; ".join(parts)


def story(steps: Sequence[Document], *, named: bool = False, tests: Sequence[Document] = ()) -> str:
    """Return a line for each change of a node's health, with its evidence below it, and for each test when idle."""
    lines: list[str] = []
    for step in sorted((*steps, *tests), key=lambda one: one["at"] or ""):
        if "kind" in step:
            lines.append(_test(step, named=named))
            continue
        name = f"{step['node']}  " if named else ""
        moved = step["after"].lower()
        if step["before"] != step["after"]:
            moved = f"{step['before'].lower()} -> {moved}"
        rule = f" [{step['rule']}, score {step['score']:g}]" if step["rule"] else ""
        kept = f" ({step['budget']})" if step["budget"] else ""
        lines.append(
            f"{formats.moment(step['at'])}  {name}{moved}: {step['why']}{rule}{kept}, by {step['by']}"
        )
        lines.extend(f"    {line}" for line in step["evidence"])
    return "\n".join(lines)


def fabric_fault(fault: Document) -> str:
    """Return a fault between nodes that stands, as a line."""
    what = {"LEAF": "leaf switch"}.get(fault["what"], fault["what"].lower())
    return (
        f"Since {formats.moment(fault['since'])} pair tests in {fault['pool']} blame {what} {fault['where']} "
        f"(seen {formats.moment(fault['seen'])}): {fault['next_step']}"
    )


_KINDS = {"LIGHT": "light test", "DEEP": "deep test", "FABRIC": "pair tests"}


def _test(test: Document, *, named: bool = False) -> str:
    """Return a test of an idle node, or a sweep over a pool, as a line."""
    where = f"{test['node'] or test['pool']}  " if named else ""
    kind = _KINDS.get(test["kind"], test["kind"].lower()) if test["node"] else "sweep"
    took = f" ({test['took_ms'] / 1000:.1f} s)" if test["took_ms"] else ""
    return (
        f"{formats.moment(test['at'])}  {where}INFO {kind}: {test['status'].lower()}, {test['message']}{took}"
    )


def _agent(node: Document) -> str:
    version = str(node.get("version") or "")
    return (
        f"airyard {version}, older than the server: to be upgraded"
        if node.get("upgrade")
        else version and f"airyard {version}"
    )


def _told(word: Document | None) -> str:
    if not word:
        return ""
    since = f" since {formats.moment(word['at'])}" if word.get("at") else ""
    deadline = None if word.get("drained") else word.get("deadline_at")
    until = f", to be empty by {formats.moment(deadline)}" if deadline else ""
    why = f": {word['reason']}" if word["reason"] else ""
    return f"by {word['by'] or 'somebody'}{since}{until}{why}"


def _resident(run: Document) -> list[object]:
    leaving = run.get("leaving")
    leaves = f"by {formats.moment(leaving['gone_by'])} ({leaving['reason']})" if leaving else "-"
    devices = ", ".join(map(str, run["devices"]))
    return [run["run_id"], run["name"], run["owner"], devices, run["phase"].lower(), leaves]


def operated(answer: Document) -> list[str]:
    """Return what was done, a line for each node and for each run that leaves."""
    lines = [f"{one['name']} {one['message']}" for one in answer["nodes"]]
    for run in answer["runs"]:
        lines.append(
            f"run {run['run_id']} ({run['owner']}) on {', '.join(run['nodes'])}: asked to leave at "
            f"{formats.moment(run['asked_at'])}, gone by {formats.moment(run['gone_by'])} at the latest"
        )
    return lines


def facility(incidents: Sequence[Document], slowdowns: Sequence[Document]) -> str:
    """Return what nodes share and what fails of it: incidents of places, then nodes that are part of none."""
    inside = {(one["supply"], node) for one in incidents for node in one["nodes"]}
    alone = [one for one in slowdowns if (one["supply"], one["node"]) not in inside]
    return "\n".join([*map(_incident, incidents), *map(_slowdown, alone)])


def _incident(one: Document) -> str:
    began, ended = formats.moment(one["began"]), one["ended"]
    when = f"From {began} to {formats.moment(ended)}" if ended else f"Since {began}"
    named = set(re.split(r"[,:\s]+", one["why"]))
    grown = (
        ""
        if named.issuperset(one["nodes"])
        else f"; {len(one['nodes'])} nodes {'in all' if ended else 'by now'}"
    )
    what = f"{one['supply'].lower()} of {one['place']} {'failed' if ended else 'fails'} ({one['why']}{grown})"
    return f"{when} {what}" + (f": {one['next_step']}" if one["next_step"] else "")


def _slowdown(one: Document) -> str:
    since = f" (since {formats.moment(one['since'])})" if one["since"] != one["at"] else ""
    return f"{formats.moment(one['at'])} {one['supply'].lower()} of {one['node']}: {one['message']}{since}"
