"""``airyard dev fault``: give a simulated node a fault, and take it away again.

Owns: its words. Must not know: what is written where (``sim/giving.py``), rules.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from airyard.cli import formats
from airyard.cli.app import App, Verb, pass_app
from airyard.core.errors import UserError

if TYPE_CHECKING:
    from airyard.node.fault_kinds import FaultKind

LONGEST_S, STRAGGLES_S = 86_400.0, 60.0


def _complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from airyard.sim.giving import kinds

    return [CompletionItem(kind.name, help=kind.text) for kind in kinds() if kind.name.startswith(begun)]


@click.command("fault", cls=Verb)
@click.argument("node", metavar="[NODE", required=False)
@click.argument("kind", metavar="KIND]", required=False, shell_complete=_complete)
@click.option("--device", type=int, metavar="N", help="Which GPU (0), where the fault is one of a GPU.")
@click.option("--clear", is_flag=True, help="Take away what the node was given.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, LONGEST_S, min_open=True),
    help="How long a straggler is one (60); Ctrl-C ends it, too.",
)
@pass_app
def fault(
    app: App, node: str | None, kind: str | None, device: int | None, clear: bool, seconds: float | None
) -> None:
    """Give a simulated node a fault, which is found, judged and mended as a real one. Without a node: list the kinds.

    For nodes of `airyard up --simulate`, on their machine, and of `airyard dev fleet`, with its AIRYARD_HOME. What was
    reported of a node stays after --clear: it is mended and tested, or `airyard health acquit` it.
    """
    from airyard.sdk.config import home_folder
    from airyard.sim.giving import Giver, kind_of

    if node is None:
        if clear or device is not None or seconds is not None:
            raise UserError("of which node?", code="BAD_ARGUMENTS", fix="`airyard nodes` lists the nodes")
        _list(app)
        return
    if clear is (kind is not None):
        text = "either a KIND or --clear" if clear else f"which fault is {node} to have?"
        raise UserError(text, code="BAD_ARGUMENTS", fix="`airyard dev fault` lists the kinds")
    wanted = kind_of(kind) if kind is not None else None
    _check_options(wanted, device, seconds)
    found = app.client.node(node)
    giver = Giver(home_folder(app.options.get("home")), found["node"], app.client.nodes())
    keys = [f"{run['run_id']}.{run['attempt']}.{run['member']}" for run in found["runs"]]
    done: dict[str, Any] = {"node": node, "fault": kind, "device": None}
    if wanted is None:
        giver.clear()
        giver.go_on(keys)
        text = f"{node}: well again"
    elif wanted.name == "hang":
        text = (
            f"{node}: {len(giver.halt(keys))} processes stand still until `airyard dev fault {node} --clear`"
        )
    elif wanted.name == "straggler":
        lasts_s = STRAGGLES_S if seconds is None else seconds
        until_s = time.monotonic() + lasts_s
        app.console.note(f"{node}: slow for {lasts_s:g} s; Ctrl-C ends it")
        giver.hold_back(keys, lambda: time.monotonic() < until_s)
        text = f"{node}: as fast as before"
    else:
        giver.give(wanted, device)
        done["device"] = (device or 0) if wanted.of == "device" else None
        where = f", GPU {device or 0}" if wanted.of == "device" else ""
        see = f"health pair {node} OTHER" if wanted.name == "slow-pair" else f"nodes {node}"
        text = f"{node}{where}: {wanted.text}. See `airyard {see}`"
    if app.as_json:
        app.console.data(done)
    else:
        app.console.text(text)


def _check_options(wanted: FaultKind | None, device: int | None, seconds: float | None) -> None:
    """Refuse options that would do nothing. ``wanted``: None for ``--clear``. Raises: UserError."""
    what = wanted.name if wanted is not None else "--clear"
    if device is not None and (wanted is None or wanted.of != "device"):
        raise UserError(
            f"{what} is of no single GPU: it takes no --device", code="BAD_DEVICE", fix="leave --device out"
        )
    if seconds is not None and what != "straggler":
        raise UserError(
            f"{what} takes no --seconds: only a straggler is over by itself",
            code="BAD_ARGUMENTS",
            fix="leave --seconds out" + ("" if wanted is None else "; --clear takes the fault away"),
        )


def _list(app: App) -> None:
    from airyard.sim.giving import kinds

    of = {
        "device": "a GPU",
        "node": "the node",
        "machine": "a machine of dev fleet",
        "run": "what runs there",
    }
    if app.as_json:
        listed = [
            {"kind": kind.name, "of": kind.of, "text": kind.text, "rule": kind.seen_as or None}
            for kind in kinds()
        ]
        app.console.data({"kinds": listed})
        return
    rows = [[kind.name, of[kind.of], kind.text, kind.seen_as or "-"] for kind in kinds()]
    app.console.text(formats.table(["KIND", "OF", "WHAT", "SEEN AS"], rows))
