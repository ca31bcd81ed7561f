"""``airyard node``: this machine joins a fleet, or leaves it."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from airyard.cli.app import App, VerbGroup, key_values, pass_app
from airyard.cli.moments import SpanType

if TYPE_CHECKING:
    from airyard.node.allotment import Allotment
    from airyard.node.joining import Wanted


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
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="AIRYARD_CA_FILE",
    help="The CA of the server's certificate (PEM), kept for the runs here (the system's CAs). "
    "HOST:PORT is then https.",
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
    "--gpus", metavar="LIST", help="GPUs it offers: all, none, 0,1 or UUIDs (what this process was given)."
)
@click.option(
    "--cpus", type=click.FloatRange(min=1), metavar="N", help="Cores it offers (what this process was given)."
)
@click.option("--memory", metavar="SIZE", help="Memory it offers: 64G (what this process was given).")
@click.option(
    "--until", metavar="TIME", help="It leaves then: only what ends before is placed; what is left drains."
)
@click.option(
    "--block", is_flag=True, help="Stay in the foreground, and leave when stopped: for systemd and Slurm."
)
@click.option(
    "--leave-within",
    type=SpanType(),
    metavar="SPAN",
    help="With --block: when stopped, have the runs here leave first, and go on elsewhere.",
)
@pass_app
def join(
    app: App, server: str, token_file: Path, block: bool, leave_within: int | None, **given: Any
) -> None:
    """Join the fleet of the server at HOST:PORT with this machine. The server is not asked for a person's token.

    Inside an allocation of a batch system, or with CUDA_VISIBLE_DEVICES, it offers what it was given and no more.
    With --block, SIGUSR1 says in good time that it will have to leave: it takes no more runs, and leaves by --until.
    """
    from airyard.node import joining, leaving
    from airyard.sdk import config

    home = config.home_folder(app.options.get("home")).absolute()
    wanted = _wanted(server, token_file, home, given)
    asked = leaving.Asked()
    if block:
        within_s = leave_within or 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: asked.leave(within_s))
        signal.signal(signal.SIGUSR1, lambda *_: asked.leave(_seconds_until(wanted.until_ms)))
    found = (joining.adopt(wanted) if block else None) or joining.join(wanted)
    what = _offered(found["allotment"] or {})
    _tell(
        app,
        found,
        f"{found['name']} ({found['address']}) joined {found['server']}{what}: {', '.join(found['nodes'])}",
    )
    if block:
        leaving.stay(home, asked, until_ms=wanted.until_ms)


def _wanted(server: str, token_file: Path, home: Path, given: dict[str, Any]) -> Wanted:
    from airyard.cli.verbs.up import parse_simulation
    from airyard.node.joining import Wanted
    from airyard.node.network import Wish

    said = {"gpus": given["gpus"], "cpus": given["cpus"], "memory_bytes": given["memory"]}
    pool, simulated, until = given["pool"], given["simulated"], given["until"]
    return Wanted(
        server=server,
        token_file=token_file,
        home=home,
        name=(given["name"] or "").lower(),
        address=given["address"] or "",
        network=Wish(interface=given["interface"] or "", hcas=given["hcas"]),
        labels={**key_values(given["labels"], "--label"), **({"pool": pool} if pool else {})},
        simulate=parse_simulation(",".join(simulated)) if simulated else {},
        cpu_slots=given["cpu_slots"],
        until_ms=_until_ms(until, datetime.now(UTC)) if until else None,
        ca_file=given["ca_file"],
        allotment=_allotment(given["gpus"], given["cpus"], given["memory"]),
        said=tuple(name for name, value in said.items() if value is not None),
    )


def _allotment(gpus: str | None, cpus: float | None, memory: str | None) -> Allotment | None:
    """Return what this process was given, with what was said instead; None when nothing was: ``join`` finds it."""
    from airyard.node import allotment

    if gpus is None and cpus is None and memory is None:
        return None
    found = allotment.own()
    if gpus is not None:
        found = replace(found, gpus=allotment.parse_gpus(gpus))
    if cpus is not None:
        found = replace(found, cpus=cpus)
    if memory is not None:
        try:
            found = replace(found, memory_bytes=allotment.parse_memory(memory))
        except ValueError as error:
            raise click.BadParameter(f"{error}.", param_hint="--memory") from None
    return found


def _offered(allotment: dict[str, Any]) -> str:
    """Say what part of the machine is offered, where it is not all of it."""
    gpus, cpus, memory = (allotment.get(name) for name in ("gpus", "cpus", "memory_bytes"))
    parts = [f"GPUs {', '.join(gpus) or 'none'}"] if gpus is not None else []
    parts += [f"{cpus:g} cores"] if cpus else []
    parts += [f"{memory / 2**30:.1f} GiB"] if memory else []
    source = allotment.get("source")
    return f" with {', '.join(parts)}{f' of {source}' if source else ''}" if parts else ""


def _seconds_until(until_ms: int | None) -> int:
    """Return what is left of a stay in seconds; a day for one without an end: its runs end by themselves till then."""
    if until_ms is None:
        return 86_400
    return max(1, int(until_ms / 1000 - datetime.now(UTC).timestamp()))


@command.command("head")
@click.option("--address", metavar="IP", help="Address of this machine for the others (detected).")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port (chosen once, then kept).")
@click.option("--redis", metavar="HOST:PORT", help="A Redis in which it keeps what it knows.")
@click.option(
    "--redis-password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The password of that Redis.",
)
@click.option("--block", is_flag=True, help="Stay in the foreground, and end it when stopped: for systemd.")
@click.option("--stop", "stopping", is_flag=True, help="End it instead.")
@pass_app
def head(
    app: App,
    address: str | None,
    port: int | None,
    redis: str | None,
    redis_password_file: Path | None,
    block: bool,
    stopping: bool,
) -> None:
    """Keep the fleet's Ray head on this machine, apart from its servers: for a fleet with a standby."""
    from airyard.node import heading
    from airyard.sdk import config

    home = config.home_folder(app.options.get("home")).absolute()
    if stopping:
        heading.stop_head(home)
        _tell(app, {"stopped": True}, "the head has ended")
        return
    stop = threading.Event()
    if block:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    password = redis_password_file.read_text().strip() if redis_password_file else ""
    found = heading.start_head(home, address=address or "", port=port, redis=redis, password=password)
    _tell(
        app, found, f"the head of the fleet is at {found['address']}; its token is in {found['token_file']}"
    )
    if block:
        while not stop.wait(1.0) and heading.is_kept(home):
            pass
        heading.stop_head(home)


@command.command("leave")
@click.option(
    "--force", is_flag=True, help="Leave though members live here: they go on, and are adopted at a join."
)
@click.option(
    "--within", "within_s", type=SpanType(), metavar="SPAN", help="Have the runs here leave first, by then."
)
@pass_app
def leave(app: App, force: bool, within_s: int | None) -> None:
    """Leave the fleet: Ray ends on this machine, and its agent. Drain its nodes first, or give --within."""
    from airyard.node import leaving
    from airyard.sdk import config

    home = config.home_folder(app.options.get("home")).absolute()
    found = leaving.leave(home, force=force, within_s=within_s)
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
