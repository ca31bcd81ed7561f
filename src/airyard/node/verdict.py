"""Why a member ended: the runner's judgement of its own member, from evidence alone.

Owns: the order in which evidence counts, the wording, and the fingerprint that tells a crash loop.
Must not know: the gang (the server judges it), files, processes, the clock.
"""

from __future__ import annotations

import hashlib
import re
import signal as signals
from dataclasses import dataclass

ADDRESS_WINDOW_MS = 60_000
"""An address conflict this soon after the start is the port's fault; later it is the program's."""

STOP_CAUSES = {
    "CANCELLED": "CANCELLED",
    "TIME_LIMIT": "USER_LIMIT",
    "PREEMPTED": "PREEMPTED",
    "DRAIN": "OPERATOR",
    "NOT_READY": "PLATFORM",
    "STALLED": "PLATFORM",
    # Not a failure of this member's own; the server names the member that failed first.
    "MEMBER_FAILED": "CANCELLED",
}

_EXCEPTION = re.compile(r"^\s*[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)\b.*$")
_RANK_PREFIX = re.compile(r"^\[[^\]]*\]:?\s?")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b")
_DIGITS = re.compile(r"\d+")
_TAIL_LINES = 3

RUNNER = "runner"
"""Who asks for the stop at the end of the attempt's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen when the tree was gone: the end of stderr (masked) and what the machine counted."""

    stderr_tail: str = ""
    oom_kills: int = 0
    machine_oom_kills: int = 0
    """Processes the kernel killed for want of memory on the whole machine while the command ran."""
    memory_limit_bytes: int | None = None
    port_taken: bool = False
    """The rendezvous port could not be bound after the tree was gone: somebody else has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """The stop in force: who asked, how, and when patience ends."""

    reason: str
    by: str
    signal: str
    grace_s: float
    deadline_ms: int
    killed: bool = False
    """The deadline passed and the tree was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the member ended; exactly one of ``code`` and ``signal`` is set once it has started."""

    code: int | None = None
    signal: int | None = None
    started: bool = False
    duration_ms: int = 0
    stop: StopRequest | None = None
    attempt_over: str | None = None
    """Why the attempt ended above the runner's head (410, lease), or None."""
    failure: tuple[str, str] | None = None
    """(cause, message) when the preparation or the launch itself failed."""
    failure_is_permanent: bool = False
    rendezvous_port: int | None = None
    attempt_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement; ``cause`` is None for success. ``permanent``: the same command can never do better."""

    cause: str | None
    message: str
    out_of_memory: bool = False
    address_in_use: bool = False
    permanent: bool = False
    fingerprint: str = ""


def judge(ending: Ending, evidence: Evidence) -> Verdict:
    """Return the verdict on one member. The first rule that applies wins; see the body for the order."""
    out_of_memory = evidence.oom_kills > 0
    # A command that ended well before the kill arrived has done its work, whatever ended above it.
    if ending.attempt_over is not None and not (ending.started and ending.code == 0):
        return Verdict(cause="PLATFORM", message=ending.attempt_over, out_of_memory=out_of_memory)
    if ending.stop is not None and ending.stop.reason == "TIME_LIMIT":
        return Verdict(cause="USER_LIMIT", message=_stopped(ending, ending.stop))
    if ending.started and ending.code == 0:
        return Verdict(cause=None, message="", out_of_memory=out_of_memory)
    if ending.stop is not None:
        cause = STOP_CAUSES.get(ending.stop.reason, "CANCELLED")
        return Verdict(cause=cause, message=_stopped(ending, ending.stop), out_of_memory=out_of_memory)
    if ending.failure is not None:
        cause, message = ending.failure
        return Verdict(
            cause=cause,
            message=message,
            permanent=ending.failure_is_permanent,
            fingerprint=fingerprint(None, None, message),
        )
    return _judge_failure(ending, evidence)


def _judge_failure(ending: Ending, evidence: Evidence) -> Verdict:
    """Judge a process that ended by itself, and not well."""
    tail = evidence.stderr_tail
    mark = fingerprint(ending.code, ending.signal, tail)
    how = _how(ending)
    if evidence.oom_kills > 0:
        limit = evidence.memory_limit_bytes
        of = f" of {limit / 2**30:.1f} GiB" if limit else ""
        text = f"host memory: the kernel killed a process of this member at its limit{of}; {how}"
        return Verdict(cause="USER_LIMIT", message=text, out_of_memory=True, fingerprint=mark)
    if evidence.machine_oom_kills > 0 and (ending.signal == 9 or ending.code == 137):
        text = f"host memory: the machine ran out of memory and the kernel killed processes; {how}"
        return Verdict(cause="USER_LIMIT", message=text, out_of_memory=True, fingerprint=mark)
    if _address_in_use(ending, evidence):
        text = f"address already in use: rendezvous port {ending.rendezvous_port} was taken; {how}"
        return Verdict(cause="NETWORK", message=text, address_in_use=True, fingerprint=mark)
    if "No space left on device" in tail or "Disk quota exceeded" in tail:
        return Verdict(cause="USER_LIMIT", message=f"disk: no space left on device; {how}", fingerprint=mark)
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    if ending.code in (126, 127):
        return Verdict(
            cause="USER_CODE", message=_not_run(ending.code, lines), permanent=True, fingerprint=mark
        )
    if ending.code == 2 and (syntax := _syntax_error(lines)) is not None:
        text = f"shell syntax error: {syntax}"
        return Verdict(cause="USER_CODE", message=text, permanent=True, fingerprint=mark)
    last = _telling_line(lines)
    return Verdict(cause="USER_CODE", message=f"{how}: {last}" if last else how, fingerprint=mark)


def _how(ending: Ending) -> str:
    """Say how the command ended, naming signals, also those that bash turned into 128 + n."""
    if ending.signal is not None:
        return f"the command was killed by {_signal_name(ending.signal)}"
    code = ending.code if ending.code is not None else -1
    if 128 < code < 128 + 65:
        return f"the command exited with {code} (a process of it was killed by {_signal_name(code - 128)})"
    return f"the command exited with {code}"


def _signal_name(number: int) -> str:
    try:
        return f"{signals.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _stopped(ending: Ending, stop: StopRequest) -> str:
    """Word a stop: why, by whom, and whether patience was needed."""
    if stop.reason == "TIME_LIMIT":
        # Only this runner counts the attempt's limit; the server stops at the limit of the whole run.
        limit = ending.attempt_timeout_s if stop.by == RUNNER else None
        why = f"time limit: {limit:g} s were allowed" if limit is not None else "time limit"
    elif stop.reason == "MEMBER_FAILED":
        why = "stopped because another member failed"
    else:
        why = f"{stop.reason.lower().replace('_', ' ')}" + (f" by {stop.by}" if stop.by else "")
    if not ending.started:
        return f"{why}, before the command started"
    if stop.killed:
        return f"{why}; killed after {stop.grace_s:g} s of grace"
    return f"{why}; {_how(ending)}"


def _address_in_use(ending: Ending, evidence: Evidence) -> bool:
    """True for a bind conflict on the rendezvous port soon after the start."""
    if ending.rendezvous_port is None or ending.duration_ms > ADDRESS_WINDOW_MS:
        return False
    lowered = evidence.stderr_tail.lower()
    if "address already in use" not in lowered and "eaddrinuse" not in lowered:
        return False
    return evidence.port_taken or re.search(rf"\b{ending.rendezvous_port}\b", lowered) is not None


def _not_run(code: int, lines: list[str]) -> str:
    """Name the command that bash could not run, in bash's own words where they were seen."""
    words = "command not found" if code == 127 else "permission denied or not executable"
    needles = ("command not found", "No such file or directory") if code == 127 else (
        "Permission denied", "cannot execute", "Is a directory", "Exec format error")  # fmt: skip
    line = next((line for line in reversed(lines) if any(needle in line for needle in needles)), None)
    return f"{words} (exit {code})" + (f": {_without_script(line)}" if line else "")


def _syntax_error(lines: list[str]) -> str | None:
    for line in reversed(lines):
        if "syntax error" in line or "unexpected EOF" in line or "unexpected end of file" in line:
            return _without_script(line)
    return None


def _without_script(line: str) -> str:
    """Drop the path of the command file that bash puts in front; people know no such file."""
    return re.sub(r"^\S*command\.sh: ", "", line)


def _telling_line(lines: list[str]) -> str:
    """Return the last exception line, else the last line; at most 300 characters."""
    bare = [_RANK_PREFIX.sub("", line) for line in lines]
    for line in reversed(bare):
        if _EXCEPTION.match(line):
            return line.strip()[:300]
    return bare[-1][:300] if bare else ""


def fingerprint(code: int | None, signal: int | None, stderr_tail: str) -> str:
    """Return 16 hex digits, equal for the same crash: its exit and last telling line without numbers."""
    lines = [_RANK_PREFIX.sub("", line).strip() for line in stderr_tail.splitlines() if line.strip()]
    exceptions = [line for line in lines if _EXCEPTION.match(line)]
    telling = exceptions[-1:] or lines[-_TAIL_LINES:]
    plain = [_DIGITS.sub("#", _HEXADECIMAL.sub("#", line)) for line in telling]
    text = "\n".join([f"{code}/{signal}", *plain])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
