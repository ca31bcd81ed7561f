"""The yard as Prometheus reads it: nodes, their health, what was sampled of them, runs that wait and run.

Owns: the names and labels of series, the text form (0.0.4). Must not know: who asks, where samples come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from airyard.core.health.states import HealthState
from airyard.core.run import RunState
from airyard.core.state import ClusterState

Labels = Mapping[str, str]
Series = tuple[Labels, float]
_GPU = re.compile(r"gpu_(\d+)_(.+)")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")


def metrics_text(
    state: ClusterState,
    samples: Iterable[tuple[str, str, float]],
    events: Iterable[tuple[tuple[str, str, str], int]],
) -> str:
    """Return all series. ``samples``: (node, MLflow's name, value); ``events``: ((machine, rule, severity), count)."""
    parts = [*_yard(state), *_nodes(state), *_sampled(samples)]
    told = [
        ({"machine": machine, "rule": rule, "severity": severity.lower()}, float(count))
        for (machine, rule, severity), count in events
    ]
    parts.append(
        _family(
            "airyard_health_events_total", "counter", "Events of monitors since the server started.", told
        )
    )
    return "".join(parts)


def _yard(state: ClusterState) -> Iterable[str]:
    runs = dict.fromkeys((RunState.QUEUED, RunState.ACTIVE), 0)
    for run in state.runs.values():
        if run.state in runs:
            runs[run.state] += 1
    yield _family(
        "airyard_runs",
        "gauge",
        "Runs that wait or run.",
        [({"state": found.value.lower()}, float(count)) for found, count in runs.items()],
    )
    breakers: list[Series] = [({"pool": pool}, 1.0) for pool in sorted(state.breakers)]
    yield _family("airyard_breaker_open", "gauge", "1: no node of the pool is taken out any more.", breakers)


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


def _sampled(samples: Iterable[tuple[str, str, float]]) -> Iterable[str]:
    families: dict[str, list[Series]] = {}
    for node, name, value in samples:
        gpu = _GPU.fullmatch(name)
        labels = {"node": node, "gpu": gpu[1]} if gpu else {"node": node}
        title = f"airyard_gpu_{gpu[2]}" if gpu else f"airyard_node_{name}"
        families.setdefault(_NO_NAME.sub("_", title), []).append((labels, value))
    for name in sorted(families):
        yield _family(name, "gauge", "As sampled for MLflow, while a run is on the node.", families[name])


def _family(name: str, kind: str, about: str, series: Iterable[Series]) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in series:
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value:g}" if abs(value) < 1e6 else f"{name}{{{inner}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
