"""Checks of a gang's nodes with each other, between GO and the command: are they alike, do they sum rightly together.

Owns: what READY says for it, the one rank of the sum, deadlines, the certificate of a set of nodes. Must not know: the
server, what follows from a refusal (``core/decide``), how members meet (``meeting.py``).

All members get the same facts with GO and come to the same verdict: of nodes that differ the odd ones refuse, and the
others wait to be stopped. The sum is run by the run's own environment, as its command would be: same account, cage,
variables. What is not known (no torch, a rank that never came) lets the gang go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import airyard
from airyard.checks.contract import Thresholds
from airyard.checks.preflight import ways
from airyard.checks.preflight.compute import CHILD, summed
from airyard.checks.preflight.network import communication, fingerprint
from airyard.checks.site_limits import machine_table
from airyard.checks.thresholds import VERSION, generation_of, limits, of_pool
from airyard.core.health.clocks import CHECK as CLOCK
from airyard.core.health.clocks import Reading, clocks_off
from airyard.core.health.facts import CheckStatus
from airyard.core.health.gangs import SURE, Facts, Odd, certified, group_key, odd_ones
from airyard.node.exit_record import boot_id, read_json, write_json_by_rename
from airyard.node.launch import signal_group
from airyard.node.preflight import mark_of

FAULT = "preflight"
CHECK = "net.all_reduce"
JOIN_S = 60.0
"""In which all ranks have to come together: they import torch first."""
SUM_S = 30.0
STOPPED_S = 30.0
"""In which a member whose node is like most is told to stop, because an odd one refused."""
LASTS_MS = 24 * 3_600_000
_SIZES = {"gloo": (4096, 16 << 20), "nccl": (4096, 256 << 20)}
_LOOK_S = 0.05
_MOST_KEPT = 20
_LONGEST = 300
_MOST_CALLED = 16


class GangUnfit(Exception):
    """The gang must not start here; ``fault`` is set where this member's own node failed."""

    def __init__(self, cause: str, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.fault = fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How this member takes part in the sum."""

    python: Path | None
    """The environment's interpreter; None: it has none."""
    environment: Mapping[str, str]
    before_exec: Callable[[], None]
    """What turns a child into the member's: cage, view, account."""
    limits: Thresholds
    """Of this node's GPUs."""


class GangChecks:
    """The checks of one member. ``note`` writes to its log; ``should_stop``: it is to end anyhow."""

    def __init__(
        self, *, node: str, node_folder: Path, note: Callable[[str], None], should_stop: Callable[[], bool]
    ) -> None:
        self._node = node
        self._folder = node_folder / "certificates"
        self._note = note
        self._should_stop = should_stop

    def facts(self, asked: Mapping[str, Any] | None, clock: Reading | None = None) -> dict[str, Any]:
        """Return what READY says beside where the member is met; nothing where no checks were asked for."""
        if not asked:
            return {}
        facts = {
            "node": self._node,
            "boot_id": boot_id(),
            "driver": _read(Path("/sys/module/nvidia/version")),
            "image": os.environ.get("AIRYARD_IMAGE_DIGEST", ""),
            "communication": fingerprint(communication(os.environ, Path("/etc/nccl.conf"), None)),
            "certified": " ".join(self._certified()),
            **(clock.facts() if clock is not None else {}),
        }
        return {"facts": facts, "store_port": _free_port()}

    def check(self, order: Mapping[str, Any], go: Mapping[str, Any], part: Part) -> None:
        """Compare the nodes and sum over them. Raises: GangUnfit. Cost: nothing where all are certified together.

        Called before the command, on a thread that may wait.
        """
        asked = go.get("gang_checks")
        if not asked:
            return
        facts: dict[int, Facts] = dict(enumerate(asked["facts"]))
        member, strict = int(order["member"]), bool((order.get("preflight") or {}).get("strict"))
        self._compare(facts, member, strict=strict)
        self._clocks(facts, member, part.limits, strict=strict)
        limits = mark_of((order.get("preflight") or {}).get("limits"))
        key = group_key(facts, f"{airyard.__version__}/{VERSION}{limits}")
        if certified(facts, key):
            return
        self._call_others(go, member, part.limits, strict=strict)
        if part.python is None:
            return
        began = time.monotonic()
        address = f"tcp://{go['peers'][0]['address']}:{asked['store_port']}"
        on_gpu = all(said.get("driver") for said in facts.values()) and bool(order.get("visible_devices"))
        rank = _Rank(
            part=part, member=member, members=len(facts), store=address, backend="nccl" if on_gpu else "gloo"
        )
        said = rank.run(self._should_stop)
        if said is None:
            self._note(f"preflight: {CHECK} says nothing: {rank.why}")
            return
        self._judge(said, facts, member, strict=strict, limits=part.limits)
        self._note(f"preflight: {CHECK} over {len(facts)} nodes in {time.monotonic() - began:.1f} s")
        self._certify(key)

    # --- alike

    def _compare(self, facts: Mapping[int, Facts], member: int, *, strict: bool) -> None:
        for odd in odd_ones(facts):
            if not strict and odd.fact not in SURE:
                self._note(f"preflight: warn {odd.check}: the run's nodes differ: {odd.message}")
                continue
            self._refuse(odd, member)

    def _clocks(self, facts: Mapping[int, Facts], member: int, limits: Thresholds, *, strict: bool) -> None:
        """Compare the clocks: the order of failures is told by them. Raises: GangUnfit where the pool asked."""
        for limit, counts in (("clock_skew_ms_fail", strict), ("clock_skew_ms_warn", False)):
            off = clocks_off(facts, limits[limit])
            if off is None or off.odd is None:
                continue
            if counts:
                self._refuse(off.odd, member)
            self._note(f"preflight: warn {CLOCK}: {off.odd.message}; next: {off.odd.next_step}")
            return

    def _refuse(self, odd: Odd, member: int) -> None:
        if odd.tied:
            raise GangUnfit("NODE", f"preflight: {odd.check}: {odd.message}; next: {odd.next_step}")
        if member in odd.members:
            text = f"preflight: node {self._node} failed {odd.check}: {odd.message}; next: {odd.next_step}"
            raise GangUnfit("NODE", text, FAULT)
        self._wait_for_stop(f"{odd.check}: another node of this run differs from most")

    def _wait_for_stop(self, why: str) -> None:
        until = time.monotonic() + STOPPED_S
        while not self._should_stop() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        raise GangUnfit("PLATFORM", f"preflight: {why}, and nobody stopped this member")

    def _call_others(self, go: Mapping[str, Any], member: int, limits: Thresholds, *, strict: bool) -> None:
        """Send large packets to some of the others. Raises: GangUnfit where the pool asked and they do not arrive."""
        for result in ways.judged(ways.call(others(go["peers"], member), load=ways.LOAD), limits):
            text = f"{result.check}: {result.message}; next: {result.next_step}"
            if result.status is CheckStatus.FAIL and strict:
                raise GangUnfit("NETWORK", f"preflight: from {self._node} {text}")
            if result.status is not CheckStatus.PASS:
                self._note(f"preflight: warn {text}")

    # --- the sum

    def _judge(
        self,
        said: Mapping[str, Any],
        facts: Mapping[int, Facts],
        member: int,
        *,
        strict: bool,
        limits: Thresholds,
    ) -> None:
        """Judge what the ranks came to. Raises: GangUnfit."""
        if problem := said.get("problem"):
            text = f"preflight: {CHECK}: the sum over the run's nodes did not end: {problem}"
            raise GangUnfit("NETWORK", f"{text}; next: any node or edge may be at fault: test them in pairs")
        wrong = [int(each) for each in said.get("wrong") or ()]
        if wrong and len(wrong) < len(facts):
            # Who got another result than it should is known to all of them.
            if member not in wrong:
                self._wait_for_stop(f"{CHECK}: the sum came out wrong on another node")
            text = f"preflight: node {self._node} failed {CHECK}: a sum over the run's nodes came out wrong on it"
            raise GangUnfit("NODE", f"{text}; next: take it out of use and test its GPUs", FAULT)
        if wrong:
            text = f"preflight: {CHECK}: the sum came out wrong on all {len(facts)} nodes"
            raise GangUnfit("NETWORK", f"{text}; next: test them in pairs")
        found = summed(CHECK, said, limits.get("nodes_gb_s"), limits["small_message_share"])
        for result in found:
            if result.status is not CheckStatus.FAIL:
                continue
            text = f"{result.message}, {result.threshold:g} GB/s are the least"
            if strict:
                raise GangUnfit("NETWORK", f"preflight: {CHECK}: {text}; next: test the nodes in pairs")
            self._note(f"preflight: warn {CHECK}: {text}")

    # --- certificates

    def _certified(self) -> list[str]:
        """Return the sets of nodes that have passed with this one and are not too old; remove what is."""
        now_ms, found = time.time_ns() // 1_000_000, []
        for path in self._folder.glob("gang-*.json"):
            issued = (read_json(path) or {}).get("issued_ms")
            if isinstance(issued, int) and issued <= now_ms < issued + LASTS_MS:
                found.append((issued, path.stem.removeprefix("gang-")))
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
        return [key for _, key in sorted(found, reverse=True)[:_MOST_KEPT]]

    def _certify(self, key: str) -> None:
        with contextlib.suppress(OSError):  # the gang is fit all the same; the next start sums again
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json_by_rename(
                self._folder / f"gang-{key}.json", {"issued_ms": time.time_ns() // 1_000_000}
            )


class _Rank:
    """One rank: a child as the member's command would be, with a deadline."""

    def __init__(self, *, part: Part, member: int, members: int, store: str, backend: str) -> None:
        self._part = part
        self._arguments = [
            "--backend",
            backend,
            "--store",
            store,
            "--rank",
            str(member),
            "--world",
            str(members),
        ]
        self._arguments += ["--sizes", ",".join(str(size) for size in _SIZES[backend])]
        self._came = False
        self.why = ""
        """Why nothing is known."""

    def run(self, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Return what the sum came to; ``problem`` where it did not end after all had come together; None: unknown.

        Raises: GangUnfit where the member is to end.
        """
        joined, told_joined = os.pipe()
        with tempfile.TemporaryFile() as told, open(joined, "rb") as came:
            try:
                child = self._start(told, told_joined)
            except (OSError, subprocess.SubprocessError) as error:
                self.why = f"it could not be started: {error}"
                return None
            finally:
                os.close(told_joined)
            try:
                ended = self._wait(child, came, should_stop)
            finally:
                if child.poll() is None:
                    signal_group(child.pid, "SIGKILL")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(2.0)
            told.seek(0)
            return self._result(told.read(), ended=ended, code=child.returncode)

    def _start(self, told: IO[bytes], joined: int) -> subprocess.Popen[bytes]:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # the child only makes system calls before exec
            return subprocess.Popen(
                [str(self._part.python), str(CHILD), "group", *self._arguments, "--joined", str(joined)],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                env=dict(self._part.environment),
                cwd="/",
                start_new_session=True,
                pass_fds=(joined,),
                preexec_fn=self._part.before_exec,  # noqa: PLW1509  # see above
            )

    def _wait(
        self, child: subprocess.Popen[bytes], joined: IO[bytes], should_stop: Callable[[], bool]
    ) -> bool:
        """Return whether the child ended in time. The pipe has a word once all came together, else its end."""
        until = time.monotonic() + JOIN_S
        while child.poll() is None:
            if should_stop():
                raise GangUnfit("CANCELLED", "the checks of the gang were interrupted")
            if not self._came and select.select([joined], [], [], 0)[0] and os.read(joined.fileno(), 16):
                self._came, until = True, time.monotonic() + SUM_S
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        self._came = self._came or bool(os.read(joined.fileno(), 16))
        return True

    def _result(self, said: bytes, *, ended: bool, code: int | None) -> dict[str, Any] | None:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1][:_LONGEST] if lines else f"exit code {code}"
        if ended and code == 0:
            try:
                found: dict[str, Any] = json.loads(lines[-1])
            except (ValueError, IndexError):
                found = {"skipped": last}
            if "skipped" not in found:
                return found
            self.why = str(found["skipped"])
            return None
        if self._came:
            return {"problem": last if ended else f"it was not done {SUM_S:g} s after all had come together"}
        self.why = last if ended else f"the ranks did not come together within {JOIN_S:g} s"
        return None


def others(peers: Sequence[Mapping[str, Any]], member: int) -> list[str]:
    """Return where members on other machines are met: a few that come next, so that each is called by a few."""
    mine = next((peer.get("machine") for peer in peers if peer.get("member") == member), None)
    after = (
        sorted(peers, key=lambda peer: (int(peer["member"]) <= member, int(peer["member"]))) if mine else []
    )
    places = {peer["machine"]: f"{peer['address']}:{peer['port']}" for peer in reversed(after)}
    return [place for machine, place in reversed(places.items()) if machine != mine][:_MOST_CALLED]


def limits_of(asked: Mapping[str, Any], node_folder: Path) -> Thresholds:
    """Return the limits of the node that checks were asked for: the machine's file, the pool's over it."""
    table = machine_table(node_folder)
    if told := asked.get("limits"):
        table = of_pool(table, told["tables"], told["pool"])
    return limits(table, generation_of(str(asked.get("model") or "")))


def _free_port() -> int:
    with contextlib.suppress(OSError), socket.create_server(("", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
