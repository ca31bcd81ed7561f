"""The yard as Prometheus reads it: nodes, their health, what was sampled of them, runs that wait and run.

Owns: the names and labels of series, the text form (0.0.4). Must not know: who asks, where samples come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airyard.app.node_views import node_documents
from airyard.app.sampled_series import families
from airyard.core.health.fabric_faults import Blamed
from airyard.core.health.facility import Supply
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.run import RunState
from airyard.core.state import ClusterState

Labels = Mapping[str, str]
Series = tuple[Labels, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What the state does not hold. ``samples``: (node, MLflow's name, value)."""

    samples: Iterable[tuple[str, str, float]] = ()
    events: Iterable[tuple[tuple[str, str, str], int]] = ()
    """((machine, rule, severity), how many)."""
    notices: Mapping[str, int] = field(default_factory=dict)
    """Messages to people by their state."""
    journal_available: bool = True


def metrics_text(state: ClusterState, beside: Beside, now_ms: int) -> str:
    """Return all series. Cost: runs that are not over, and nodes."""
    parts = [*_server(state, beside), *_pools(state, now_ms), *_nodes(state), *_idle_tests(state, now_ms)]
    parts += [
        _family(name, found.kind, found.about, found.series)
        for name, found in sorted(families(beside.samples).items())
    ]
    told = [
        ({"machine": machine, "rule": rule, "severity": severity.lower()}, float(count))
        for (machine, rule, severity), count in beside.events
    ]
    parts.append(
        _family(
            "airyard_health_events_total", "counter", "Events of monitors since the server started.", told
        )
    )
    return "".join(parts)


def _server(state: ClusterState, beside: Beside) -> Iterable[str]:
    yield _family(
        "airyard_journal_available",
        "gauge",
        "1: the journal takes events.",
        [({}, float(beside.journal_available))],
    )
    yield _family("airyard_journal_epoch", "gauge", "Starts and takeovers.", [({}, float(state.epoch))])
    yield _family("airyard_journal_events_total", "counter", "Events committed.", [({}, float(state.seq))])
    notices = {name.lower(): count for name, count in beside.notices.items()}
    yield _family(
        "airyard_notifications",
        "gauge",
        "Messages to people that are kept.",
        [({"state": name}, float(notices.get(name, 0))) for name in ("waiting", "delivered", "given_up")],
    )


def _pools(state: ClusterState, now_ms: int) -> Iterable[str]:
    """Yield what is told by pool. Of a state that nobody is in the value is 0, never missing."""
    documents = node_documents(state, now_ms)
    pools = sorted({str(each["pool"]) for each in documents} | {pool.name for pool in state.policy.pools})
    serves = {str(each["accelerator"]): str(each["pool"]) for each in reversed(documents)}
    runs: Counter[tuple[str, str]] = Counter()
    oldest: dict[str, int] = {}
    for run in state.runs.values():
        if run.state is RunState.ENDED:
            continue
        held = run.attempts[-1].pool if run.state is RunState.ACTIVE and run.attempts else ""
        compute = run.workload.compute
        pool = held or compute.pool or serves.get(compute.accelerator) or next(iter(pools), "")
        runs[pool, run.state.value.lower()] += 1
        if run.state is RunState.QUEUED:
            oldest[pool] = max(oldest.get(pool, 0), now_ms - run.queued_ms)
    devices = Counter((each["pool"], one["state"]) for each in documents for one in each["devices"])
    health = Counter(
        (state.policy.pool_of(node), state.health.get(name, NodeHealth()).state.value)
        for name, node in state.nodes.items()
    )
    away = Counter(each["pool"] for each in documents if not each["alive"])

    def by_state(counts: Mapping[tuple[str, str], int], states: Iterable[str]) -> list[Series]:
        each = list(states)
        return [
            ({"pool": pool, "state": one}, float(counts.get((pool, one), 0)))
            for pool in pools
            for one in each
        ]

    yield _family("airyard_runs", "gauge", "Runs that wait or run.", by_state(runs, ("queued", "active")))
    yield _family(
        "airyard_queue_oldest_seconds",
        "gauge",
        "How long the oldest waiting run has waited.",
        [({"pool": pool}, oldest.get(pool, 0) / 1000) for pool in pools],
    )
    yield _family("airyard_devices", "gauge", "Devices.", by_state(devices, ("free", "booked", "in_use")))
    states = [found.value for found in HealthState]
    yield _family("airyard_nodes", "gauge", "Nodes by their health.", by_state(health, states))
    yield _family(
        "airyard_nodes_away",
        "gauge",
        "Nodes whose machine is not connected.",
        [({"pool": pool}, float(away.get(pool, 0))) for pool in pools],
    )
    yield _family(
        "airyard_breaker_open",
        "gauge",
        "1: no node of the pool is taken out any more.",
        [({"pool": pool}, float(pool in state.breakers)) for pool in pools],
    )
    yield from _places(state, pools)


def _places(state: ClusterState, pools: Iterable[str]) -> Iterable[str]:
    """Yield what is wrong between nodes, and with what they share."""
    between = Counter(
        (pool, one.fault.what) for pool, known in state.sweeps.items() for one in known.standing
    )
    yield _family(
        "airyard_fabric_faults",
        "gauge",
        "Faults between nodes that pair tests found and have not found well since.",
        [
            ({"pool": pool, "what": what.value.lower()}, float(between[pool, what]))
            for pool in pools
            for what in (Blamed.EDGE, Blamed.LEAF, Blamed.RAIL)
        ],
    )
    failing = Counter(one.supply for one in state.facility.incidents if not one.ended_ms)
    yield _family(
        "airyard_facility_incidents",
        "gauge",
        "Places whose power or cooling slows several nodes down now, and storage that several machines fail at.",
        [({"what": supply.value.lower()}, float(failing[supply])) for supply in Supply],
    )


def _nodes(state: ClusterState) -> Iterable[str]:
    held: dict[str, int] = {}
    for _, attempt in state.live_attempts():
        for member in attempt.members:
            if not member.released:
                held[member.node] = held.get(member.node, 0) + len(member.devices)
    up: list[Series] = []
    cordoned: list[Series] = []
    devices: list[Series] = []
    used: list[Series] = []
    health: list[Series] = []
    score: list[Series] = []
    for name, node in sorted(state.nodes.items()):
        machine = state.machines.get(node.machine)
        one = {"node": name}
        told = {**one, "machine": node.machine, "accelerator": node.accelerator}
        up.append((told, float(machine is not None and machine.alive)))
        cordoned.append((one, float(name in state.cordons)))
        devices.append((one, float(len(node.devices))))
        used.append((one, float(held.get(name, 0))))
        found = state.health.get(name)
        now = found.state if found is not None else HealthState.HEALTHY
        health.append(({**one, "state": now.value.lower()}, 1.0))
        score.append((one, found.score if found is not None else 0.0))
    yield _family("airyard_node_up", "gauge", "1: the node's machine is there.", up)
    yield _family("airyard_node_cordoned", "gauge", "1: no new run is placed on it.", cordoned)
    yield _family("airyard_node_devices", "gauge", "Devices it has.", devices)
    yield _family("airyard_node_devices_in_use", "gauge", "Devices that runs hold.", used)
    yield _family("airyard_node_health", "gauge", "1 in the state that the node is in.", health)
    yield _family("airyard_node_health_score", "gauge", "Points that speak against it.", score)


def _idle_tests(state: ClusterState, now_ms: int) -> Iterable[str]:
    """Yield how old the last pass of each node is; one that never passed has none."""
    tested = [(name, state.tests[name]) for name in sorted(state.nodes) if name in state.tests]

    def ages(times: Iterable[tuple[str, int | None]]) -> list[Series]:
        return [({"node": name}, max(now_ms - at_ms, 0) / 1000) for name, at_ms in times if at_ms is not None]

    yield _family(
        "airyard_node_passed_age_seconds",
        "gauge",
        "Since the node passed a test of its own while idle.",
        ages((name, found.passed_ms) for name, found in tested),
    )
    yield _family(
        "airyard_node_paired_age_seconds",
        "gauge",
        "Since it passed its tests in pairs.",
        ages((name, found.paired_ms) for name, found in tested),
    )
    yield _family(
        "airyard_sweeps_total",
        "counter",
        "Sweeps of pair tests over idle nodes, by what they found.",
        [
            ({"pool": pool, "found": what.value.lower()}, float(known.counts.get(what.value, 0)))
            for pool, known in sorted(state.sweeps.items())
            for what in Blamed
        ],
    )


def _family(name: str, kind: str, about: str, series: Iterable[Series]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in series:
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        number = f"{value:g}" if abs(value) < 1e6 else repr(value)
        lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
