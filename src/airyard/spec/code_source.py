"""Which code goes along with a run, before it is packed.

Owns: `CodeSource`, how `root_path` becomes a folder.
Must not know: how the code is listed, hashed or packed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSource:
    """A folder, or some paths below it, as it stands or as a commit of its repository has it."""

    root: Path
    """Absolute."""
    include_paths: tuple[str, ...] = ()
    """Empty is everything."""
    branch: str | None = None
    commit: str | None = None

    @property
    def pinned(self) -> bool:
        """True when a committed tree is sent instead of the working tree."""
        return self.branch is not None or self.commit is not None


def resolve_root(root_path: str, folder: Path) -> Path:
    """Return the folder ``root_path`` means: relative to ``folder``, ``~`` and variables expanded."""
    if root_path == "project_root" or root_path.startswith("project_root/"):
        root_path = "." + root_path.removeprefix("project_root")
    expanded = os.path.expanduser(os.path.expandvars(root_path))
    return Path(os.path.abspath(folder / expanded))
