"""``airyard init``: files to start from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from airyard.cli.app import App, verb
from airyard.core.errors import Conflict


@verb("init")
@click.argument("folder", default=".", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--template", default="hello", metavar="NAME", help="hello (default), or ddp for several nodes."
)
@click.option("--accelerator", default="CPU", metavar="TYPE", help="GPU_1xH100, GPU_8xH100, CPU (default).")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Accelerators in all (1).")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def command(app: App, folder: Path, template: str, accelerator: str, count: int, force: bool) -> None:
    """Write a commented workload.yaml and a script that runs as it is, into DIR (here)."""
    from airyard.spec.template import template_files

    name = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name).strip("-")[:100] or None
    files = template_files(template, name=name, accelerator=accelerator, count=count)
    there = [str(folder / file) for file in files if (folder / file).exists()]
    if there and not force:
        raise Conflict(
            f"{' and '.join(there)} exist{'s' if len(there) == 1 else ''} already; nothing was written.",
            code="FILE_EXISTS",
            fix="--force replaces them.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    if app.as_json:
        app.console.data({"files": [str(folder / file) for file in files]})
        return
    app.console.text("\n".join(f"wrote {folder / file}" for file in files))
    app.console.note(f"`airyard run -f {shlex.quote(str(folder / 'workload.yaml'))} --watch` runs it", "dim")
