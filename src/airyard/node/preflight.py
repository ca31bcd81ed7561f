"""Checks of the node before a member's code: nothing where a certificate holds, else one child process.

Owns: when checks run, their deadline, which results speak against the node, the certificate. Must not know: any check,
what follows from a refusal.

What is not known lets the member go on: a check that crashed, is late or does not apply never costs a run its node.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import airyard
from airyard.checks.catalogue import is_sure
from airyard.checks.contract import Profile
from airyard.checks.preflight import certificate
from airyard.checks.preflight.certificate import Identity
from airyard.checks.preflight.results import result_to_json, results_from_json
from airyard.checks.preflight.setting import CACHES, Setting
from airyard.checks.site_limits import FILE
from airyard.checks.thresholds import VERSION
from airyard.core.health.facts import CheckResult, CheckStatus, Component
from airyard.core.health.fleet_values import measured
from airyard.core.health.shared import PASSED
from airyard.node.launch import of_checks

FAULT = "preflight"
DEADLINE_S = {Profile.FAST: 75.0, Profile.FULL: 930.0}
"""A probe's own deadlines and what starting them takes."""
_LOOK_S = 0.05
_MOST_BYTES = 64 << 20
_KILL_S = 2.0
_OF_DEVICE = frozenset({Component.GPU, Component.GPU_MEMORY})
_MODULE = "airyard.checks.preflight"


class Unfit(Exception):
    """The node failed a check; ``cause`` is DEVICE or NODE."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message


class PreflightInterrupted(Exception):
    """It was given up because the member is to end."""


def run(
    order: Mapping[str, Any],
    *,
    node: str,
    node_folder: Path,
    note: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
    writes: Sequence[Path] = (),
    account: Sequence[int] = (),
    servers: Sequence[str] = (),
    tell: Callable[[dict[str, Any]], None] = lambda measured: None,
) -> tuple[str, ...]:
    """Check the node where the order asks for it; return what of the ``afresh`` it has passed just now.

    Raises: Unfit, PreflightInterrupted. Cost: nothing when certified, but for what another node has just failed:
    that is checked all the same. ``writes``: the run's own folders, which are there; ``account``: who will write
    there, if not this process; ``servers``: all addresses. ``tell``: gets what was measured.
    """
    asked = order.get("preflight")
    if not asked:
        return ()
    profile = Profile(asked["profile"])
    mine = tuple(uuid for uuid in str(order.get("visible_devices") or "").split(",") if uuid)
    path = certificate_path(node_folder, node)
    limits, storage = asked.get("limits"), tuple(asked.get("storage") or ())
    now = identity_of(node, mine, node_folder, limits, storage)
    kept = certificate.load(path)
    certified = kept is not None and kept.holds(now, profile, _now_ms())
    if certified and kept is not None:
        _tell_measured(tell, kept.profile, kept.checks, (_now_ms() - kept.issued_ms) // 1000)
    afresh = tuple(str(name) for name in asked.get("afresh") or ())
    if certified and not afresh:
        return ()
    began = time.monotonic()
    python = str((order.get("environment") or {}).get("python") or "")
    setting = replace(
        setting_of(python, asked.get("uuids") or (), node_folder, limits, writes=writes, storage=storage),
        servers=tuple(place for url in servers if (place := place_of(url))),
        alone=_alone(int(order.get("members") or 1)),
        own=tuple(str(folder) for folder in writes),
        account=tuple(account),
        only=afresh if certified else (),
        fleet=fleet_of(asked),
    )
    wish = {"profile": profile.value, "setting": setting.as_json()}
    results = check(wish, DEADLINE_S[profile], should_stop)
    if results is None:
        note(f"preflight: the checks gave no answer; the node {node} is used as it is")
        return ()
    against = refusing(results, order.get("devices") or (), strict=bool(asked.get("strict")))
    for result in results:
        if result.status in (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN):
            note(f"preflight: {result.status.value.lower()} {result.check}: {result.message}")
    if against:
        certificate.revoke(path)
        raise unfit(node, against)
    note(f"preflight: {_count(results)} checks in {time.monotonic() - began:.1f} s")
    if certified:
        return _passed(afresh, results)  # of a part only: the certificate stays what it is
    _tell_measured(tell, profile, map(result_to_json, results))
    passed = certificate.issue(
        replace(now, uuids=tuple(sorted({*mine, *(asked.get("uuids") or ())}))), profile, results, _now_ms()
    )
    if passed is not None:
        with contextlib.suppress(OSError):  # the node is fit all the same; the next start checks it again
            certificate.store(path, passed)
    return _passed(afresh, results)


def _passed(names: Sequence[str], results: Sequence[CheckResult]) -> tuple[str, ...]:
    """Return which checks passed with all their results, as a report names them."""
    seen = {result.check for result in results}
    odd = {result.check for result in results if result.status is not CheckStatus.PASS}
    return tuple(PASSED + name for name in names if name in seen - odd)


def _tell_measured(
    tell: Callable[[dict[str, Any]], None],
    profile: Profile,
    rows: Iterable[Mapping[str, Any]],
    age_s: int = 0,
) -> None:
    """Tell what a round measured that others are compared with; nothing where it measured no such thing."""
    if values := measured(rows):
        tell({"profile": profile.value, "age_s": age_s, "values": values})


def fleet_of(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a server told of other nodes; an older one tells nothing. No certificate is bound to it."""
    told = asked.get("fleet")
    return told if isinstance(told, Mapping) else {}


def certificate_path(node_folder: Path, node: str) -> Path:
    """Return where the certificate of a node lies."""
    return node_folder / "certificates" / f"{node}.json"


def identity_of(
    node: str,
    uuids: Sequence[str],
    node_folder: Path,
    limits: Mapping[str, Any] | None = None,
    storage: Sequence[str] = (),
) -> Identity:
    """Read what a certificate is bound to, without starting anything: new limits or own checks void it.

    ``limits`` and ``storage``: those of the pool, as it told them.
    """
    return Identity(
        node=node,
        boot_id=_read(Path("/proc/sys/kernel/random/boot_id")),
        driver=_read(Path("/sys/module/nvidia/version")),
        uuids=tuple(sorted(uuids)),
        rules=f"{airyard.__version__}/{VERSION}{_changed(_limits(node_folder))}{_changed(_own(node_folder))}"
        f"{_changed(_manifest(node_folder))}{mark_of(limits)}{_mark(sorted(storage))}",
    )


def mark_of(limits: Mapping[str, Any] | None) -> str:
    """Return a mark of a pool's limits that changes with them; empty without any. The pool's name does not matter."""
    return _mark(limits.get("tables")) if limits else ""


def _mark(told: object) -> str:
    """Return a mark that changes with what was told; empty for nothing."""
    if not told:
        return ""
    return f"/{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]}"


def refusing(results: Sequence[CheckResult], devices: Sequence[int], *, strict: bool) -> list[CheckResult]:
    """Return the failures that speak against the node for a member on ``devices``.

    Those of other devices do not: who has these finds out. Without ``strict`` only the surest count, and checks of a
    site's own, which nobody puts there for nothing.
    """
    mine = set(devices)
    return [
        result
        for result in results
        if result.status is CheckStatus.FAIL
        and (strict or is_sure(result.check))
        and (result.device is None or result.device in mine)
    ]


def unfit(node: str, against: Sequence[CheckResult]) -> Unfit:
    """Say which check failed on which device, by how much, and what to do; further ones are counted."""
    first = against[0]
    message = f"preflight: node {node} failed {first.check}: {first.message}"
    if first.value is not None and first.threshold is not None:
        unit, whose = f" {first.unit}" if first.unit else "", first.details.get("limit", "")
        message += (
            f" (measured {first.value:g}, limit {first.threshold:g}{unit}{f': {whose}' if whose else ''})"
        )
    if first.next_step:
        message += f"; next: {first.next_step}"
    if more := len(against) - 1:
        message += f"; {more} more"
    on_device = first.device is not None and first.component in _OF_DEVICE
    return Unfit("DEVICE" if on_device else "NODE", message)


def check(
    wish: Mapping[str, Any], deadline_s: float, should_stop: Callable[[], bool] = lambda: False
) -> list[CheckResult] | None:
    """Run checks in a process of its own. None: it crashed or was late, and was killed and not waited for."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as told:
        given.write(json.dumps({**wish, "parent": os.getpid()}).encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=given,
                stdout=told,
                stderr=subprocess.DEVNULL,
                env=of_checks(os.environ),
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            return None
        until = time.monotonic() + deadline_s
        while process.poll() is None:
            if should_stop():
                _kill(process)
                raise PreflightInterrupted
            if time.monotonic() >= until:
                _kill(process)
                return None
            time.sleep(_LOOK_S)
        told.seek(0)
        try:
            return results_from_json(json.loads(told.read(_MOST_BYTES))["results"])
        except (ValueError, KeyError, TypeError):
            return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it waits in the kernel: nobody waits for it
        process.wait(_KILL_S)


def setting_of(
    python: str,
    uuids: Sequence[str],
    node_folder: Path,
    of_pool: Mapping[str, Any] | None = None,
    *,
    writes: Sequence[Path] = (),
    storage: Sequence[str] = (),
) -> Setting:
    """Return what checks of a node of this machine are told: ``python`` has torch, ``uuids`` are its GPUs.

    ``of_pool``: the pool's limits, as it told them. ``writes``: folders of a run; none: where those of all runs are.
    ``storage``: folders of file servers that the pool names.
    """
    limits, own, manifest = _limits(node_folder), _own(node_folder), _manifest(node_folder)
    folders = writes or [folder for folder in (node_folder / "runs",) if folder.is_dir()]
    return Setting(
        data_folder=node_folder,
        python=python,
        known={"uuids": " ".join(uuids)},
        limits_file=str(limits) if limits.is_file() else "",
        pool=str(of_pool.get("pool", "")) if of_pool else "",
        pool_limits=of_pool.get("tables") or {} if of_pool else {},
        own_folder=str(own) if own.is_dir() else "",
        writes=(*(str(folder) for folder in folders), *storage),
        caches=tuple(str(node_folder / name) for name in CACHES),
        manifest=str(manifest) if manifest.is_file() else "",
    )


def place_of(url: str) -> str:
    """Return ``HOST:PORT`` of an address; empty for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ""
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if host else ""


def _alone(members: int) -> str:
    if members > 1:
        return f"the {members} members of this run call each other once all are ready"
    return "this run has one member: there is no other node to call"


def _limits(node_folder: Path) -> Path:
    return node_folder / FILE


def _own(node_folder: Path) -> Path:
    return node_folder / "checks"


def _manifest(node_folder: Path) -> Path:
    """Return where a site may say which cached files there should be, in the form of ``sha256sum``."""
    return node_folder / "cached.sha256"


def _changed(path: Path) -> str:
    """Return when a file, or the newest file of a folder, was changed; empty where there is none."""
    try:
        times = [path.stat().st_mtime_ns, *(each.stat().st_mtime_ns for each in path.glob("*.py"))]
    except OSError:
        return ""
    return f"/{max(times)}"


def _count(results: Sequence[CheckResult]) -> int:
    return len({result.check for result in results if result.status is not CheckStatus.SKIP})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
