"""``airyard health events|maintenance|acquit|breaker|report``: nodes' health as the server knows it."""

from __future__ import annotations

import uuid
from typing import Any

import click

from airyard.cli import fault_reports, formats, node_text
from airyard.cli.app import App, Verb, VerbGroup, pass_app
from airyard.cli.moments import SpanType


@click.command("events", cls=Verb)
@click.option("--node", metavar="NAME", help="Only of this node.")
@click.option("--since", type=SpanType(), metavar="SPAN", help="Only of the last 30m, 2h, 1d.")
@pass_app
def events(app: App, node: str | None, since: int | None) -> None:
    """Show what became of nodes by their health, the newest last: why, on whose word, with which evidence.

    Tests of idle nodes are among it (INFO): the newest of each node, and the newest sweeps of each pool.
    Incidents of the facility and faults between nodes that stand (an edge, a leaf switch, a rail) come first.
    """
    found = app.client.health.events(node, since)
    if app.as_json:
        app.console.data(found)
        return
    for breaker in found["breakers"]:
        app.console.text(f"The breaker of {breaker['pool']} is open: {breaker['why']}")
    for fault in found.get("faults") or []:
        app.console.text(node_text.fabric_fault(fault))
    facility = node_text.facility(found.get("incidents") or [], found.get("slowdowns") or [])
    if facility:
        app.console.text(facility)
    tests = found.get("tests") or []
    if not found["events"] and not tests:
        whose = f"The health of {node} has not" if node else "No node's health has"
        app.console.note(f"{whose} changed{' in that time' if since else ''}.")
        return
    app.console.text(node_text.story(found["events"], named=True, tests=tests))


@click.command("maintenance", cls=Verb)
@click.argument("node", metavar="NODE")
@click.argument("word", metavar="on|off", type=click.Choice(["on", "off"]))
@click.option("--reason", metavar="TEXT", default="", help="Why; it stands in the node's story.")
@pass_app
def maintenance(app: App, node: str, word: str, reason: str) -> None:
    """Take a node over (on: its runs are asked to leave), or give it back (off: it is tested, then works again)."""
    _say(app, app.client.health.maintenance([node], word == "on", reason=reason))


@click.command("acquit", cls=Verb)
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", default="", help="Why; it stands in the node's story.")
@pass_app
def acquit(app: App, nodes: tuple[str, ...], reason: str) -> None:
    """Say of nodes that they are well: quarantined ones work again, on probation; suspects are healthy."""
    _say(app, app.client.health.acquit(nodes, reason=reason))


@click.group("breaker", cls=VerbGroup)
def breaker() -> None:
    """The breaker stops all taking out of nodes where too much breaks at once."""


@breaker.command("reset", cls=Verb)
@click.option("--pool", metavar="NAME", default="", help="Only of this pool.")
@pass_app
def reset(app: App, pool: str) -> None:
    """Let nodes be taken out again, after somebody has looked."""
    answer = app.client.health.reset_breaker(pool)
    _say(app, answer)
    if not answer["nodes"] and not app.as_json:
        app.console.note("No breaker is open.")


@click.command("report", cls=Verb)
@click.argument("node", metavar="NODE")
@click.option(
    "--rule", required=True, metavar="RULE", help="What it is: xid.79, nic.down, a name of one's own."
)
@click.option(
    "--severity",
    type=click.Choice(["WARNING", "HIGH", "CRITICAL"]),
    help="CRITICAL takes the node out at once and stops what runs on it. "
    "Without it that of a rule which is known, else HIGH.",
)
@click.option("--device", type=click.IntRange(min=0), metavar="N", help="Which GPU; else the whole node.")
@click.option("--message", metavar="TEXT", default="", help="In words.")
@click.option("--id", "event_id", metavar="ID", help="The same ID again is the same event.")
@pass_app
def report(
    app: App,
    node: str,
    rule: str,
    severity: str | None,
    device: int | None,
    message: str,
    event_id: str | None,
) -> None:
    """Report a fault of a node: from a monitor of one's own, or to see what would become of it.

    Of rules of the kernel's log (xid.79, sxid.22013, gpu.off_bus) severity, remedy and test are known.
    """
    said = {"severity": severity, "device": device, "message": message or None}
    event: dict[str, Any] = {
        "event_id": event_id or uuid.uuid4().hex,
        "rule": rule,
        "node": node,
        **{name: value for name, value in said.items() if value is not None},
    }
    answer = fault_reports.report(app.client.health, app.client.node, event)
    if app.as_json:
        app.console.data({**answer, "event_id": event["event_id"]})
        return
    for note in answer.get("notes", ()):  # a server of before has none
        app.console.note(note)
    after = app.client.node(node)["node"].get("health")
    against = f", score {after['score']:g}" if after and after["score"] else "; this weighs nothing"
    app.console.text(f"{node} is {after['state'].lower() if after else 'healthy'}{against}")


@click.command("notifications", cls=Verb)
@click.option(
    "--state",
    type=click.Choice(["waiting", "delivered", "given_up", "all"]),
    default="all",
    show_default=True,
    help="Only these.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="At most N."
)
@pass_app
def notifications(app: App, state: str, limit: int) -> None:
    """Show what became of messages to people, about runs and the yard: who got them, and what stands in the way."""
    found = app.client.health.notifications(state, limit)
    if app.as_json:
        app.console.data(found)
        return
    rows = [
        [
            formats.moment(one["at"]),
            one["kind"],
            one["run_id"] if one["run_id"] is not None else "",
            one["state"].lower().replace("_", " "),
            one["tries"],
            one["to"],
            one["error"] or "",
        ]
        for one in found["notifications"]
    ]
    if not rows:
        app.console.note("There is no such message.")
        return
    header = ("AT", "KIND", "RUN", "STATE", "TRIES", "TO", "PROBLEM")
    app.console.text(formats.table(header, rows, right=(2, 4)))


def _say(app: App, answer: dict[str, Any]) -> None:
    if app.as_json:
        app.console.data(answer)
    elif lines := node_text.operated(answer):
        app.console.text("\n".join(lines))


VERBS = (events, maintenance, acquit, breaker, report, notifications)
