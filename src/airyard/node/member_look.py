"""The runner's part of a look at a member that may hang: has it taken, puts it into the log, tells the server.

Owns: the thread for it, masking, the lines. Must not know: how processes are looked at (``looking``), verdicts.
Standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airyard.node.masking import Masker
from airyard.node.runner_http import AttemptIsOver, Channel, Refused, ServerAway

_CHILD_S = 18.0
_POST_S = 10.0
_STACK_CHARACTERS = 2000


class MemberLook:
    """Looks once for each number that the server gives. ``situation``: None while the member does not run."""

    def __init__(
        self,
        channel: Callable[[], Channel],
        situation: Callable[[], dict[str, Any] | None],
        secrets: Callable[[], list[bytes]],
        note: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._situation = situation
        self._secrets = secrets
        self._note = note
        self._number = 0
        self._thread: threading.Thread | None = None

    def asked(self, number: int) -> None:
        """Begin a look, unless this one was taken or another is under way. Called on the thread that hears orders."""
        if number == self._number or (self._thread is not None and self._thread.is_alive()):
            return
        self._number = number
        self._thread = threading.Thread(target=self._look, args=(number,), name="look", daemon=True)
        self._thread.start()

    def _look(self, number: int) -> None:
        # A look that fails is no reason for a runner to end.
        try:
            situation = self._situation()
            found: dict[str, Any] = (
                taken(situation) if situation is not None else {"why": "the command does not run"}
            )
        except Exception as error:
            found = {"why": f"{type(error).__name__}: {error}"}
        found = masked(found, self._secrets())
        for line in lines(found):
            self._note(line)
        told = [_told(row) for row in found.get("ranks", ())]
        try:
            body = {"number": number, "ranks": told, "why": found.get("why", "")}
            self._channel().post_json("looks", body, timeout_s=_POST_S)
        except (ServerAway, Refused, AttemptIsOver):
            return  # the verdict is given without it; the log has it


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the server is told of a rank: where it stands, without all of its threads."""
    kept = {name: value for name, value in row.items() if name != "text"}
    return {**kept, "stack": str(row["stack"])[:_STACK_CHARACTERS]}


def situation(order: Mapping[str, Any], pids: Iterable[int], told: Mapping[int, int]) -> dict[str, Any]:
    """Return what ``looking`` is asked: the member's processes, those that told their rank, its real GPUs."""
    visible = str(order.get("visible_devices") or "")
    return {
        "pids": sorted(pids),
        "told": {str(rank): pid for rank, pid in told.items()},
        "member": int(order["member"]),
        "local_world_size": int(order["local_world_size"]),
        "uuids": [uuid for uuid in visible.split(",") if uuid.startswith(("GPU-", "MIG-"))],
    }


def taken(situation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is seen. Cost: a process, which is given up after some time."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "airyard.node.looking"],
            input=json.dumps(situation).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_CHILD_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"why": f"the look was not finished: {type(error).__name__}"}
    return found if isinstance(found, dict) else {}


def masked(found: Mapping[str, Any], secrets: list[bytes]) -> dict[str, Any]:
    """Return it without secrets: they may be in names of files, threads and functions."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            masker = Masker(secrets)
            return (masker.feed(value.encode()) + masker.flush()).decode(errors="replace")
        if isinstance(value, list):
            return [clean(one) for one in value]
        return {name: clean(one) for name, one in value.items()} if isinstance(value, dict) else value

    return {name: clean(value) for name, value in found.items()}


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return what the member's log says of a look, an entry a rank and a GPU."""
    said = [f"look at the stall: {found['why']}"] if found.get("why") else []
    for row in found.get("ranks", ()):
        head = f"look at the stall: rank {row['rank']}, process {row['pid']}, state {row['state'] or 'gone'}"
        lacks = f" ({row['why']})" if row.get("why") else ""
        said.append(f"{head}{lacks}" + "".join(f"\n    {line}" for line in row["text"].splitlines()))
    if not said:
        said.append(
            f"look at the stall: none of its {found.get('processes', 0)} processes is known to be a rank"
        )
    said += [f"look at the stall: {gpu_line(one)}" for one in found.get("gpus", ())]
    if found.get("gpu_problem"):
        said.append(f"look at the stall: {found['gpu_problem']}")
    return said


def gpu_line(one: Mapping[str, Any]) -> str:
    """Return one GPU in words."""
    name = f"GPU {one.get('index', one['uuid'])}"
    if one.get("error"):
        return f"{name}: {'it is gone' if one.get('lost') else 'it does not answer'} ({one['error']})"
    units = {
        "most": "{} % busy",
        "memory_mb": "{} MB",
        "power_w": "{} W",
        "clock_mhz": "{} MHz",
        "temperature_c": "{} °C",
        "ecc_uncorrected": "{} uncorrected ECC errors",
    }
    told = [form.format(one[key]) for key, form in units.items() if key in one]
    reasons = [f"clock reasons {int(one['clock_reasons']):#x}"] if "clock_reasons" in one else []
    return f"{name}: {', '.join([*told, *reasons])}"
