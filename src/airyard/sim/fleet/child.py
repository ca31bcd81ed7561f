"""The fleet's process as its starter has it: started, listened to, told what to do, ended.

Owns: the process and its lines. Must not know: machines, what the starter makes of what it hears.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from airyard.core.errors import AiryardError, Unavailable, from_json

LOG = "fleet.log"
_END_S = 10.0
_LOOK_S = 0.05


class FleetProcess:
    """A running ``python -m airyard.sim.fleet``; a context. ``heard`` gets each event, on a thread of its own."""

    def __init__(
        self,
        home: Path,
        nodes: int,
        *,
        gpu: str = "GPU_8xH100",
        run_seconds: float = 60.0,
        faults: Path | None = None,
        heard: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        self._heard = heard
        self._log = home / "server" / LOG
        self._joined = threading.Event()
        self._failed: Mapping[str, Any] | None = None
        options: Sequence[str] = ("--home", str(home), "--nodes", str(nodes), "--gpu", gpu)
        options = (*options, "--run-seconds", str(run_seconds))
        options = (*options, "--faults", str(faults.absolute())) if faults is not None else options
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airyard.sim.fleet", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the starter's to deal with
                cwd=home,  # not the caller's: `-m` looks there for modules first
            )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._listen, name="fleet", daemon=True)
        self._reader.start()

    def __enter__(self) -> FleetProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "joined":
                self._joined.set()
            elif event["event"] == "failed":
                self._failed = event["error"]
            self._heard(event)

    @property
    def ended(self) -> bool:
        """True when it is not there any more."""
        return self._process.poll() is not None

    def wait_joined(self, timeout_s: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until every machine has said hello; False when ``stop`` said so. Raises: Unavailable, what it says."""
        deadline_s = time.monotonic() + timeout_s
        while not self._joined.wait(_LOOK_S):
            if stop():
                return False
            if self.ended or time.monotonic() > deadline_s:
                raise self._trouble(timeout_s)
        return True

    def _trouble(self, timeout_s: float) -> AiryardError:
        if self._failed is not None:
            return from_json(400, self._failed)
        lines = self._log.read_text(errors="replace").splitlines()[-5:]
        what = "ended" if self.ended else f"has not all of its machines in the yard after {timeout_s:.0f} s"
        said = "".join(f"\n  | {line}" for line in lines)
        return Unavailable(
            f"the simulated fleet {what}{said}",
            code="FLEET_NOT_UP",
            fix=f"look at {self._log} and server.log",
        )

    def strike(self, **fault: Any) -> None:
        """Do a fault now; the fields of an entry of a faults file. Raises: OSError when the process is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fault).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it, and all its machines."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
