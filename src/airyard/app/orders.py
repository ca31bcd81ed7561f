"""What a member is told to do, derived from the records: asking again gives the same orders.

Owns: the bodies of PREPARE, PORT, GO, LIMIT, STOP and LEASE. Must not know: HTTP, or where secrets lie (a function
is given).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airyard.core.cluster import Node
from airyard.core.decide.elsewhere import to_pass_afresh
from airyard.core.decide.grace import grace_of
from airyard.core.errors import AiryardError
from airyard.core.ids import MemberKey
from airyard.core.meeting import LOOPBACK, Meeting
from airyard.core.policy import NodeCommand, PoolPolicy, Preflight
from airyard.core.policy_json import told_checks
from airyard.core.run import Attempt, Member, Order, Run, StopReason, TrackingState, gang_addresses
from airyard.core.scheduling.nodes import starts_as
from airyard.core.tracking_alias import alias_of
from airyard.core.workload import Workload

PREPARE_NUMBER = 1
LEASE_NUMBER = 0
"""LEASE is not counted: every answer of a leader that grants leases begins with it, before GO and anything else."""
ENVIRONMENT_TIMEOUT_S = 1800
Usual = Callable[[Node, str, str], Mapping[str, Any]]
"""(node, pool, profile) -> what checks are told of the other nodes."""
SecretLookup = Callable[[Run, str, str], tuple[str, bool]]
"""(run, scope, key) -> (value, whether it is masked). Raises: NotFound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEnvironment:
    """One base of the yard's configuration."""

    python: str
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDesk:
    """Writes orders. ``tracking_uri`` is where user code reaches MLflow; ``bases`` are by version.

    ``yard`` is the yard's id, by which a run that MLflow does not know yet is named.
    """

    bases: Mapping[str, BaseEnvironment]
    secret: SecretLookup
    tracking_uri: str
    yard: str = ""
    allow_root: bool = False
    """Whether a run's Unix account may be root."""
    asks_for_account: Callable[[str], bool] = lambda pool: False
    """Whether runs in a pool must have a Unix account now: one that was queued before that has none."""
    command_token: Callable[[MemberKey], str] = lambda key: ""
    """What a member's user code tells MLflow who it is by; it has no other token."""

    def orders(
        self,
        run: Run,
        attempt: Attempt,
        member: Member,
        node: Node | None,
        after: int,
        pool: PoolPolicy | None = None,
        usual: Usual = lambda node, pool, profile: {},
    ) -> list[dict[str, Any]]:
        """Return the member's orders with numbers above ``after``, in order; ``pool`` has its prolog and epilog."""
        out: list[dict[str, Any]] = []
        if after < PREPARE_NUMBER:
            prepare = self._prepare(run, attempt, member, node)
            if pool is not None and not run.unix_user and self.asks_for_account(pool.name):
                prepare["problem"] = (
                    f"pool {pool.name} asks for a Unix account of its own since this run was submitted, and it has "
                    "none: submit it again"
                )
            afresh = to_pass_afresh(run, attempt.number)
            preflight = _preflight(node, pool, afresh, usual)
            out.append({**prepare, **_around(run, member, pool), "preflight": preflight})
        for order in attempt.orders:
            if order.number > after:
                out.append(self._order(run, attempt, member, order))
        return out

    def _order(self, run: Run, attempt: Attempt, member: Member, order: Order) -> dict[str, Any]:
        body: dict[str, Any] = {"number": order.number, "kind": order.kind, **dict(order.data)}
        if order.kind == "GO":
            body.update(self._tracking(attempt, member))
            body.update(_meeting(attempt))
        elif order.kind == "STOP":
            told = body["reason"] != StopReason.MEMBER_FAILED.value
            body["signal"] = run.workload.preemption.signal if told else "SIGTERM"
        elif order.kind == "LIMIT":
            body["attempt_timeout_s"] = body["attempt_timeout_s"] or None
        return body

    def _tracking(self, attempt: Attempt, member: Member) -> dict[str, Any]:
        tracking = attempt.tracking
        if tracking.state in (TrackingState.OFF, TrackingState.CLOSED):
            return {"tracking": None, "tracking_deferred": False}
        deferred = tracking.state is TrackingState.DEFERRED
        ids = alias_of(self.yard, str(attempt.key)) if deferred else tracking
        opened = {"uri": self.tracking_uri, "run_id": ids.run_id, "experiment_id": ids.experiment_id}
        if token := self.command_token(attempt.member_key(member.index)):
            opened["token"] = token
        return {"tracking": opened, "tracking_deferred": deferred}

    def _prepare(self, run: Run, attempt: Attempt, member: Member, node: Node | None) -> dict[str, Any]:
        workload = run.workload
        compute = workload.compute
        simulated = node.simulated if node else run.simulated
        secrets, masked, problem = self._secrets(run, member)
        environment, unknown = self._environment(run)
        problem = problem or unknown or _switch_problem(run, node)
        return {
            "number": PREPARE_NUMBER,
            "kind": "PREPARE",
            "run_id": run.run_id,
            "attempt": attempt.number,
            "member": member.index,
            "members": len(attempt.members),
            "command": workload.command_of(member.index),
            "code": {"tree_hash": workload.code.tree_hash, "directory_name": workload.code.directory_name}
            if workload.code
            else None,
            "environment": environment,
            "variables": workload.env_variables_of(member.index),
            "secrets": secrets,
            "mask": masked,
            "problem": problem,
            "parameters": json.loads(workload.parameters_json) if workload.parameters_json else None,
            "devices": list(member.devices),
            "visible_devices": _visible(member, node),
            "local_world_size": compute.local_world_size,
            "world_size": compute.local_world_size * len(attempt.members),
            "simulated": simulated,
            "rendezvous_port": attempt.port,
            "attempt_timeout_s": workload.attempt_timeout_s,
            "limits": _limits(run, member, node),
            "run_as": {"user": run.unix_user, "allow_root": self.allow_root} if run.unix_user else None,
            "stop": {"signal": workload.preemption.signal, "grace_s": grace_of(run)},
            "hang": workload.hang.to_json(),
        }

    def _secrets(self, run: Run, member: Member) -> tuple[dict[str, str], list[str], str | None]:
        values: dict[str, str] = {}
        masked: list[str] = []
        for name, reference in run.workload.secrets_of(member.index).items():
            scope, _, key = reference.partition("/")
            try:
                value, mask = self.secret(run, scope, key)
            except AiryardError as error:
                return {}, [], f"secret {reference} of variable {name}: {error.message}"
            values[name] = value
            if mask:
                masked.append(value)
        return values, masked, None

    def _environment(self, run: Run) -> tuple[dict[str, Any], str | None]:
        order = environment_order(run.workload, self.bases)
        if order is None:
            version, known = run.workload.environment.version, ", ".join(sorted(self.bases)) or "none"
            return {}, f"environment version {version!r} is not defined in this yard (defined: {known})"
        return order, None


def _switch_problem(run: Run, node: Node | None) -> str | None:
    """Say what a runner of before ``run_as`` must be told: it would start the command as its agent's own account."""
    if node is None or starts_as(node.run_as, run.unix_user):
        return None
    return f"the agent of node {node.name} cannot start a member as Unix user {run.unix_user}"


def lease_order(seconds: float) -> dict[str, Any]:
    """Return what an answer to a poll grants: the member may run for so long from when the poll was sent."""
    return {"number": LEASE_NUMBER, "kind": "LEASE", "seconds": seconds}


def _meeting(attempt: Attempt) -> dict[str, Any]:
    """Return where the members meet; nothing with a runner that says nothing of it.

    A gang on one machine has its nodes checked together only where they have GPUs: nothing else is between them.
    """
    meetings = [member.meeting for member in attempt.members]
    if len({member.machine for member in attempt.members}) == 1:
        have_gpus = all(meeting is not None and dict(meeting.facts).get("gpus") for meeting in meetings)
        checks = _gang_checks(meetings) if have_gpus and len(meetings) > 1 else {}
        return {"gang_checks": {**checks["gang_checks"], "address": LOOPBACK}} if checks else {}
    if None in meetings:
        return {}
    peers = [
        {"member": member.index, "machine": member.machine, "address": address, "port": meeting.port}
        for member, meeting, address in zip(
            attempt.members, meetings, gang_addresses(attempt.members), strict=True
        )
        if meeting is not None
    ]
    return {
        "peers": peers,
        "rdma": all(meeting is not None and meeting.rdma for meeting in meetings),
        **_gang_checks(meetings),
    }


def _gang_checks(meetings: list[Meeting | None]) -> dict[str, Any]:
    """Return what members need to compare their nodes and test them together; nothing unless all were asked to."""
    facts = [dict(meeting.facts) if meeting is not None else {} for meeting in meetings]
    first = meetings[0]
    if not all(facts) or first is None or not first.store_port:
        return {}
    return {"gang_checks": {"store_port": first.store_port, "facts": facts}}


def environment_order(workload: Workload, bases: Mapping[str, BaseEnvironment]) -> dict[str, Any] | None:
    """Return the ``environment`` of a PREPARE order; None for a version that is not among ``bases``."""
    wanted = workload.environment
    base = bases.get(wanted.version)
    if base is None:
        return None
    return {
        "version": wanted.version,
        "python": base.python,
        "base_packages": list(base.packages),
        "dependencies": list(wanted.dependencies),
        "timeout_s": workload.timeouts.environment_s or ENVIRONMENT_TIMEOUT_S,
    }


def _around(run: Run, member: Member, pool: PoolPolicy | None) -> dict[str, Any]:
    """Return what the pool runs on the node before and after the member, and what these commands are told."""
    if pool is None or (pool.prolog is None and pool.epilog is None):
        return {"prolog": None, "epilog": None}
    around = {"node": member.node, "pool": pool.name, "owner": run.owner, "project": run.project}
    return {"prolog": _command(pool.prolog), "epilog": _command(pool.epilog), "around": around}


def _preflight(
    node: Node | None, pool: PoolPolicy | None, afresh: Sequence[str], usual: Usual
) -> dict[str, Any] | None:
    """Return which checks the node passes first. ``strict``: the pool asked, so that every failure counts.

    ``afresh``: those that count whatever the node passed before, for another one has just failed them.
    """
    if node is None:
        return None
    asked = pool.preflight if pool is not None else Preflight.AUTO
    real = node.model is not None and not node.simulated
    profile = asked if asked is not Preflight.AUTO else Preflight.FAST if real else Preflight.OFF
    if profile is Preflight.OFF:
        return None
    uuids = [device.uuid for device in node.devices] if real else []
    return {
        "profile": profile.value,
        "strict": asked is not Preflight.AUTO,
        "uuids": uuids,
        **({"afresh": list(afresh)} if afresh else {}),
        "model": node.model if real else "",
        **({**told_checks(pool), **usual(node, pool.name, profile.value)} if pool is not None else {}),
    }


def _command(command: NodeCommand | None) -> dict[str, Any] | None:
    if command is None:
        return None
    return {"command": command.command, "timeout_s": command.timeout_ms / 1000}


def _visible(member: Member, node: Node | None) -> str:
    """Return CUDA_VISIBLE_DEVICES: the real devices by UUID, nothing on simulated nodes and CPU slots."""
    if node is None or node.simulated or node.model is None:
        return ""
    uuids = {device.index: device.uuid for device in node.devices}
    return ",".join(uuids.get(index, str(index)) for index in member.devices)


def _limits(run: Run, member: Member, node: Node | None) -> dict[str, Any]:
    """Memory and cores of a member: what was asked; on real GPU nodes memory is else the devices' share.

    Cores are capped only when asked for: an idle core helps nobody.
    """
    compute = run.workload.compute
    memory = compute.memory_bytes
    if memory is None and node is not None and node.model is not None and not node.simulated and node.devices:
        memory = int(node.memory_bytes * len(member.devices) / len(node.devices))
    return {"memory_bytes": memory, "cpus": compute.cpus, "shm_bytes": compute.shm_bytes}
