"""Takes the stack of a process of somebody else's, Python or not, and says what it could not see.

Owns: calling py-spy, what the kernel tells beside it. Must not know: ranks, members, what a stack means.

First without stopping the process, then, where it may be stopped for a moment, with native frames. One that waits in
the kernel or is stopped is never attached to: it would get a stop that outlives a given-up py-spy.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 8_000
_FRAMES, _THREADS = 40, 24
_QUICK_S, _NATIVE_S = 4.0, 6.0
_SHORTEST_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process. ``main``: its main thread's frames, innermost first; ``text``: all threads; ``why``: what lacks."""

    state: str
    main: str = ""
    text: str = ""
    why: str = ""


def find_py_spy() -> str | None:
    """Return the program that came with this interpreter, or one on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def look(pid: int, until_s: float, py_spy: str | None) -> Seen:
    """Look at a process. Cost: two processes, each with a time limit; it is stopped for milliseconds at most once."""
    state = state_of(pid)
    if not state or state == "Z":
        return Seen(state=state, why="it has ended")
    if py_spy is None:
        return _of_kernel(pid, state, "py-spy is not installed")
    threads, why = _dump(py_spy, pid, until_s, _QUICK_S, "--nonblocking")
    if state not in "DTt":
        native, problem = _dump(py_spy, pid, until_s, _NATIVE_S, "--native")
        _let_go(pid, state)
        if native:
            threads, why = native, ""
        elif threads:
            why = f"no native frames: {problem}"
    if not threads:
        return _of_kernel(pid, state, why)
    threads.sort(key=lambda one: (one["os_thread_id"] != pid, one["os_thread_id"] or 0))
    parts = [_thread(one) for one in threads[:_THREADS]]
    if len(threads) > _THREADS:
        parts.append(f"and {len(threads) - _THREADS} more threads")
    main = "\n".join(_frames(threads[0])) if threads[0]["os_thread_id"] in (pid, None) else ""
    return Seen(state=state_of(pid) or state, main=main, text="\n".join(parts)[:MOST_CHARACTERS], why=why)


def state_of(pid: int) -> str:
    """Return a process's state as the kernel names it; nothing when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    return ""


def _dump(py_spy: str, pid: int, until_s: float, most_s: float, way: str) -> tuple[list[dict[str, Any]], str]:
    left_s = min(most_s, until_s - time.monotonic())
    if left_s < _SHORTEST_S:
        return [], "no time was left"
    try:
        done = subprocess.run(
            [py_spy, "dump", "--pid", str(pid), "--json", way],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left_s,
            check=False,
            env={"PATH": os.environ.get("PATH", ""), "RUST_BACKTRACE": "0"},
        )
        if done.returncode:
            return [], _reason(done.stderr.decode(errors="replace"))
        return [one for one in json.loads(done.stdout) if one["frames"]], "py-spy saw no frames"
    except subprocess.TimeoutExpired:
        return [], f"py-spy did not end within {left_s:.0f} s"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [], f"py-spy: {type(error).__name__}: {error}"


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.partition("Stack backtrace")[0].splitlines() if line.strip()]
    text = " ".join(lines)[:200] or "py-spy failed"
    if "ermission" in said or "os error 1)" in said:
        text += "; not allowed to look into it: the agent needs root, CAP_SYS_PTRACE or kernel.yama.ptrace_scope=0"
    return text


def _let_go(pid: int, before: str) -> None:
    """A py-spy that was given up may leave the process stopped."""
    if before not in "Tt" and state_of(pid) == "T":
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def _thread(one: dict[str, Any]) -> str:
    name = str(one.get("thread_name") or "")[:60]
    holds = ", holds the GIL" if one.get("owns_gil") else ""
    return "\n".join(
        [f'thread {one["os_thread_id"]} "{name}"{holds}', *(f"  {frame}" for frame in _frames(one))]
    )


def _frames(one: dict[str, Any]) -> list[str]:
    shown = []
    for frame in one["frames"][:_FRAMES]:
        file = frame.get("short_filename") or frame.get("filename") or "?"
        line = f":{frame['line']}" if frame.get("line") else ""
        shown.append(f"{str(frame['name'])[:120]} ({str(file)[-80:]}{line})")
    return shown


def _of_kernel(pid: int, state: str, why: str) -> Seen:
    """What /proc says of a process that py-spy cannot look into: of its main thread, where in the kernel it is."""
    frames: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/stack").read_text(errors="replace").splitlines()[:_FRAMES]:
            frames.append(line.partition("] ")[2].partition("+")[0] + " (kernel)")
    if not frames:
        with contextlib.suppress(OSError):
            wchan = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip()
            frames = [f"{wchan} (kernel)"] if wchan not in ("", "0") else []
    text = "\n".join(frames)
    return Seen(state=state_of(pid) or state, main=text, text=text, why=why)
