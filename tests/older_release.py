"""Copies of Airyard that are of another release: the one before this, or one after it.

Owns: the copies. Must not know: what is tested with them. A copy is this tree with another version number, and with the
numbers of the protocols that such a release speaks; what those forms look like is pinned by recorded conversations
(``contract/protocols/golden``), so a copy alone is no proof of an old form. The one before lacks ``_NEW_HERE``, too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import airyard

_NEW_HERE = {
    "server/compose.py": ("            command_token=gatekeeper.command_token,\n", ""),
    "server/auth.py": ("for prefix in (ATTEMPT_PREFIX, COMMAND_PREFIX):", "for prefix in (ATTEMPT_PREFIX,):"),
    "node/launch.py": ('(go.get("tracking") or {}).get("token") or runners', "runners"),
}
"""File → what this release is the first to have, and what stood there before: tokens of commands."""
_SPOKEN = re.compile(r"Spoken\(newest=(\d+), oldest=(\d+)\)")


def other_version(releases: int) -> str:
    """Return the version that is so many releases after this one, or before it where negative."""
    major, minor = (int(part) for part in airyard.__version__.split(".")[:2])
    if minor + releases >= 0:
        return f"{major}.{minor + releases}.0"
    return f"{major - 1}.{100 + minor + releases}.0"


def make_release(folder: Path, releases: int) -> Path:
    """Make a copy of that release; return what goes into PYTHONPATH."""
    package = folder / "airyard"
    shutil.copytree(Path(airyard.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    root = package / "__init__.py"
    text = root.read_text()
    assert airyard.__version__ in text
    root.write_text(text.replace(airyard.__version__, other_version(releases)))
    versions = package / "core" / "versions.py"
    text, count = _SPOKEN.subn(
        lambda found: _numbers(int(found[1]), int(found[2]), releases), versions.read_text()
    )
    assert count > 3
    versions.write_text(text)
    for name, (now, before) in _NEW_HERE.items() if releases < 0 else ():
        text = (package / name).read_text()
        assert text.count(now) == 1, name
        (package / name).write_text(text.replace(now, before))
    return folder


def _numbers(newest: int, oldest: int, releases: int) -> str:
    """Return what a release speaks: of those before the one form that it has in common with this one."""
    if releases < 0:
        return f"Spoken(newest={oldest}, oldest={oldest})"
    return f"Spoken(newest={newest + releases}, oldest={newest + releases - 1})"
