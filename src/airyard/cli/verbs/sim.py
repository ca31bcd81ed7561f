"""``airyard sim``: the deterministic simulator, imported only here."""

from __future__ import annotations

from importlib import import_module

import click

from airyard.cli.app import App, verb


@verb("sim", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="run --seed N [--trace]")
def command(app: App, arguments: tuple[str, ...]) -> int:
    """Run the control plane in simulated time with seeded faults; same seed, same journal."""
    cli = import_module("airyard.sim.cli")
    extra = ["-o", "json"] if app.as_json and "-o" not in arguments else []
    return int(cli.main([*arguments, *extra]) or 0)
