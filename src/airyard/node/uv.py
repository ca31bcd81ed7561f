"""Runs the ``uv`` program: finding it, its environment, its output, stopping it, what its failures mean.

Owns: uv's command-line manners. Must not know: how environments are keyed, stored or shown.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airyard.core.errors import NotFound, Unavailable, UserError
from airyard.node.file_locks import Cancelled

_POLL_SECONDS = 0.05
_KEPT_LINES = 200
_KEPT_NAMES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "NETRC", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
})  # fmt: skip
_KEPT_PREFIXES = ("PIP_", "UV_", "LC_")
# They would send packages somewhere else than into the environment that is being built.
_DROPPED = frozenset({
    "UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES", "UV_PYTHON", "UV_PROJECT", "UV_PROJECT_ENVIRONMENT",
    "UV_WORKING_DIRECTORY", "UV_TARGET", "UV_PREFIX", "PIP_TARGET", "PIP_PREFIX", "PIP_USER",
})  # fmt: skip
_DISK = re.compile(r"No space left on device|os error 28\b|Disk quota exceeded|os error 122\b", re.IGNORECASE)
_NETWORK = re.compile(
    r"error sending request|dns error|failed to lookup address|connection (refused|reset|closed)|"
    r"timed? ?out|tcp connect error|network is unreachable|error decoding response body|"
    r"HTTP status server error|429 Too Many Requests|request failed after \d+ retries|"
    r"unexpected EOF|incomplete message",
    re.IGNORECASE,
)


class ResolveFailed(UserError):
    """The dependencies contradict each other, do not exist, or do not build; trying again cannot help."""

    default_code = "ENVIRONMENT_RESOLVE_FAILED"
    exit_code = 9


class DownloadFailed(Unavailable):
    """An index or a file could not be reached; worth another try."""

    default_code = "ENVIRONMENT_DOWNLOAD_FAILED"
    exit_code = 9


class DiskFull(Unavailable):
    """The node's disk is full."""

    default_code = "NODE_DISK_FULL"
    exit_code = 7


def find_uv() -> Path:
    """Return uv beside the running interpreter, else on the PATH. Raises: NotFound."""
    for folder in (Path(sys.executable).parent, Path(sys.prefix, "bin")):
        if os.access(candidate := folder / "uv", os.X_OK):
            return candidate
    on_path = shutil.which("uv")
    if on_path is None:
        raise NotFound(
            "The program uv, which builds environments, is neither beside the interpreter nor on the PATH.",
            code="UV_NOT_FOUND",
            fix="Install the server extra on this node: pip install 'airyard[server]'.",
        )
    return Path(on_path)


@functools.cache
def uv_version(uv: Path) -> str:
    """Return uv's version. Cost: one short process, once."""
    answer = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return answer[1]


def uv_environment(inherited: Mapping[str, str], cache: Path) -> dict[str, str]:
    """Return the variables that uv runs with: the inherited ones that concern it, pip's settings translated.

    pip separates lists by blanks, uv find-links by commas. ``UV_*`` wins over ``PIP_*``.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if (name.upper() in _KEPT_NAMES or name.startswith(_KEPT_PREFIXES)) and name not in _DROPPED
    }
    if "UV_DEFAULT_INDEX" not in kept and "UV_INDEX_URL" not in kept and "PIP_INDEX_URL" in kept:
        kept["UV_DEFAULT_INDEX"] = kept["PIP_INDEX_URL"]
    if "UV_INDEX" not in kept and "UV_EXTRA_INDEX_URL" not in kept and "PIP_EXTRA_INDEX_URL" in kept:
        kept["UV_EXTRA_INDEX_URL"] = kept["PIP_EXTRA_INDEX_URL"]
    if "UV_FIND_LINKS" not in kept and "PIP_FIND_LINKS" in kept:
        kept["UV_FIND_LINKS"] = ",".join(kept["PIP_FIND_LINKS"].split())
    if "SSL_CERT_FILE" not in kept and "PIP_CERT" in kept:
        kept["SSL_CERT_FILE"] = kept["PIP_CERT"]
    kept.setdefault("UV_PYTHON_DOWNLOADS", "never")
    kept.update(UV_CACHE_DIR=str(cache), UV_LINK_MODE="hardlink", UV_NO_PROGRESS="1", NO_COLOR="1")
    return kept


def run_uv(
    command: Sequence[str | Path],
    *,
    environment: Mapping[str, str],
    folder: Path,
    progress: Callable[[str], None],
    should_stop: Callable[[], bool],
    inherited_fds: Sequence[int] = (),
) -> None:
    """Run uv to its end, passing its lines to ``progress`` as they come.

    ``inherited_fds`` stay open in uv: a lock that it must hold even when this process is killed.
    Raises: ResolveFailed, DownloadFailed, DiskFull with uv's own words; Cancelled, after uv was killed.
    """
    process = subprocess.Popen(
        [os.fspath(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=folder,
        pass_fds=tuple(inherited_fds),
        start_new_session=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=_read_lines, args=(process, lines, progress), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            if should_stop():
                raise Cancelled(f"{' '.join(map(str, command[1:3]))} was cancelled.")
            time.sleep(_POLL_SECONDS)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(5)
    if process.returncode != 0:
        raise failure("\n".join(lines), process.returncode)


def failure(output: str, code: int) -> ResolveFailed | DownloadFailed | DiskFull:
    """Say what a failed uv means, by its own words."""
    said = output.strip() or f"uv ended with code {code} and said nothing"
    details = {"uv_output": said, "uv_exit_code": code}
    if code < 0:
        return DownloadFailed(f"uv was killed by signal {-code}:\n{said}", details=details)
    if _DISK.search(output):
        return DiskFull(
            f"The node's disk is full, so the environment could not be built:\n{said}",
            fix="Free space on the node, or lower the limit of the environment cache.",
            details=details,
        )
    if _NETWORK.search(output) and "No solution found" not in output:
        return DownloadFailed(
            f"A package could not be downloaded:\n{said}",
            fix="Check the node's network and its package index and proxy settings; it is tried again.",
            details=details,
        )
    return ResolveFailed(
        f"The environment cannot be built from its dependencies:\n{said}",
        fix="Change environment.dependencies so that uv can satisfy them.",
        details=details,
    )


def disk_failure(error: OSError) -> DiskFull | OSError:
    """Return ``DiskFull`` for an error that means it, else the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"The node's disk is full at {error.filename}.", fix="Free space on the node.")
    return error


def _read_lines(process: subprocess.Popen[bytes], lines: list[str], progress: Callable[[str], None]) -> None:
    assert process.stderr is not None
    with process.stderr as stream:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            lines.append(line)
            del lines[:-_KEPT_LINES]
            if line:
                progress(line)
