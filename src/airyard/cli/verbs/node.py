"""``airyard node``: this machine joins a fleet, or leaves it."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from airyard.cli.app import App, VerbGroup, key_values, pass_app


@click.group("node", cls=VerbGroup)
def command() -> None:
    """Let this machine join a fleet, or leave it."""


@command.command("join")
@click.argument("server", metavar="HOST:PORT")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The fleet's token: a copy of server/ray/token of the server's data folder.",
)
@click.option("--name", metavar="NAME", help="Name of this machine in the fleet (its host name).")
@click.option(
    "--address", metavar="IP", help="Address of this machine for the others (the one towards the server)."
)
@click.option("--interface", metavar="IF", help="Its network interface for runs (detected).")
@click.option(
    "--hca",
    "hcas",
    multiple=True,
    metavar="HCA",
    help="RDMA adapter for runs, like mlx5_0 (detected). Repeatable.",
)
@click.option("--pool", metavar="POOL", help="Short for --label pool=POOL.")
@click.option(
    "--label", "labels", multiple=True, metavar="K=V", help="Label of its nodes: fabric, rack, … Repeatable."
)
@click.option(
    "--simulated", multiple=True, metavar="TYPE=N", help="Simulated nodes, like GPU_8xH100=2. Repeatable."
)
@click.option("--cpu-slots", type=click.IntRange(0, 4096), help="CPU nodes (at least 4, as many as cores).")
@click.option(
    "--until", metavar="TIME", help="It leaves then: only what ends before is placed; what is left drains."
)
@click.option(
    "--block", is_flag=True, help="Stay in the foreground, and leave when stopped: for systemd and Slurm."
)
@pass_app
def join(
    app: App,
    server: str,
    token_file: Path,
    name: str | None,
    address: str | None,
    interface: str | None,
    hcas: tuple[str, ...],
    pool: str | None,
    labels: tuple[str, ...],
    simulated: tuple[str, ...],
    cpu_slots: int | None,
    until: str | None,
    block: bool,
) -> None:
    """Join the fleet of the server at HOST:PORT with this machine. The server is not asked for a person's token."""
    from airyard.cli.verbs.up import parse_simulation
    from airyard.node import joining
    from airyard.node.network import Wish
    from airyard.sdk import config

    home = config.home_folder(app.options.get("home")).absolute()
    wanted = joining.Wanted(
        server=server,
        token_file=token_file,
        home=home,
        name=(name or "").lower(),
        address=address or "",
        network=Wish(interface=interface or "", hcas=hcas),
        labels={**key_values(labels, "--label"), **({"pool": pool} if pool else {})},
        simulate=parse_simulation(",".join(simulated)) if simulated else {},
        cpu_slots=cpu_slots,
        until_ms=_until_ms(until, datetime.now(UTC)) if until else None,
    )
    stop = threading.Event()
    if block:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    found = joining.join(wanted)
    _tell(
        app,
        found,
        f"{found['name']} ({found['address']}) joined {found['server']}: {', '.join(found['nodes'])}",
    )
    if block:
        while not stop.wait(1.0) and joining.is_joined(home):
            pass
        joining.leave(home, force=True)


@command.command("leave")
@click.option(
    "--force", is_flag=True, help="Leave though members live here: they go on, and are adopted at a join."
)
@pass_app
def leave(app: App, force: bool) -> None:
    """Leave the fleet: Ray ends on this machine, and its agent. Drain its nodes first."""
    from airyard.node import joining
    from airyard.sdk import config

    found = joining.leave(config.home_folder(app.options.get("home")).absolute(), force=force)
    left = found["members"]
    _tell(app, found, f"{found['name']} left the fleet" + (f"; {len(left)} members live on" if left else ""))


def _until_ms(text: str, now: datetime) -> int:
    from airyard.cli.moments import moment

    try:
        at = moment(text, now)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--until") from None
    if at <= now:
        raise click.BadParameter(f"{text!r} is past.", param_hint="--until")
    return int(at.timestamp() * 1000)


def _tell(app: App, found: dict[str, Any], text: str) -> None:
    if app.as_json:
        app.console.data(found)
    else:
        app.console.text(text)
