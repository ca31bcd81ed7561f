"""Who holds how much of which pool, against what was declared: guarantees, ceilings, limits of users, fair shares.

Owns: the counters of devices in use and the questions that quotas ask. Must not know: nodes, the queue.
Changes between ``mark`` and ``rollback`` are undone by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from airyard.core.policy import Policy, PoolOrder, ProjectPolicy, Share, UserLimits
from airyard.core.scheduling.plan import Running, Used, Waiting

K = TypeVar("K")
BEST_EFFORT_RANK = 2
NO_LIMITS = UserLimits()


class Shares:
    """Devices in use. ``capacity`` says how many devices the open nodes of a pool have."""

    def __init__(self, policy: Policy, capacity: Callable[[str], int]) -> None:
        self._capacity = capacity
        self._log: list[tuple[str, str, str, int, int]] | None = None
        self.held: dict[tuple[str, str], int] = {}
        """(project, pool) → devices."""
        self.firm: dict[tuple[str, str], int] = {}
        """The same without BEST_EFFORT: what counts against a guarantee."""
        self.going: dict[tuple[str, str], int] = {}
        """Of those, the devices of attempts that are on their way out."""
        self.of_rank: dict[tuple[str, int], int] = {}
        """(pool, rank) → devices."""
        self.users: dict[tuple[str, str], tuple[int, int]] = {}
        """(project, user) → runs, devices."""
        self.decayed: dict[tuple[str, str], float] = {}
        self.declare(policy)

    def declare(self, policy: Policy) -> None:
        """Take a new policy in."""
        self.policy = policy
        self.projects: dict[str, ProjectPolicy] = {project.name: project for project in policy.projects}
        self._guarantees: dict[str, int] = {}
        for project in policy.projects:
            for share in project.shares:
                self._guarantees[share.pool] = self._guarantees.get(share.pool, 0) + share.guarantee
        self._means: dict[str, float] = {}
        self._shares: dict[tuple[str, str], Share] = {}
        self._scaled: dict[tuple[str, str], int] = {}

    def used_so_far(self, usage: Iterable[Used]) -> None:
        """Take in the decayed usage as of now."""
        self.decayed = {(used.project, used.pool): used.decayed for used in usage}
        self._means.clear()

    def add(self, running: Running) -> None:
        """Count an attempt's devices."""
        self._count(running.project, running.pool, running.owner, running.rank, running.devices, 1)
        self._going(running, running.devices)

    def remove(self, running: Running) -> None:
        """Count them no more."""
        self._count(running.project, running.pool, running.owner, running.rank, -running.devices, -1)
        self._going(running, -running.devices)

    def _going(self, running: Running, devices: int) -> None:
        if running.stopping and running.rank != BEST_EFFORT_RANK:
            _add(self.going, (running.project, running.pool), devices)

    def start(self, want: Waiting, pool: str) -> None:
        """Count a run that the plan in the making starts, or for which it has others leave."""
        self._count(want.project, pool, want.owner, want.rank, want.devices, 1)

    def _count(self, project: str, pool: str, owner: str, rank: int, devices: int, runs: int) -> None:
        if self._log is not None:
            self._log.append((project, pool, owner, rank, devices if runs > 0 else -devices))
        _add(self.held, (project, pool), devices)
        if rank != BEST_EFFORT_RANK:
            _add(self.firm, (project, pool), devices)
        had_runs, had_devices = self.users.get((project, owner), (0, 0))
        self.users[project, owner] = had_runs + runs, had_devices + devices
        if self.users[project, owner] == (0, 0):
            del self.users[project, owner]
        _add(self.of_rank, (pool, rank), devices)

    def mark(self) -> None:
        """Begin to note what a plan does. Every noted change is a start."""
        self._log = []

    def rollback(self) -> None:
        """Undo everything since ``mark``."""
        log, self._log = self._log or [], None
        for project, pool, owner, rank, devices in log:
            self._count(project, pool, owner, rank, -devices, -1)

    # Questions.

    def share(self, project: str, pool: str) -> Share:
        """Return the declared share, or the plain one."""
        share = self._shares.get((project, pool))
        if share is None:
            found = self.projects.get(project)
            share = found.share_of(pool) if found is not None else Share(pool=pool)
            self._shares[project, pool] = share
        return share

    def guarantee(self, project: str, pool: str) -> int:
        """Return the devices guaranteed; scaled down when the pool's open nodes no longer cover all guarantees."""
        found = self._scaled.get((project, pool))
        if found is None:
            found = self.share(project, pool).guarantee
            total = self._guarantees.get(pool, 0)
            if found and (capacity := self._capacity(pool)) < total:
                found = found * capacity // total
            self._scaled[project, pool] = found
        return found

    def nodes_changed(self) -> None:
        """Note that pools may have other capacities now."""
        self._scaled.clear()

    def within_guarantee(self, want: Waiting, pool: str) -> bool:
        """True when the run, placed, would still be within its project's guarantee. BEST_EFFORT never is."""
        return self.guaranteed(want.project, pool, want.rank, want.devices)

    def guaranteed(self, project: str, pool: str, rank: int, devices: int) -> bool:
        """True when so many devices more of this class would still be within the project's guarantee."""
        if rank == BEST_EFFORT_RANK or project not in self.projects:
            return False
        guarantee = self.guarantee(project, pool)
        return guarantee > 0 and self.firm.get((project, pool), 0) + devices <= guarantee

    def limits(self, project: str) -> bool:
        """True when a run of the project may be refused by a ceiling or a limit of its user."""
        found = self.projects.get(project)
        return found is not None and (
            found.per_user != NO_LIMITS or any(share.ceiling is not None for share in found.shares)
        )

    def beyond(self, project: str, pool: str) -> int:
        """Return how many devices a project has beyond its guarantee, without those that it is leaving."""
        key = project, pool
        return self.firm.get(key, 0) - self.going.get(key, 0) - self.guarantee(project, pool)

    def over_ceiling(self, want: Waiting, pool: str) -> tuple[int, int] | None:
        """Return (held, ceiling) when the run would take its project over the ceiling of the pool."""
        ceiling = self.share(want.project, pool).ceiling
        held = self.held.get((want.project, pool), 0)
        return (held, ceiling) if ceiling is not None and held + want.devices > ceiling else None

    def over_user_limit(self, want: Waiting) -> tuple[str, int, int] | None:
        """Return (what, used, limit) when the run would take its user over what the project allows one."""
        project = self.projects.get(want.project)
        if project is None:
            return None
        runs, devices = self.users.get((want.project, want.owner), (0, 0))
        limits = project.per_user
        if limits.running is not None and runs + 1 > limits.running:
            return "runs", runs, limits.running
        if limits.devices is not None and devices + want.devices > limits.devices:
            return "devices", devices, limits.devices
        return None

    def over_served(self, project: str, pool: str, order: PoolOrder) -> float:
        """Return how well a project has been served: its decayed usage per weight over the mean of all.

        1 is its fair share. Under ``FAIR`` every project stands for itself and the mean is left out, since only the
        order counts. Else declared projects are compared, and all others together count as one of weight 1; without
        declared projects everybody is at 1. What the plan in the making starts does not count: it has used nothing yet.
        """
        if order is PoolOrder.FAIR:
            return self.decayed.get((project, pool), 0.0) / max(self.share(project, pool).weight, 1e-9)
        if order is PoolOrder.FIFO or not self.projects:
            return 1.0
        mean = self._means.get(pool)
        if mean is None:
            mean = self._means[pool] = self._mean(pool)
        return self._served(project, pool) / mean if mean > 0 else 1.0

    def _served(self, project: str, pool: str) -> float:
        if project in self.projects:
            return self.decayed.get((project, pool), 0.0) / max(self.share(project, pool).weight, 1e-9)
        return sum(
            used for (name, of), used in self.decayed.items() if of == pool and name not in self.projects
        )

    def _mean(self, pool: str) -> float:
        weights = sum(self.share(name, pool).weight for name in self.projects)
        undeclared = {name for name, of in self.decayed if of == pool and name not in self.projects}
        weights += 1.0 if undeclared else 0.0
        used = sum(amount for (_, of), amount in self.decayed.items() if of == pool)
        return used / weights if weights else 0.0


def _add(counts: dict[K, int], key: K, by: int) -> None:
    value = counts.get(key, 0) + by
    if value:
        counts[key] = value
    else:
        counts.pop(key, None)
