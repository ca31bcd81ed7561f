"""``airyard health pair``: two nodes of the yard tested against each other.

Owns: its words and exit code. Must not know: how nodes are reached, what passes.
"""

from __future__ import annotations

from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, Verb, pass_app
from airyard.cli.exit_codes import ExitCode

_METHODS = {
    "tcp": "blocks both ways over TCP",
    "gloo": "all-reduce over gloo",
    "nccl": "all-reduce over NCCL",
    "simulated": "simulated",
}
_COLOURS = {"PASS": "green", "FAIL": "red"}


@click.command("pair", cls=Verb)
@click.argument("one", metavar="NODE")
@click.argument("other", metavar="NODE")
@pass_app
def pair(app: App, one: str, other: str) -> int:
    """Test two nodes against each other. Exits 0 when they pass, 1 when they fail, 5 when it could not be told.

    Small messages, then blocks both ways, their content compared; with torch in the base environment an all-reduce of
    both. Of machines with several adapters that correspond each is measured by itself, too. Nothing is reported as
    their health: a pair alone does not say which of the two it is.
    """
    found = app.client.health.pair(one, other)
    ok = found["outcome"] == "PASS"
    code = ExitCode.SUCCESS if ok else ExitCode.USER_CODE
    if app.as_json:
        app.console.data({"ok": ok, **{name: value for name, value in found.items() if name != "done"}})
        return code
    word = formats.paint(f"{found['outcome'].lower():<7}", _COLOURS[found["outcome"]], app.console.colour_out)
    app.console.text(f"{word} {one} {other}   {_figures(found)}")
    for each in found.get("adapters") or []:
        read = each["problem"] or f"{each['gb_s']:.3g} GB/s"
        app.console.text(f"{'':<7} adapter {each['a']} with {each['b']}: {read}")
    if not ok:
        app.console.text(f"{'':<7} why: {found['why']}")
        app.console.text(
            f"{'':<7} next: find out which of the two it is: `airyard health pair {one} OTHER` and "
            f"`airyard health pair {other} OTHER`, with a node that is well"
        )
    if len(set(found["machines"])) == 1 and not found["simulated"]:
        app.console.note("Both are on one machine: the network between machines was not tested.")
    return code


def _figures(found: dict[str, Any]) -> str:
    if found.get("busbw_gb_s") is None:
        return "no figures"
    method = _METHODS.get(found["method"], found["method"])
    return f"{found['busbw_gb_s']:.3g} GB/s ({method}), small messages p95 {found['latency_p95_us']:.0f} µs"
