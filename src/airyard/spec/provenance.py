"""Where code came from, as git knows it: recorded with the run, never a reason to refuse one.

Owns: commit, branch, remote without credentials, dirty flag, the diff and its bounds.
Must not know: how the code is packed.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airyard.core.workload import GitState
from airyard.spec.code_source import CodeSource
from airyard.spec.git_command import GitFailed, git, git_head
from airyard.spec.secret_files import why_secret

DIFF_LIMIT_BYTES = 1024 * 1024
TIME_LIMIT_S = 5.0
_DIFF = (
    *("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--binary", "--relative"),
    *("--src-prefix=a/", "--dst-prefix=b/", "HEAD", "--"),
)
"""Whatever the user's configuration says, the patch is one that ``git apply`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The state of the repository, and the uncommitted changes of tracked files as a patch in UTF-8."""

    state: GitState
    diff: bytes | None


def pinned_provenance(source: CodeSource, commit: str) -> Provenance:
    """Describe a commit that is sent as it is."""
    return Provenance(
        state=GitState(
            packaging_mode="git_archive",
            base_commit=commit,
            branch=source.branch,
            repo_url=_remote_url(source.root),
        ),
        diff=None,
    )


def working_tree_provenance(source: CodeSource) -> Provenance:
    """Describe a working tree: what it stands on and how it differs; gives up quietly after 5 s."""
    deadline = time.monotonic() + TIME_LIMIT_S
    paths = source.include_paths or (".",)
    commit, branch, diff = None, None, None
    try:
        commit, branch, dirty = _status(source.root, paths)
        status, diff = _diff(source.root, paths, deadline) if dirty and commit else ("clean", None)
    except GitFailed as error:
        status, dirty = ("timeout" if error.timed_out else "failed"), True  # unknown is not called clean
    return Provenance(
        state=GitState(
            packaging_mode="plain_tar",
            base_commit=commit,
            branch=branch,
            repo_url=_remote_url(source.root),
            dirty=dirty,
            diff_status=status,
            diff_bytes=len(diff or b""),
            diff_hash=None if diff is None else hashlib.sha256(diff).hexdigest(),
        ),
        diff=diff,
    )


def _status(root: Path, paths: tuple[str, ...]) -> tuple[str | None, str | None, bool]:
    """Return commit, branch and whether anything below the paths is changed or untracked. Raises: GitFailed."""
    options = ("--literal-pathspecs", "status", "--porcelain=v2", "--branch", "--", *paths)
    lines = git(root, *options, limit_s=TIME_LIMIT_S).decode(errors="replace").splitlines()
    heads = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# "))
    commit, branch = heads.get("branch.oid"), heads.get("branch.head")
    return (
        None if commit == "(initial)" else commit,
        None if branch == "(detached)" else branch,
        any(not line.startswith("# ") for line in lines),
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
    """Return status and text of the diff; reading stops at the size limit. Raises: GitFailed."""
    text = git_head(
        root,
        "--literal-pathspecs",
        *_DIFF,
        *paths,
        limit_bytes=DIFF_LIMIT_BYTES,
        limit_s=max(deadline - time.monotonic(), 0.01),
    )
    if text is None:
        return "size_exceeded", None
    if not text:
        return "clean", None  # only untracked files differ: they travel in the snapshot itself
    try:
        text.decode()
    except UnicodeDecodeError:
        return "not_text", None
    if any(why_secret(path, lines) for path, lines in _changed_files(text)):
        return "looks_secret", None  # what the snapshot no longer has would leave by way of its removal
    return "captured", text


def _changed_files(diff: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each file of a diff: its path, and the lines shown of it, removed ones included."""
    for section in re.split(rb"(?m)^diff --git ", diff)[1:]:
        header, _, rest = section.partition(b"\n")
        path = re.split(r' "?b/', header.decode())[-1].rstrip('"')
        _, _, body = rest.partition(b"\n@@")
        yield path, b"\n".join(line[1:] for line in body.split(b"\n")[1:])


def _remote_url(root: Path) -> str | None:
    """Return the URL of origin, else of the first remote; None without one."""
    try:
        output = git(root, "config", "--get-regexp", r"^remote\..*\.url$", limit_s=TIME_LIMIT_S)
    except GitFailed:
        return None
    found = [line.partition(" ") for line in output.decode(errors="replace").splitlines()]
    urls = {name: url for name, _, url in reversed(found)}
    url = urls.get("remote.origin.url") or next(iter(reversed(urls.values())), None)
    return without_credentials(url) if url else None
