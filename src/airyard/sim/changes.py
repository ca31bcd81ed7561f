"""What people change after submit in a simulated yard: runs of any state, nodes that are set aside, what is declared.

Owns: which changes are asked for, and when. Must not know: which of them are possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airyard.core import events
from airyard.core.commands import DeclarePolicy, EndReservation, MakeReservation, UpdateRun
from airyard.core.decide import Reserved
from airyard.core.errors import AiryardError
from airyard.core.policy import HOUR_MS, NodeCommand, Policy, PoolPolicy, ProjectPolicy, Reservation, Share
from airyard.core.run import Run
from airyard.core.workload import Priority
from airyard.sim.people import BAD_MOMENTS, PROJECTS, People
from airyard.sim.setting import Setting
from airyard.sim.truth import Truth

_SHARE = Share(pool="GPU_8xH100", guarantee=8)
_LOOK = NodeCommand(command="look-at-the-node", timeout_ms=5_000)
_POOLS = tuple(
    PoolPolicy(name=kind, accelerator=kind, prolog=_LOOK, epilog=_LOOK)
    for kind in ("CPU", "GPU_1xA10", "GPU_8xH100")
)
"""With both commands, or a prolog and an epilog could not fail."""
POLICIES = (
    Policy(pools=_POOLS),
    Policy(pools=_POOLS, half_life_ms=HOUR_MS),
    Policy(pools=_POOLS, projects=(ProjectPolicy(name="nlp", shares=(_SHARE,), critical=("*",)),)),
    Policy(),
)


class Changes:
    """Everybody's second thoughts."""

    def __init__(self, setting: Setting, people: People, truth: Truth, nodes: Sequence[str]) -> None:
        self._setting = setting
        self._people = people
        self._truth = truth
        self._nodes = nodes
        chance = setting.chance
        self._pace_ms = chance.pick((5_000, 20_000))
        self._updates: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: {"priority": chance.pick(tuple(Priority))},
            lambda: {"project": chance.pick(PROJECTS)},
            lambda: {"attempt_timeout_s": chance.pick((-1, 0, 10, 30, 120, 600))},
            lambda: {"held": True},
            lambda: {"held": False},
            lambda: {"begin_ms": chance.pick((0, self._now_ms() + chance.between(-1_000, 40_000)))},
            lambda: {"held": False, "begin_ms": 0, "attempt_timeout_s": 60},
        )

    def _now_ms(self) -> int:
        return self._setting.time.now_ms()

    def begin(self) -> None:
        """Declare the pools; then change something every now and then, until the yard is healed."""
        self._people.ask(DeclarePolicy(policy=POLICIES[0], by="op"))
        self._again()

    def _again(self) -> None:
        chance = self._setting.chance
        self._setting.later(chance.between(500, 2 * self._pace_ms), self._change)

    def witness(self, event: events.Event) -> None:
        """Change a run just when something happens to it."""
        chance = self._setting.chance
        if not chance.healed and isinstance(event, BAD_MOMENTS) and chance.roll(0.03):
            run_id = event.run_id
            self._setting.later(
                chance.between(0, 6), lambda: self._update(self._truth.state.runs.get(run_id))
            )

    def _change(self) -> None:
        chance = self._setting.chance
        if chance.healed:
            return
        if chance.roll(0.05):
            self._people.ask(DeclarePolicy(policy=chance.pick(POLICIES), by="op"))
        elif chance.roll(0.25):
            self._reserve()
        elif self._truth.state.runs:
            self._update(chance.pick(list(self._truth.state.runs.values())))
        self._again()

    def _update(self, run: Run | None) -> None:
        if run is not None and not self._setting.chance.healed:
            fields = self._setting.chance.pick(self._updates)()
            self._people.update(UpdateRun(run_id=run.run_id, by="ada", **fields), run.workload.command)

    def release_all(self) -> None:
        """Let every held run go: nobody else would."""
        for run in list(self._truth.state.runs.values()):
            if run.held:
                release = UpdateRun(run_id=run.run_id, by="ada", held=False)
                self._people.update(release, run.workload.command)

    def _reserve(self) -> None:
        chance = self._setting.chance
        from_ms = self._now_ms() + chance.pick((0, 0, 5_000, 50_000))
        maintenance = chance.roll(0.6)
        wanted = Reservation(
            reservation_id=0,
            nodes=tuple(chance.pick(self._nodes) for _ in range(chance.between(1, 3))),
            from_ms=from_ms,
            to_ms=from_ms + chance.pick((1_000, 30_000, 100_000, 200_000)),
            by="op",
            maintenance=maintenance,
            project=None if maintenance else chance.pick(PROJECTS),
        )

        def then(answer: Any) -> None:
            word = "refused" if isinstance(answer, AiryardError) else "done"
            chance.seen[f"people: reserve {word}"] += 1
            if isinstance(answer, Reserved) and chance.roll(0.3):
                end = EndReservation(reservation_id=answer.reservation.reservation_id, by="op")
                self._setting.later(chance.between(0, 60_000), lambda: self._people.ask(end))

        self._people.ask(MakeReservation(reservation=wanted, evict=chance.roll(0.5)), then)
