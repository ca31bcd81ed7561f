"""The embedded MLflow process: what runs in the child that ``mlflow_server.py`` supervises.

Owns: binding the socket, the lock on the data folder, dying with the parent, and loading MLflow's own ASGI
application under uvicorn. Must not know: Airyard's server. Run as ``python -m airyard.adapters.mlflow_child
FOLDER PARENT_PID``.

Why not ``mlflow server``: that command imports MLflow, then starts uvicorn, which imports it again in a
second process: twice the start (10 to 12 s instead of 5 to 6 s on a 2-core machine) and twice the memory (520
MB instead of 265 MB). What it hands to uvicorn are the variables below; MLflow's version is pinned, and the
contract tests run this very process.

The socket is a UNIX one in a folder of mode 0700, itself of mode 0600: unlike a loopback port, no other user
of the machine can reach it.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

SOCKET = "mlflow.sock"
DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
LOCK = "mlflow.lock"
VERSION = "mlflow.version"
EXIT_LOCKED = 75
EXIT_ORPHAN = 76

_PR_SET_PDEATHSIG = 1
_LOCK_PATIENCE_S = 10.0


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent's thread that started us ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call above
        sys.exit(EXIT_ORPHAN)


def lock_folder(folder: Path) -> int:
    """Hold the folder for this process's life: two MLflows never share a database. Returns the descriptor."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
                print(f"another MLflow (process {holder}) holds {folder}", file=sys.stderr)  # noqa: T201  # log file
                sys.exit(EXIT_LOCKED)
            time.sleep(0.1)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def bind_socket(folder: Path) -> socket.socket:
    """Bind the socket by its bare name: a full path may be over the 108 bytes an address can hold."""
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(SOCKET)
    Path(SOCKET).chmod(0o600)
    return listener


def prepare_database(folder: Path) -> None:
    """Bring the database to the installed MLflow's schema and into write-ahead mode.

    An existing database of another MLflow version is copied aside, then migrated by MLflow's own command. A
    new one is left to MLflow, but for the journal mode: readers and the writer do not block each other then.
    """
    database, marker, wanted = folder / DATABASE, folder / VERSION, version("mlflow")
    found = marker.read_text().strip() if marker.exists() else ""
    if database.exists() and found != wanted:
        backup = folder / f"{DATABASE}.before-{wanted}"
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        command = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{database}"]
        subprocess.run(command, check=True, cwd=folder)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    marker.write_text(wanted + "\n")


def set_mlflow_environment(folder: Path) -> None:
    """Say to MLflow's application what ``mlflow server`` would have said, and nothing from the outside."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "_MLFLOW_"))]:
        del os.environ[name]
    database = f"sqlite:///{folder / DATABASE}"
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": database,
            "_MLFLOW_SERVER_REGISTRY_STORE": database,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / ARTIFACTS),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "_MLFLOW_SGI_NAME": "uvicorn",
            # Only the proxy reaches the socket; it says `Host: localhost` and checks the caller itself.
            "MLFLOW_SERVER_ALLOWED_HOSTS": "localhost",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
        }
    )


def serve(listener: socket.socket) -> None:
    """Load MLflow and serve it until SIGTERM."""
    gc.disable()  # loading makes many objects and hardly any garbage: 10 % faster without
    import uvicorn
    from mlflow.server.fastapi_app import app

    gc.enable()
    gc.freeze()
    config = uvicorn.Config(
        app,
        access_log=False,
        proxy_headers=False,  # nothing a caller sends may make it look local to MLflow
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
    )
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    """Run the embedded MLflow in the folder given."""
    folder, parent_pid = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    die_with_parent(parent_pid)
    os.umask(0o077)
    lock_folder(folder)
    set_mlflow_environment(folder)
    prepare_database(folder)
    (folder / ARTIFACTS).mkdir(exist_ok=True)
    serve(bind_socket(folder))


if __name__ == "__main__":
    main()
