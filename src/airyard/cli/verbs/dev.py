"""``airyard dev``: tools for people who try or develop Airyard itself."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from airyard.cli.app import App, VerbGroup, pass_app
from airyard.cli.verbs.dev_fault import fault
from airyard.core.errors import Conflict, Fix, UserError

JOIN_S, JOIN_EACH_S = 60.0, 0.1
STOP_S = 30.0
LOOK_S = 0.2


@click.group("dev", cls=VerbGroup)
def command() -> None:
    """Try Airyard without machines."""


command.add_command(fault)


@command.command("fleet")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=100, help="How many machines (100).")
@click.option("--gpu", metavar="TYPE", default="GPU_8xH100", help="What each has (GPU_8xH100).")
@click.option(
    "--run-seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    help="How long a command lasts that has no `sleep` (60).",
)
@click.option(
    "--faults",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What happens to the machines, and when: docs/operate/dev-fleet.md.",
)
@pass_app
def fleet(app: App, nodes: int, gpu: str, run_seconds: float, faults: Path | None) -> None:
    """Start a server with many simulated machines, in the foreground; Ctrl-C takes all down.

    The machines speak the real protocols; what users' commands would do is made up. The data folder is a new
    one that goes with it, unless --home names one.
    """
    _check(gpu, faults, nodes)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    given = app.options.get("home")
    home = Path(given).expanduser().absolute() if given else Path(tempfile.mkdtemp(prefix="airyard-fleet-"))
    _take(home)
    try:
        _serve(app, home, stop, nodes=nodes, gpu=gpu, run_seconds=run_seconds, faults=faults)
    finally:
        _stop_server(home)
        if not given:
            shutil.rmtree(home, ignore_errors=True)


def _check(gpu: str, faults: Path | None, nodes: int) -> None:
    """Tell what is wrong with the arguments before anything is started. Raises: UserError."""
    from airyard.core.workload import parse_accelerator
    from airyard.sim.fleet.faults import read_faults

    try:
        model, _ = parse_accelerator(gpu)
    except ValueError:
        model = None
    if model is None:
        raise UserError(f"{gpu!r} is no GPU type; write it like GPU_8xH100", code="BAD_SIMULATION")
    if faults is not None:
        read_faults(faults, nodes)


def _take(home: Path) -> None:
    """Make the folder, or refuse one that is not of this kind or in use. Raises: Conflict, UserError."""
    from airyard.sdk import embedded
    from airyard.sim.fleet import FOLDER

    embedded.check_startable(home)
    if (home / "server" / "journal.db").exists() and not (home / FOLDER).exists():
        raise UserError(
            f"{home} is the data folder of a yard with real machines.",
            code="NOT_A_DEV_FLEET",
            fix="Name another folder with --home, or none.",
        )
    if embedded.find(home) is not None:
        raise Conflict(
            f"A server runs already for {home}.",
            code="ALREADY_SERVED",
            fix=Fix(text="Stop it first.", command=f"airyard --home {home} down --cancel-runs"),
        )
    (home / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)


def _serve(
    app: App,
    home: Path,
    stop: threading.Event,
    *,
    nodes: int,
    gpu: str,
    run_seconds: float,
    faults: Path | None,
) -> None:
    from airyard.sdk import embedded
    from airyard.sim.fleet.child import FleetProcess

    os.environ.setdefault("AIRYARD_TRACKING_SERVER", "off")
    transport = embedded.find_or_start(home, announce=lambda line: None, arguments=["--engine", "dev"])
    url = transport.url
    transport.close()
    begun_s = time.monotonic()
    with FleetProcess(
        home, nodes, gpu=gpu, run_seconds=run_seconds, faults=faults, heard=_teller(app)
    ) as playing:
        if not playing.wait_joined(JOIN_S + JOIN_EACH_S * nodes, stop.is_set):
            return
        _introduce(app, home, url, nodes, gpu, run_seconds, time.monotonic() - begun_s)
        while not stop.wait(LOOK_S):
            if playing.ended:
                playing.wait_joined(0)  # it says why
                raise Conflict("The process of the machines has ended.", code="FLEET_NOT_UP")


def _introduce(
    app: App, home: Path, url: str, nodes: int, gpu: str, run_seconds: float, spent_s: float
) -> None:
    if app.as_json:
        app.console.data({"home": str(home), "url": url, "machines": nodes, "seconds": round(spent_s, 3)})
        return
    unset = "unset AIRYARD_HOST; " if os.environ.get("AIRYARD_HOST") else ""
    model = gpu.split("x", 1)[1]
    size = gpu.removeprefix("GPU_").split("x", 1)[0]
    gang = min(nodes, 4)
    app.console.text(
        f"{nodes:,} simulated machines with {gpu} have joined {url} in {spent_s:.1f} s. In another terminal:\n\n"
        f"  {unset}export AIRYARD_HOME={home}\n"
        f"  airyard nodes\n"
        f"  airyard run --gpus {size} --model {model} --nodes {gang} --watch -- sleep 10\n\n"
        f"A command lasts as long as its sleeps, one without any {run_seconds:g} s; nothing is run. "
        "Ctrl-C takes all down."
    )


def _teller(app: App) -> Callable[[Mapping[str, Any]], None]:
    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] == "fault":
            about = f" {event['key']}" if "key" in event else ""
            app.console.note(f"{event['what']}: {event['machine']}{about}")

    return tell


def _stop_server(home: Path) -> None:
    from airyard.sdk import embedded

    found = embedded.read_endpoint(home)
    if found is None or not embedded.is_alive(found.pid):
        return
    os.kill(found.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_S
    while embedded.is_alive(found.pid):
        if time.monotonic() > deadline_s:
            os.kill(found.pid, signal.SIGKILL)
        time.sleep(0.05)
