"""``airyard up``: the local server, started with what the user says about it."""

from __future__ import annotations

import click

from airyard.cli.app import App, verb
from airyard.core.errors import Conflict, Fix, UserError

DEFAULT_SIMULATION = "GPU_8xH100=4,GPU_1xH100=2,GPU_1xA10=2"


@verb("up")
@click.option(
    "--simulate",
    is_flag=False,
    flag_value=DEFAULT_SIMULATION,
    metavar="[SPEC]",
    help=f"Simulated GPU nodes, everything on the CPU; SPEC like {DEFAULT_SIMULATION} (the default).",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Listen here; remembered.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Configuration of the server.")
@click.option("--insecure", is_flag=True, help="Serve plain HTTP beyond loopback too; `status` says so.")
def command(app: App, simulate: str | None, port: int | None, config: str | None, insecure: bool) -> None:
    """Start the local server, or say that it runs."""
    from airyard.sdk import embedded

    target = app.client.target
    if target.host is not None:
        raise UserError(
            f"A server is configured already ({target.host}, from {target.origin}); `up` starts a local one.",
            code="HOST_CONFIGURED",
            fix="Unset it to use a local server.",
        )
    wanted = parse_simulation(simulate) if simulate is not None else None
    arguments = ["--simulate", _spell(wanted)] if wanted is not None else []
    arguments += ["--port", str(port)] if port else []
    arguments += ["--config", str(config)] if config else []
    arguments += ["--insecure"] if insecure else []
    lines: list[str] = []
    transport = embedded.find_or_start(target.home, announce=lines.append, arguments=arguments)
    transport.close()
    found = app.client.status()
    started = bool(lines)
    if not started:
        _compare(found, wanted, port)
    if app.as_json:
        app.console.data({"started": started, "status": found})
    else:
        app.console.text(
            lines[0] if started else f"runs already at {found.get('url')} (pid {found.get('pid')})"
        )


def parse_simulation(text: str) -> dict[str, int]:
    """Read ``GPU_8xH100=4,GPU_1xA10=2``. Raises: click.BadParameter."""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition("=")
        if not name.startswith("GPU_") or not count.isdigit() or name in found:
            raise click.BadParameter(
                f"{text!r}: write it like {DEFAULT_SIMULATION}.", param_hint="--simulate"
            )
        found[name] = int(count)
    return found


def _spell(wanted: dict[str, int]) -> str:
    return ",".join(f"{name}={count}" for name, count in wanted.items())


def _compare(found: dict[str, object], wanted: dict[str, int] | None, port: int | None) -> None:
    has = found.get("simulated")
    simulated = has if isinstance(has, dict) else {}
    if wanted is not None and simulated != wanted:
        raise Conflict(
            f"The local server runs already, with simulated nodes: {_spell(simulated) or 'none'}; "
            f"asked for: {_spell(wanted)}.",
            code="OTHER_SIMULATION",
            fix=Fix(
                text="Stop it, then start it so.",
                command=f"airyard down && airyard up --simulate {_spell(wanted)}",
            ),
        )
    url = str(found.get("url") or "")
    if port and url and not url.rstrip("/").endswith(f":{port}"):
        raise Conflict(
            f"The local server runs already, at {url}.",
            code="OTHER_PORT",
            fix=Fix(text="Stop it, then start it so.", command=f"airyard down && airyard up --port {port}"),
        )
