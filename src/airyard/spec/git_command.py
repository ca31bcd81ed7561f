"""Runs git, quietly and within limits.

Owns: the environment git runs in, time and output limits.
Must not know: why anybody asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LIST_LIMIT_S = 120.0
_CHUNK = 1 << 16


class GitFailed(Exception):
    """git is missing, said no, or took too long; ``timed_out`` tells the last."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


def has_git() -> bool:
    """True when there is a git to run."""
    return shutil.which("git") is not None


def git(folder: Path, *arguments: str, limit_s: float = LIST_LIMIT_S, git_dir: Path | None = None) -> bytes:
    """Return the standard output of a git command run in a folder. Raises: GitFailed."""
    command = _command(folder, arguments, git_dir)
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git {arguments[0]} took longer than {limit_s:g} s", timed_out=True) from None
    except OSError as error:
        raise GitFailed(f"git could not be run: {error}") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise GitFailed(reason or f"git {arguments[0]} ended with {done.returncode}")
    return done.stdout


def git_head(folder: Path, *arguments: str, limit_bytes: int, limit_s: float) -> bytes | None:
    """Return the output of a git command; None when there is more than ``limit_bytes``. Raises: GitFailed."""
    late = threading.Event()
    with subprocess.Popen(
        _command(folder, arguments, None),
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            assert process.stdout is not None
            text = process.stdout.read(limit_bytes + 1)
            if len(text) > limit_bytes:
                process.kill()
                return None
            code = process.wait()
        finally:
            timer.cancel()
    if late.is_set():
        raise GitFailed(f"git took longer than {limit_s:g} s", timed_out=True)
    if code:
        raise GitFailed(f"git ended with {code}")
    return text


@contextmanager
def git_stream(folder: Path, *arguments: str) -> Iterator[IO[bytes]]:
    """Run a git command and read its output as it comes. Raises: GitFailed when it ends badly."""
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            _command(folder, arguments, None),
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout
            while process.stdout.read(_CHUNK):
                pass
        except BaseException as error:
            process.kill()
            if isinstance(error, Exception) and process.wait() > 0:
                raise GitFailed(_first_line(complaints) or str(error)) from error
            raise
        if process.wait():
            raise GitFailed(_first_line(complaints) or f"git ended with {process.returncode}")


def _first_line(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return complaints.read(4096).decode(errors="replace").strip().partition("\n")[0]


def _command(folder: Path, arguments: tuple[str, ...], git_dir: Path | None) -> list[str]:
    place = [] if git_dir is None else [f"--git-dir={git_dir}", f"--work-tree={folder}"]
    return ["git", "-C", str(folder), *place, "--no-pager", "-c", "core.fsmonitor=false", *arguments]


def _environment() -> dict[str, str]:
    """The caller's, less what would point git at another repository or make it ask or write."""
    out = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kept = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXEC_PATH", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
    out.update({name: os.environ[name] for name in kept if name in os.environ})
    return {**out, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
