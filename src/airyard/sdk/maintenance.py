"""What is done to a data folder without its server: a process of the server's code, told by its command line.

Owns: starting it and reading its one answer. Must not know: the server's code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airyard.core.errors import AiryardError, from_json
from airyard.sdk.embedded import check_startable

_STATUS = {"PERMANENT": 400, "NOT_FOUND": 404, "TRANSIENT": 503}


def maintain(home: Path, *arguments: str) -> dict[str, Any]:
    """Run one verb of ``airyard.server.maintenance`` to its end and return what it found.

    Raises: UserError where no server can run; what the verb says when it fails.
    """
    check_startable(home)
    line = [sys.executable, "-m", "airyard.server.maintenance", "--home", str(home), *arguments]
    # Not where the caller is: `-m` looks there for modules first.
    done = subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", check=False
    )
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    raise _told(done.stderr.splitlines())


def _told(lines: Sequence[str]) -> AiryardError:
    for line in reversed(lines):
        try:
            error = json.loads(line)["error"]
            return from_json(_STATUS.get(error["kind"], 500), error)
        except (ValueError, KeyError, TypeError):
            continue
    return AiryardError("\n".join(["the maintenance process failed:", *lines[-12:]]))
