"""``airyard health``: this machine's GPUs and the rest of it, checked; and what the server knows of its nodes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from airyard.cli import formats
from airyard.cli.app import App, Verb, VerbGroup, pass_app
from airyard.cli.exit_codes import ExitCode
from airyard.cli.verbs import health_nodes, health_pair

if TYPE_CHECKING:
    from airyard.core.health.facts import CheckResult

_COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "red", "SKIP": "dim", "UNKNOWN": "magenta"}


@click.group("health", cls=VerbGroup)
def command() -> None:
    """Check this machine (check, checks), and see to the health of the yard's nodes."""


@command.command("check", cls=Verb)
@click.option(
    "--node", metavar="NAME", help="Have this node of the yard checked by its agent, not this machine."
)
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="So many GPUs should be there.")
@click.option("--full", is_flag=True, help="Watch longer, and run what takes minutes.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="Resolve this name, too.")
@click.option(
    "--folder", type=click.Path(path_type=Path), metavar="DIR", help="Where runs write (the data folder)."
)
@click.option(
    "--writes", "shared", multiple=True, metavar="DIR", help="Write to this folder, too: a file server's."
)
@click.option(
    "--thresholds",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Limits over the packaged ones (those of the data folder's node/thresholds.toml).",
)
@click.option(
    "--python",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The interpreter with torch that makes GPUs work (this one, if it has torch).",
)
@click.option(
    "--own", type=click.Path(path_type=Path), metavar="DIR", help="A folder with checks of your own."
)
@click.option("--all", "everything", is_flag=True, help="Show what was skipped, too.")
@pass_app
def check(
    app: App,
    node: str | None,
    gpus: int | None,
    full: bool,
    names: tuple[str, ...],
    folder: Path | None,
    shared: tuple[str, ...],
    thresholds: Path | None,
    python: Path | None,
    own: Path | None,
    everything: bool,
) -> int:
    """Check this machine now. Exits 0 when all is well, 1 when a check failed, 5 when one could not be told.

    Warnings do not count. It needs no server, and runs best while nothing else does: GPUs in use are told of.
    With --node the server has it done there: what fails is reported as the node's health, as what its monitors see;
    of a simulated node nothing can be told (5).
    """
    if node is not None:
        if gpus is not None or names or folder or shared or thresholds or python or own:
            raise click.UsageError(
                "--node goes with --full and --all only: a node's own limits and checks are used"
            )
        return _check_node(app, node, full, everything)
    from airyard.checks import catalogue, running  # slow to import, and for this verb only
    from airyard.checks.contract import Profile
    from airyard.checks.preflight.results import result_to_json
    from airyard.checks.preflight.setting import CACHES, Setting
    from airyard.checks.site_limits import FILE
    from airyard.checks.thresholds import load

    profile = Profile.FULL if full else Profile.FAST
    data = folder or _data_folder(app)
    caches = [str(data / "node" / name) for name in CACHES] if (data / "node").is_dir() else []
    site = Setting(
        data_folder=data,
        gpus=gpus,
        hosts=names,
        full=full,
        writes=shared,
        caches=tuple(caches),
        python=str(python or _with_torch()),
    )
    own_limits = data / "node" / FILE
    if thresholds is None and own_limits.is_file():
        thresholds = own_limits
    files = catalogue.own(own, profile) if own is not None else None
    results = running.run(catalogue.probes(profile), site, load(thresholds), files)
    code = _exit_code(results)
    if app.as_json:
        told = [result_to_json(one) for one in results]
        app.console.data({"ok": code == ExitCode.SUCCESS, "profile": profile.value, "checks": told})
    else:
        _print(app, results, everything)
    return code


def _with_torch() -> str:
    """Return this interpreter where torch can be imported, else nothing: then no GPU is made to work."""
    return sys.executable if importlib.util.find_spec("torch") is not None else ""


def _check_node(app: App, node: str, full: bool, everything: bool) -> int:
    """Have a node checked by its agent, and show it as if it were this machine."""
    from airyard.checks.preflight.results import results_from_json  # slow to import, and for this verb only

    found = app.client.health.check(node, full=full)
    results = results_from_json(found["checks"])
    code = ExitCode.UNAVAILABLE if found["simulated"] else _exit_code(results)
    if app.as_json:
        told = {name: found[name] for name in ("node", "profile", "simulated", "reported", "checks")}
        app.console.data({"ok": code == ExitCode.SUCCESS, **told})
        return code
    if found["simulated"]:
        app.console.text(f"{node} is simulated: nothing was checked.")
        return code
    _print(app, results, everything)
    if found["reported"]:
        app.console.note(f"Reported as {node}'s health: `airyard nodes {node}` shows what came of it.")
    return code


def _exit_code(results: Sequence[CheckResult]) -> int:
    said = {result.status.value for result in results}
    if "FAIL" in said:
        return ExitCode.USER_CODE
    return ExitCode.UNAVAILABLE if "UNKNOWN" in said else ExitCode.SUCCESS


def _data_folder(app: App) -> Path:
    """Return the data folder, or the nearest folder above it that is there: nothing is made for a check."""
    place: Path = app.client.target.home
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _print(app: App, results: Sequence[CheckResult], everything: bool) -> None:
    colour = app.console.colour_out
    counts: dict[str, int] = {}
    told = ""
    for result in results:
        status = result.status.value
        counts[status] = counts.get(status, 0) + 1
        if (status == "SKIP" and not everything) or (status == "UNKNOWN" and result.message == told):
            continue  # a probe that is late says so once, not for each of its checks
        told = result.message
        word = formats.paint(f"{status.lower():<7}", _COLOURS[status], colour)
        limit = f" (limit: {result.details['limit']})" if "limit" in result.details else ""
        app.console.text(f"{word} {result.check:<22} {result.message}{limit}")
        if result.next_step and status != "PASS":
            app.console.text(f"{'':<30} next: {result.next_step}")
    said = ", ".join(f"{count} {status.lower()}" for status, count in sorted(counts.items()))
    app.console.text(
        f"{said}" + ("" if everything or "SKIP" not in counts else " (--all shows what was skipped)")
    )


@command.command("checks", cls=Verb)
@pass_app
def checks(app: App) -> None:
    """List the checks there are: what each looks at, and when it passes."""
    from airyard.checks.catalogue import PROBES  # slow to import, and for this verb only

    rows = [(check, probe) for probe in PROBES for check in probe.checks]
    if app.as_json:
        app.console.data(
            {
                "checks": [
                    {
                        "check": check.name,
                        "number": check.number,
                        "title": check.title,
                        "passes": check.passes,
                        "probe": probe.name,
                        "profile": probe.profile.value,
                        "component": check.component.value,
                        "deadline_s": probe.deadline_s,
                    }
                    for check, probe in rows
                ]
            }
        )
        return
    for check, _ in rows:
        app.console.text(f"{check.name:<22} {check.title}: {check.passes}")


for verb in (*health_nodes.VERBS, health_pair.pair):
    command.add_command(verb)
