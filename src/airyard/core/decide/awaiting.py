"""What nodes that are not well wait for, as the yard stands.

Owns: what of the yard that depends on: pools, breakers, drains. Must not know: which state waits for what
(``core/health/waiting``).
"""

from __future__ import annotations

from airyard.core.health.budget import Fleet
from airyard.core.health.states import HealthState
from airyard.core.health.waiting import Wait, waits
from airyard.core.state import ClusterState


class Awaiting:
    """Answers for nodes of one state of the yard. Each pool is counted once, and only when it matters."""

    def __init__(self, state: ClusterState, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._fleets: dict[str, Fleet] = {}

    def of(self, name: str) -> Wait | None:
        """Return what a node waits for; None when it is well, or goes on at once."""
        state = self._state
        health, node = state.health.get(name), state.nodes.get(name)
        if health is None or node is None:
            return None
        pool = state.policy.pool_of(node)
        cordon = state.cordons.get(name)
        drain = cordon.drain if cordon is not None else None
        empty_by_ms = drain.deadline_ms if drain is not None else None
        return waits(
            name, health, self._now_ms, lambda: self._mended(pool), pool=pool, empty_by_ms=empty_by_ms
        )

    def _mended(self, pool: str) -> Fleet:
        """Return what counts before a remedy. Cost: nodes, once a pool."""
        if pool not in self._fleets:
            state = self._state
            nodes = [name for name, node in state.nodes.items() if state.policy.pool_of(node) == pool]
            known = [state.health[name].state for name in nodes if name in state.health]
            self._fleets[pool] = Fleet(
                nodes=len(nodes),
                taken_out=0,
                working=0,
                remedies=known.count(HealthState.RESETTING),
                breaker_open=pool in state.breakers,
            )
        return self._fleets[pool]
