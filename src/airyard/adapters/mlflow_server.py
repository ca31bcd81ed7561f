"""The supervisor of the embedded MLflow process.

Owns: starting, watching, restarting and stopping one child process, and its log file. Must not know: what is
asked of MLflow.

The child (``mlflow_child.py``) listens on a UNIX socket in its data folder (0700), so that only this server's
user can reach it. It cannot outlive this process: the kernel kills it when the supervising thread ends,
``kill -9`` of the server included. A child that holds the folder's lock from elsewhere is waited for, then
named in ``state``.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from airyard.adapters.mlflow_child import EXIT_LOCKED, SOCKET
from airyard.adapters.mlflow_endpoint import MlflowEndpoint
from airyard.ports.tracker import TrackerKind, TrackerState

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_HEALTH_EVERY_S = 10.0
_HEALTH_TIMEOUT_S = 10.0
_HEALTH_FAILURES = 6
_START_LIMIT_S = 180.0
_STEADY_S = 60.0
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_STOP_GRACE_S = 8.0
_LOG_BYTES = 10 * 1024 * 1024
_READY_QUERY = "/api/2.0/mlflow/experiments/get?experiment_id=0"


class EmbeddedMlflow:
    """One supervised MLflow server on SQLite and local artifacts under ``folder``.

    ``on_up`` is called from the supervising thread each time MLflow starts to answer. Linux only.
    """

    def __init__(self, folder: Path, log_path: Path, *, on_up: Callable[[], None] | None = None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._folder = folder.resolve()
        self._log_path = log_path
        self._on_up = on_up
        # A socket address holds 108 bytes and a data folder may lie deeper: go through its descriptor.
        self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.endpoint = MlflowEndpoint(
            base_url="http://localhost",
            socket_path=f"/proc/self/fd/{self._directory}/{SOCKET}",
            label=f"{self._folder / SOCKET} (embedded)",
        )
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._state = self._as(TrackerKind.STARTING, "not started yet")
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, name="mlflow-supervisor", daemon=True)
        self.start_duration_ms: int | None = None

    def start(self) -> None:
        """Start supervising; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop MLflow, gracefully for 8 s, and the supervision. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def state(self) -> TrackerState:
        """Return the current condition, from memory."""
        with self._lock:
            return self._state

    @property
    def pid(self) -> int | None:
        """The process id of the living child."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def _as(self, kind: TrackerKind, detail: str) -> TrackerState:
        return TrackerState(kind=kind, detail=detail, uri=self.endpoint.name)

    def _set(self, kind: TrackerKind, detail: str) -> None:
        with self._lock:
            self._state = self._as(kind, detail)
        _log.info("embedded MLflow is %s: %s", kind, detail)

    def _supervise(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            started_s = time.monotonic()
            reason = self._run_once()
            if self._stopping.is_set():
                break
            failures = 0 if time.monotonic() - started_s > _STEADY_S else failures + 1
            pause_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            self._set(TrackerKind.DOWN, f"{reason}; starting again in {pause_s:g} s; log: {self._log_path}")
            self._stopping.wait(pause_s)
        self._set(TrackerKind.DOWN, "stopped with the server")

    def _run_once(self) -> str:
        """Run one child to its end; returns why it ended."""
        self._set(TrackerKind.STARTING, "loading MLflow")
        try:
            self._process = process = self._spawn()
        except OSError as error:
            return f"MLflow could not be started: {error}"
        try:
            with self.endpoint.client() as client:
                return self._await_ready(client, process) or self._watch(client, process)
        finally:
            self._end(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the child from this thread, whose end is the child's end too (see ``die_with_parent``)."""
        if self._log_path.exists() and self._log_path.stat().st_size > _LOG_BYTES:
            self._log_path.replace(self._log_path.with_suffix(self._log_path.suffix + ".1"))
        command = [sys.executable, "-m", "airyard.adapters.mlflow_child", str(self._folder), str(os.getpid())]
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )

    def _await_ready(self, client: httpx.Client, process: subprocess.Popen[bytes]) -> str | None:
        """Wait for the first answer that went through the database; returns a reason when there is none."""
        started_s = time.monotonic()
        while not self._stopping.is_set():
            if process.poll() is not None:
                return self._end_of(process)
            waited_s = time.monotonic() - started_s
            if waited_s > _START_LIMIT_S:
                return f"MLflow did not answer within {_START_LIMIT_S:g} s of its start"
            try:
                ready = client.get(_READY_QUERY, timeout=_START_LIMIT_S - waited_s).status_code == 200
            except httpx.HTTPError:
                ready = False
            if ready:
                self.start_duration_ms = round((time.monotonic() - started_s) * 1000)
                self._set(
                    TrackerKind.UP, f"process {process.pid}, up after {self.start_duration_ms / 1000:.1f} s"
                )
                if self._on_up is not None:
                    self._on_up()
                return None
            self._stopping.wait(_POLL_S)
        return "stopped"

    def _watch(self, client: httpx.Client, process: subprocess.Popen[bytes]) -> str:
        """Wait for the child's end; a child that stops answering for a minute is ended."""
        failures = 0
        next_check_s = time.monotonic() + _HEALTH_EVERY_S
        while not self._stopping.is_set():
            try:
                process.wait(timeout=_POLL_S * 4)
                return self._end_of(process)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() < next_check_s:
                continue
            try:
                healthy = client.get("/health", timeout=_HEALTH_TIMEOUT_S).status_code == 200
            except httpx.HTTPError:
                healthy = False
            failures = 0 if healthy else failures + 1
            if failures >= _HEALTH_FAILURES:
                process.kill()
                return f"MLflow (process {process.pid}) did not answer {failures} health checks and was ended"
            next_check_s = time.monotonic() + _HEALTH_EVERY_S
        return "stopped"

    def _end_of(self, process: subprocess.Popen[bytes]) -> str:
        code = process.returncode
        if code == EXIT_LOCKED:
            return f"another MLflow holds {self._folder}"
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"MLflow (process {process.pid}) ended with {how}"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Make sure that the child is gone and reaped."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        self._process = None
