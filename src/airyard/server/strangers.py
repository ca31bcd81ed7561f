"""What lies on disk of runs that the journal does not know: it was lost, or an older copy was put back.

Owns: moving it aside at the start, before a new run gets such a number and takes another's log or checkpoints for its
own. Must not know: logs or outputs inside. Nothing is removed here.
"""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("server/logs", "node/runs")


def set_aside(home: Path, *, next_run_id: int, now_ms: int) -> list[Path]:
    """Rename the folders of runs from ``next_run_id`` on; return their new paths."""
    moved: list[Path] = []
    for name in FOLDERS:
        try:
            children = list((home / name).iterdir())
        except FileNotFoundError:
            continue
        for child in children:
            if child.name.isascii() and child.name.isdigit() and int(child.name) >= next_run_id:
                moved.append(child.rename(child.with_name(f"{child.name}.not-in-journal-{now_ms}")))
    return sorted(moved)
