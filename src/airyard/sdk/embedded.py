"""The server of one user on this machine: found when it runs, started when it does not.

Owns: endpoint.json, the start lock, the server process until it has identified itself.
Must not know: the server's code (it is a process), what is asked of it afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airyard.core.errors import AiryardError, Denied, Fix, Unavailable, UserError, from_json
from airyard.sdk.config import local_token
from airyard.sdk.transport import ConnectionLost, HttpTransport

START_TIMEOUT_S = 90.0
POLL_S = 0.05
LOG_LINES = 12
SERVER_MODULES = ("fastapi", "uvicorn", "sqlalchemy", "cryptography", "psutil", "structlog", "mlflow")
"""What ``airyard[server]`` brings; looked for before a start so that its absence is told in words."""

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What a serving server wrote down about itself."""

    url: str
    pid: int
    version: str


def read_endpoint(home: Path) -> Endpoint | None:
    """Return what endpoint.json says; None when there is none. It may be stale: only ``find`` knows.

    Where it is missing or damaged, the lock file of a live server says the same.
    """
    return _announced(home) or _holder(home)


def _announced(home: Path) -> Endpoint | None:
    try:
        data = json.loads((home / "server" / "endpoint.json").read_text(encoding="utf-8"))
        return Endpoint(url=str(data["url"]), pid=int(data["pid"]), version=str(data.get("version", "?")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _holder(home: Path) -> Endpoint | None:
    # Only read: to try the lock could make the start of a server fail.
    try:
        data = json.loads((home / "server" / "lock").read_text(encoding="utf-8"))
        host = f"[{data['host']}]" if ":" in data["host"] else data["host"]
        found = Endpoint(url=f"http://{host}:{int(data['port'])}", pid=int(data["pid"]), version="?")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if is_alive(found.pid) else None


def find(home: Path) -> HttpTransport | None:
    """Return a proven connection to the running server of this folder; None when none runs.

    An endpoint.json that a dead server left, its port perhaps taken by another program, counts as none.
    Raises: Unavailable for a server that is there and does not answer.
    """
    endpoint, token = read_endpoint(home), local_token(home)
    if endpoint is None or token is None:
        return None
    transport = HttpTransport(endpoint.url, token)
    try:
        transport.prove()
    except ConnectionLost as error:
        if isinstance(error.__cause__, TimeoutError) and is_alive(endpoint.pid):
            raise Unavailable(
                f"The local server (pid {endpoint.pid}) at {endpoint.url} is alive and does not answer.",
                code="SERVER_SILENT",
                fix=f"Look at {home / 'server' / 'server.log'}; `kill {endpoint.pid}` ends it, runs go on.",
            ) from error
        return None
    except Denied as error:
        if error.code != "NOT_AIRYARD":
            raise
        return None
    return transport


def find_or_start(home: Path, *, announce: Announce, arguments: Sequence[str] = ()) -> HttpTransport:
    """Return a proven connection to the server of this folder, started if need be.

    Of several that call this at once one starts it, the others wait. ``announce`` gets one line, from the
    one that started it. ``arguments`` go to the server's command line (options with their values); a running server
    keeps its own, and what is not given here is taken from the last server when that left live runs behind.
    Raises: UserError where no server can run; what the server says when it cannot start, else Unavailable with
    the end of its log.
    Cost: one round trip when it runs; a second or two when it starts.
    """
    found = find(home)
    if found is not None:
        return found
    check_startable(home)
    folder = home / "server"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with _start_lock(folder / "start.lock"):
            found = find(home)
            return found if found is not None else _start(home, announce, arguments)
    except PermissionError as error:
        raise UserError(
            f"The data folder {home} cannot be written: {error.strerror}.",
            code="HOME_NOT_WRITABLE",
            fix="Set AIRYARD_HOME to a folder of your own.",
        ) from None


def check_startable(home: Path) -> None:
    """Raise UserError, with the way out, where this installation cannot run a server."""
    if not sys.platform.startswith("linux"):
        raise UserError(
            "No server is configured, and a local one runs on Linux only.",
            code="NO_LOCAL_SERVER",
            fix="Set AIRYARD_HOST and AIRYARD_TOKEN to a server on Linux.",
        )
    missing = missing_modules()
    if missing:
        raise UserError(
            f"No server runs for {home}, and none can be started: the server's packages are not installed "
            f"(missing: {', '.join(missing)}).",
            code="SERVER_NOT_INSTALLED",
            fix=Fix(
                text="Install the server, or set AIRYARD_HOST to one.",
                command="pip install 'airyard[server]'",
            ),
        )


def missing_modules() -> list[str]:
    """Return which of the server's packages this interpreter lacks."""
    from importlib.util import find_spec

    return [name for name in SERVER_MODULES if find_spec(name) is None]


def server_command(home: Path, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs the server of this folder."""
    return [sys.executable, "-m", "airyard.server", "--home", str(home), *arguments]


def is_alive(pid: int) -> bool:
    """True while a process with this number runs; one that has ended and waits for its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return not sys.platform.startswith("linux")


def _start(home: Path, announce: Announce, arguments: Sequence[str]) -> HttpTransport:
    import subprocess  # here, because most commands find a server that runs

    arguments, kept = _with_last(arguments, _last_arguments(home))
    log = home / "server" / "server.log"
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as sink:
        offset = os.fstat(sink.fileno()).st_size
        process = subprocess.Popen(
            server_command(home, arguments),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            cwd=home / "server",  # not the caller's: `-m` looks there for modules first
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        transport = _quiet_find(home)
        if transport is not None:
            (home / "server" / "arguments.json").write_text(json.dumps(arguments), encoding="utf-8")
            before = f", as before with {' '.join(kept)}" if kept else ""
            announce(f"started a local server at {transport.url} (data in {_short(home)}){before}")
            return transport
        if ended:
            raise _failed(f"ended at its start with exit code {process.returncode}", log, offset)
        time.sleep(POLL_S)
    process.terminate()
    raise _failed(f"did not identify itself within {START_TIMEOUT_S:.0f} s", log, offset)


def _last_arguments(home: Path) -> tuple[str, ...]:
    """Return with what the last server was started: nothing when it ended with no live run, and forgot it.

    Else the simulated nodes of a server that was killed, or left its runs to the next one, would be gone, and with
    them what runs there.
    """
    try:
        found = json.loads((home / "server" / "arguments.json").read_text(encoding="utf-8"))
        return tuple(str(argument) for argument in found)
    except (OSError, ValueError, TypeError):
        return ()


def _with_last(given: Sequence[str], last: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what is given and the options of the last server that are not among it; and these alone."""
    kept = [
        part
        for option, value in zip(last[::2], last[1::2], strict=False)
        if option not in given
        for part in (option, value)
    ]
    return [*given, *kept], kept


def _quiet_find(home: Path) -> HttpTransport | None:
    try:
        return find(home)
    except Unavailable:
        return None


def _failed(what: str, log: Path, offset: int) -> AiryardError:
    """Return the server's own error where it printed one, else the end of its log."""
    with open(log, "rb") as file:
        file.seek(offset)
        lines = file.read()[-16_384:].decode(errors="replace").splitlines()[-LOG_LINES:]
    told = next((found for line in reversed(lines) if (found := _told(line)) is not None), None)
    if told is not None:
        told.details.setdefault("log", str(log))
        return told
    reason = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    tail = "".join(f"\n  | {line}" for line in lines)
    return Unavailable(
        f"The local server {what}: {reason}\nThe end of {log}:{tail or ' (empty)'}",
        code="SERVER_START_FAILED",
        fix=Fix(text="`airyard doctor` checks this machine.", command="airyard doctor"),
        details={"log": str(log), "lines": lines},
    )


def _told(line: str) -> AiryardError | None:
    """Read the line ``{"error": {...}}`` that a server prints when it cannot start."""
    try:
        body = json.loads(line)
        error = body["error"]
        message = f"The local server cannot start: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return None
    status = {"PERMANENT": 400, "NOT_FOUND": 404, "TRANSIENT": 503}.get(error.get("kind"), 500)
    return from_json(status, {**error, "message": message})


@contextmanager
def _start_lock(path: Path) -> Iterator[None]:
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _short(path: Path) -> str:
    home = os.path.expanduser("~")
    text = str(path)
    return "~" + text[len(home) :] if text.startswith(home + os.sep) else text
