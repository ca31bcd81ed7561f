"""``airyard drain``: empty nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from airyard.cli import node_text
from airyard.cli.app import App, verb
from airyard.cli.moments import SpanType

POLL_S = 1.0


@verb("drain")
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@click.option("--deadline", type=SpanType(), metavar="SPAN", help="Let runs go on until then: 90m, 2h, 1d.")
@click.option("--reason", metavar="TEXT", default="", help="Why; shown with the node and told to its runs.")
@click.option("--wait", is_flag=True, help="Return once nothing is left on them.")
def command(app: App, nodes: tuple[str, ...], deadline: int | None, reason: str, wait: bool) -> None:
    """Cordon nodes and have their runs leave: they may save a checkpoint, keep their place, and go on elsewhere.

    Without --deadline they are asked at once, each with its own grace. With it short ones may finish: the others are
    asked a grace before, and whoever is still there then is stopped hard.

    \b
    airyard drain n1 n2 --reason "new fans" --wait
    airyard drain n3 --deadline 2h
    """
    answer = app.client.drain(nodes, reason=reason, deadline_s=deadline)
    if not app.as_json:
        app.console.text("\n".join(node_text.operated(answer)))
    meant = [one["name"] for one in answer["nodes"]]
    if wait:
        empty = _wait(app, meant)
        answer["nodes"] = [{**one, "node": empty.get(one["name"])} for one in answer["nodes"]]
    if app.as_json:
        app.console.data(answer)
    elif wait:
        app.console.text(f"{', '.join(meant)}: nothing is left")


def _wait(app: App, names: Sequence[str]) -> dict[str, Any]:
    """Wait until no run holds a device of the nodes; return their documents. An uncordon ends the wait for a node."""
    told = ""
    while True:
        nodes = {node["name"]: node for node in app.client.nodes() if node["name"] in names}
        left = {name: held for name, node in nodes.items() if (held := _held(node))}
        if not left:
            return nodes
        line = "waiting for " + "; ".join(
            f"{name}: run {', '.join(map(str, held))}" for name, held in sorted(left.items())
        )
        if line != told:
            app.console.note(line)
            told = line
        time.sleep(POLL_S)


def _held(node: dict[str, Any]) -> list[int]:
    if not node.get("draining"):
        return []
    return sorted({device["run_id"] for device in node["devices"] if device["run_id"] is not None})
