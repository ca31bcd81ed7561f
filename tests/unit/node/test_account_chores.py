"""An account that no process can run as is told as such, and stops nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.node.identity import Identity
from airyard.node.user_environment import ChildFailed, tidy_as


def test_an_account_without_a_process_is_told(tmp_path: Path) -> None:
    beyond = 1 << 40  # no kernel has such a user
    nobody = Identity(name="ada", uid=beyond, gid=beyond, groups=(beyond,), home="/", shell="/bin/sh")
    with pytest.raises(ChildFailed, match="no process of ada"):
        tidy_as(nobody, tmp_path, {})
