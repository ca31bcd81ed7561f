"""The server takes as many open files as it is allowed: each runner keeps connections open."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from airyard.server.__main__ import allow_open_files
allow_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("limits", "wanted"), [("-Sn 300; ulimit -Hn 2000", 2000), ("-n 500", 500)])
def test_the_soft_limit_is_raised_to_the_hard_one(limits: str, wanted: int) -> None:
    command = ["bash", "-c", f'ulimit {limits}; exec "$@"', "bash", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(wanted), str(wanted)]
