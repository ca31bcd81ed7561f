"""Lets other accounts reach this checkout's Python, for tests of members that run as somebody else.

An interpreter below a closed home folder is no good to them. Nothing on the machine is changed: in a mount
namespace of the command's own an overlay lies over such a folder, with the same content and another mode.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from airyard.node.identity import ANY, switchable
from airyard.node.uv import find_uv

ADA, BOB = "games", "news"
"""Two accounts that every Debian has and whose processes nobody else has."""


def why_not() -> str | None:
    """Return why members cannot run as somebody else here; None when they can."""
    if switchable() != ANY:
        return "switching to other accounts needs root"
    missing = [name for name in (ADA, BOB) if name not in {each.pw_name for each in pwd.getpwall()}]
    if missing:
        return f"no such accounts: {', '.join(missing)}"
    with tempfile.TemporaryDirectory(prefix="ayp", dir="/tmp") as name:
        done = subprocess.run([*prefix(Path(name)), "true"], capture_output=True, text=True, check=False)
    return f"no overlay can be mounted: {done.stderr.strip()}" if done.returncode else None


def prefix(folder: Path) -> list[str]:
    """Return what makes a command's processes find Python where all may pass; ``folder`` is for its layers."""
    closed = (
        _closed(Path(sys.executable)) | _closed(Path(os.path.realpath(sys.executable))) | _closed(find_uv())
    )
    if not closed:
        return []
    mounts = []
    for number, each in enumerate(sorted(closed)):
        upper, work = folder / f"upper{number}", folder / f"work{number}"
        for made in (upper, work):
            made.mkdir(parents=True, exist_ok=True)
        upper.chmod(0o711)
        options = f"lowerdir={each},upperdir={upper},workdir={work}"
        mounts.append(f"mount -t overlay overlay -o {shlex.quote(options)} {shlex.quote(str(each))}")
    script = " && ".join([*mounts, 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "sh"]


def _closed(path: Path) -> set[Path]:
    return {each for each in path.parents if not stat.S_IMODE(each.stat().st_mode) & stat.S_IXOTH}
