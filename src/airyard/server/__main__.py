"""``python -m airyard.server``: the process that the CLI starts.

Owns: its arguments, its logging, how a failed start is told. Must not know: what it is made of.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import sys
from pathlib import Path

import structlog

from airyard.core.errors import AiryardError
from airyard.server.config import Config, load_config, parse_simulation

OPEN_FILES = 65_536
"""Every live runner keeps two or three connections open; most systems give a process 1,024 unless it asks."""
SWITCH_S = 0.000_5
"""A thread that computes yields after this time: a request changes threads a dozen times, and beside the planner each
change would cost the usual 5 ms."""


def main(arguments: list[str] | None = None) -> int:
    """Serve one data folder; return the exit code of ``core.errors`` when the start fails."""
    parser = argparse.ArgumentParser(
        prog="python -m airyard.server", description="Serve one Airyard data folder."
    )
    parser.add_argument(
        "--home", type=Path, default=None, help="data folder (default: $AIRYARD_HOME or ~/.airyard)"
    )
    parser.add_argument("--config", type=Path, default=None, help="TOML file (default: <home>/config.toml)")
    parser.add_argument(
        "--simulate", nargs="?", const="default", default=None, help="simulated nodes, e.g. GPU_8xH100=4"
    )
    parser.add_argument(
        "--port", type=int, default=None, help="port on loopback (default: chosen once, then kept)"
    )
    parser.add_argument("--host", default=None, help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--engine",
        choices=["local", "ray", "dev"],
        default=None,
        help="ray: a fleet; dev: simulated machines, see `airyard dev fleet` (default: this machine alone)",
    )
    parser.add_argument(
        "--ray-address",
        default=None,
        help="HOST:PORT or auto: a Ray cluster that others keep; implies --engine ray",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="serve plain HTTP beyond loopback, where nobody else listens"
    )
    given = parser.parse_args(arguments)
    os.umask(0o077)
    _set_up_logging()
    allow_open_files()
    sys.setswitchinterval(SWITCH_S)
    home = (
        (given.home or Path(os.environ.get("AIRYARD_HOME") or Path.home() / ".airyard"))
        .expanduser()
        .absolute()
    )
    try:
        if not sys.platform.startswith("linux"):
            raise AiryardError(
                "the server runs on Linux only; the client also runs on macOS", code="NOT_LINUX"
            )
        config = load_config(given.config, home=home)
        config = _with_arguments(config, given)
        simulate = parse_simulation(given.simulate) if given.simulate is not None else config.engine.simulate
        # Imported late: a bad argument or configuration is told at once.
        from airyard.server.compose import Server

        Server(config, home, simulate).run()
    except AiryardError as error:
        sys.stderr.write(failure_text(error, for_person=sys.stderr.isatty()))
        sys.stderr.flush()
        return error.exit_code
    return 0


def failure_text(error: AiryardError, *, for_person: bool) -> str:
    """Return what a failed start leaves on stderr: words on a terminal, else one JSON line, which the starter reads."""
    if not for_person:
        return json.dumps({"error": error.as_json()}) + "\n"
    lines = [f"error: {error.message}"]
    if error.fix is not None:
        lines.append(f"next: {error.fix.text}")
        if error.fix.command and error.fix.command not in error.fix.text:
            lines.append(f"      {error.fix.command}")
    return "\n".join(lines) + "\n"


def _with_arguments(config: Config, given: argparse.Namespace) -> Config:
    """Let the command line win over the file."""
    listening = {name: value for name in ("host", "port") if (value := getattr(given, name)) is not None}
    if given.insecure:
        listening["insecure"] = True
    engine = config.engine
    if given.ray_address is not None:
        ray = engine.ray.model_copy(update={"address": given.ray_address})
        engine = engine.model_copy(update={"kind": "ray", "ray": ray})
    if given.engine is not None:
        engine = engine.model_copy(update={"kind": given.engine})
    return config.model_copy(update={"server": config.server.model_copy(update=listening), "engine": engine})


def allow_open_files() -> None:
    """Raise the soft limit as far as the hard one lets it; the agent, which has a file a runner, inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _set_up_logging() -> None:
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s"
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main())
