"""Where code came from, as git knows it: recorded with the run, never a reason to refuse one.

Owns: commit, branch, remote without credentials, dirty flag, the diff and its bounds.
Must not know: how the code is packed.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from airyard.core.workload import GitState
from airyard.spec.code_source import CodeSource
from airyard.spec.git_command import GitFailed, git, git_head

DIFF_LIMIT_BYTES = 1024 * 1024
TIME_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The state of the repository, and the uncommitted changes of tracked files as a patch."""

    state: GitState
    diff: bytes | None


def pinned_provenance(source: CodeSource, commit: str) -> Provenance:
    """Describe a commit that is sent as it is."""
    return Provenance(
        state=GitState(
            packaging_mode="git_archive",
            base_commit=commit,
            branch=source.branch,
            repo_url=_attempt(_remote_url, source.root),
        ),
        diff=None,
    )


def working_tree_provenance(source: CodeSource) -> Provenance:
    """Describe a working tree: what it stands on and how it differs; gives up quietly after 5 s."""
    deadline = time.monotonic() + TIME_LIMIT_S
    root, paths = source.root, source.include_paths or (".",)
    commit = _attempt(_line, root, "rev-parse", "--verify", "-q", "HEAD")
    branch = _attempt(_line, root, "symbolic-ref", "--short", "-q", "HEAD")
    status, diff, dirty = "clean", None, False
    try:
        dirty = is_dirty(root, paths, limit_s=_left(deadline))
        if dirty and commit is not None:
            status, diff = _diff(root, paths, deadline)
    except GitFailed as error:
        status = "timeout" if error.timed_out else "failed"
    return Provenance(
        state=GitState(
            packaging_mode="plain_tar",
            base_commit=commit,
            branch=branch,
            repo_url=_attempt(_remote_url, root),
            dirty=dirty or status == "timeout",
            diff_status=status,
            diff_bytes=len(diff or b""),
        ),
        diff=diff,
    )


def is_dirty(root: Path, paths: tuple[str, ...], *, limit_s: float) -> bool:
    """True when tracked files below the paths changed or untracked ones are there. Raises: GitFailed."""
    return bool(git(root, "--literal-pathspecs", "status", "--porcelain", "--", *paths, limit_s=limit_s))


def without_credentials(url: str) -> str:
    """Return a remote's URL without user, password, query and fragment; ``git@host:path`` stays."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*://)(.*)", url)
    if match is None:
        return url
    host, slash, path = match[2].partition("/")
    return match[1] + host.rpartition("@")[2] + slash + re.split(r"[?#]", path)[0]


def _diff(root: Path, paths: tuple[str, ...], deadline: float) -> tuple[str, bytes | None]:
    """Return status and text of the diff; reading stops at the size limit."""
    options = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--relative", "HEAD", "--")
    if _left(deadline) <= 0.05:
        return "timeout", None
    shape = git(
        root, "--literal-pathspecs", "diff", "--shortstat", "HEAD", "--", *paths, limit_s=_left(deadline)
    )
    if not shape.strip():
        return "clean", None  # only untracked files differ; they travel in the snapshot itself
    text = git_head(
        root,
        "--literal-pathspecs",
        *options,
        *paths,
        limit_bytes=DIFF_LIMIT_BYTES,
        limit_s=_left(deadline),
    )
    return ("size_exceeded", None) if text is None else ("captured", text)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)


def _line(root: Path, *arguments: str) -> str:
    return git(root, *arguments, limit_s=TIME_LIMIT_S).decode(errors="replace").strip()


def _remote_url(root: Path) -> str | None:
    remotes = _line(root, "remote").split()
    if not remotes:
        return None
    name = "origin" if "origin" in remotes else remotes[0]
    return without_credentials(_line(root, "config", "--get", f"remote.{name}.url"))


def _attempt(read: object, *arguments: object) -> str | None:
    assert callable(read)
    try:
        value = read(*arguments)
    except GitFailed:
        return None
    return value or None
