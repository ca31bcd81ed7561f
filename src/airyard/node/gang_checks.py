"""Checks of a gang's nodes with each other, between GO and the command: are they alike, do they sum rightly together.

Owns: what READY says for it, the ranks of the sum, the certificate of a set of nodes. Must not know: the
server, what follows from a refusal (``core/decide``), how members meet (``meeting.py``).

All members get the same facts with GO and come to the same verdict: of nodes that differ the odd ones refuse, and the
others wait to be stopped. The sum is run by the run's own environment, as its command would be: same account, cage,
variables. What is not known (no torch, a rank that never came) lets the gang go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import airyard
from airyard.checks.contract import Thresholds
from airyard.checks.limit import whose
from airyard.checks.preflight import ways
from airyard.checks.preflight.compute import summed
from airyard.checks.preflight.network import communication, fingerprint
from airyard.checks.site_limits import machine_table
from airyard.checks.thresholds import VERSION, generation_of, limits, of_pool
from airyard.core.health.clocks import CHECK as CLOCK
from airyard.core.health.clocks import Reading, clocks_off
from airyard.core.health.facts import CheckStatus
from airyard.core.health.gang_sums import CHECK, Look, silence_in_words
from airyard.core.health.gangs import SURE, Facts, Odd, are_whole, certified, group_key, odd_ones, rank_owners
from airyard.node.exit_record import boot_id, read_json, write_json_by_rename
from airyard.node.gang_ranks import Part, Ranks, RanksInterrupted
from airyard.node.preflight import mark_of

FAULT = "preflight"
STOPPED_S = 30.0
"""In which a member whose node is like most is told to stop, because an odd one refused."""
LASTS_MS = 24 * 3_600_000
_LOOK_S = 0.05
_MOST_KEPT = 20
_MOST_CALLED = 16


class GangUnfit(Exception):
    """The gang must not start here; ``fault`` is set where this member's own node failed."""

    def __init__(self, cause: str, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.fault = fault


class GangChecks:
    """The checks of one member. ``note`` writes to its log; ``should_stop``: it is to end anyhow."""

    def __init__(
        self, *, node: str, node_folder: Path, note: Callable[[str], None], should_stop: Callable[[], bool]
    ) -> None:
        self._node = node
        self._folder = node_folder / "certificates"
        self._note = note
        self._should_stop = should_stop

    def facts(self, order: Mapping[str, Any], clock: Reading | None = None) -> dict[str, Any]:
        """Return what READY says beside where the member is met; nothing where no checks were asked for."""
        if not (asked := order.get("preflight")):
            return {}
        gpus = _gpus(order)
        facts = {
            "node": self._node,
            "boot_id": boot_id(),
            "driver": _read(Path("/sys/module/nvidia/version")),
            "image": os.environ.get("AIRYARD_IMAGE_DIGEST", ""),
            "communication": fingerprint(communication(os.environ, Path("/etc/nccl.conf"), None)),
            "certified": " ".join(self._certified()),
            "ranks": str(len(gpus) or 1),
            "gpus": hashlib.sha256(",".join(sorted(gpus)).encode()).hexdigest()[:12] if gpus else "",
            "whole": "1" if gpus and set(gpus) == set(asked.get("uuids") or ()) else "",
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
        if gone := facts[member].get("left_out"):
            self._note(
                f"preflight: the server kept not all that this node tells, so this is not compared: {gone}"
            )
        self._compare(facts, member, strict=strict)
        self._clocks(facts, member, part.limits, strict=strict)
        limits = mark_of((order.get("preflight") or {}).get("limits"))
        key = group_key(facts, f"{airyard.__version__}/{VERSION}{limits}")
        if certified(facts, key):
            return
        alone = asked.get("address")  # they are all on one machine
        if not alone:
            self._call_others(go, member, part.limits, strict=strict)
        if part.python is None:
            return
        began = time.monotonic()
        address = f"tcp://{alone or go['peers'][0]['address']}:{asked['store_port']}"
        on_gpu = all(said.get("driver") for said in facts.values()) and bool(order.get("visible_devices"))
        owners = rank_owners(facts)
        ranks = Ranks(
            part=part,
            first=owners.index(member),
            count=owners.count(member),
            world=len(owners),
            store=address,
            backend="nccl" if on_gpu else "gloo",
        )
        try:
            said = ranks.run(self._should_stop)
        except RanksInterrupted:
            raise GangUnfit("CANCELLED", "the checks of the gang were interrupted") from None
        silent = self._silent(ranks.look, facts, owners, member)
        if said is None:
            self._note(f"preflight: {CHECK} says nothing: {ranks.why}{silent}")
            return
        if "problem" in said:
            said["problem"] += silent
        said["wrong"] = [rank for rank in map(int, said.get("wrong") or ()) if rank < len(owners)]
        self._judge(said, facts, order, owners)
        if not alone and are_whole(facts):
            self._speed(said, part.limits, strict=strict)
        self._note(
            f"preflight: {CHECK} over {len(facts)} nodes, {len(owners)} ranks, in {time.monotonic() - began:.1f} s"
        )
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
            most = limits[limit]
            off = clocks_off(facts, most, whose(most))
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
        order: Mapping[str, Any],
        owners: Sequence[int],
    ) -> None:
        """Judge whether the sum ended, and rightly. Raises: GangUnfit."""
        member = int(order["member"])
        if problem := said.get("problem"):
            text = f"preflight: {CHECK}: the sum over the run's nodes did not end: {problem}"
            raise GangUnfit("NETWORK", f"{text}; next: test the nodes in pairs")
        wrong = {owners[rank] for rank in said["wrong"]}
        if wrong and len(wrong) < len(facts):
            # Who got another result than it should is known to all of them.
            if member not in wrong:
                self._wait_for_stop(f"{CHECK}: the sum came out wrong on another node")
            there = _devices_of(said["wrong"], order, owners)
            text = f"preflight: node {self._node} failed {CHECK}: a sum over the run's nodes came out wrong on {there}"
            raise GangUnfit("NODE", f"{text}; next: take it out of use and test its GPUs", FAULT)
        if wrong:
            text = f"preflight: {CHECK}: the sum came out wrong on all {len(facts)} nodes"
            raise GangUnfit("NETWORK", f"{text}; next: test them in pairs")

    def _speed(self, said: Mapping[str, Any], limits: Thresholds, *, strict: bool) -> None:
        """Judge the bus bandwidth between whole nodes. Raises: GangUnfit where the pool asked for checks."""
        for result in summed(CHECK, said, limits.get("nodes_gb_s"), limits["small_message_share"]):
            if result.status is not CheckStatus.FAIL:
                continue
            layer = whose(result.threshold)
            said_by = f" ({layer})" if layer else ""
            text = f"{result.message}, {result.threshold:g} GB/s are the least{said_by}"
            if strict:
                raise GangUnfit("NETWORK", f"preflight: {CHECK}: {text}; next: test the nodes in pairs")
            self._note(f"preflight: warn {CHECK}: {text}")

    @staticmethod
    def _silent(look: Look | None, facts: Mapping[int, Facts], owners: Sequence[int], member: int) -> str:
        """Say who was silent when nothing went on; empty where nobody looked."""
        if look is None:
            return ""
        names = {each: said.get("node", str(each)) for each, said in facts.items()}
        return f": {silence_in_words(look, owners, names, teller=member)}"

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
        table = of_pool(table, told.get("tables"), str(told.get("pool", "")))
    return limits(table, generation_of(str(asked.get("model") or "")))


def _gpus(order: Mapping[str, Any]) -> list[str]:
    return [uuid for uuid in str(order.get("visible_devices") or "").split(",") if uuid]


def _devices_of(wrong: Sequence[int], order: Mapping[str, Any], owners: Sequence[int]) -> str:
    """Say on which of the member's GPUs a sum was wrong."""
    member, devices = int(order["member"]), list(order.get("devices") or ())
    first = owners.index(member)
    mine = [rank - first for rank in wrong if owners[rank] == member]
    if owners.count(member) != len(devices) or not _gpus(order):
        return "it"
    return "its GPU " + ", ".join(str(devices[each]) for each in mine[:8])


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
