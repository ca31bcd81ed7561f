"""``airyard pull``: a run's output folder, copied here."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import click

from airyard.cli import formats
from airyard.cli.app import App, verb
from airyard.core.errors import Denied, NotFound


@verb("pull")
@click.argument("ref", metavar="ID")
@click.argument("path", default="", metavar="[PATH]")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Copy into this folder (./run-<id>).",
)
@click.option("--list", "only_list", is_flag=True, help="List, copy nothing.")
def command(app: App, ref: str, path: str, to: Path | None, only_list: bool) -> None:
    """Copy what a run wrote to AIRYARD_OUTPUT_DIR, or PATH below it."""
    run_id = app.client.get(ref)["run_id"]
    entries = _find(app, run_id, path.strip("/"))
    if only_list:
        _show(app, run_id, entries)
        return
    if not entries:
        raise NotFound(
            f"Run {run_id} has no output{f' at {path}' if path else ''}.",
            code="NO_OUTPUT",
            fix=f"`airyard pull {run_id} --list` shows what there is."
            if path
            else "A run keeps what it writes below $AIRYARD_OUTPUT_DIR.",
        )
    folder = to or Path(f"run-{run_id}")
    copied: list[dict[str, Any]] = []
    sizes: list[int] = []
    for entry in entries:
        target = _below(folder, entry["path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as sink:
            octets = app.client.download_file(run_id, entry["path"], sink)
        copied.append({"path": str(target), "bytes": octets})
        sizes.append(octets)
        if not app.as_json:
            app.console.note(f"{target}  {formats.size(octets)}", "dim")
    if app.as_json:
        app.console.data({"run_id": run_id, "files": copied})
    else:
        total = sum(sizes)
        app.console.text(f"{formats.plural(len(copied), 'file')}, {formats.size(total)}, in {folder}")


def _find(app: App, run_id: int, path: str) -> list[dict[str, Any]]:
    """Return the file at the path, or every file below it. A path is looked up in its folder first."""
    if not path:
        return _walk(app, run_id, "")
    folder = path.rpartition("/")[0]
    for entry in app.client.files(run_id, folder or None)["files"]:
        if entry["path"] == path:
            return _walk(app, run_id, path) if entry["kind"] == "folder" else [entry]
    return []


def _walk(app: App, run_id: int, path: str) -> list[dict[str, Any]]:
    """Return every file at and below the path."""
    files: list[dict[str, Any]] = []
    for entry in app.client.files(run_id, path or None)["files"]:
        if entry["kind"] == "folder":
            files += _walk(app, run_id, entry["path"])
        else:
            files.append(entry)
    return files


def _below(folder: Path, path: str) -> Path:
    """Return where a file of the server goes; one that would leave the folder is refused."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts:
        raise Denied(f"The server offered a file outside the output folder: {path!r}.", code="BAD_PATH")
    return folder / parts


def _show(app: App, run_id: int, entries: list[dict[str, Any]]) -> None:
    if app.as_json:
        app.console.data({"run_id": run_id, "files": entries})
    elif entries:
        rows = [[entry["path"], formats.size(entry.get("bytes"))] for entry in entries]
        app.console.text(formats.table(("PATH", "SIZE"), rows, right=(1,)))
    else:
        app.console.note("No output.")
