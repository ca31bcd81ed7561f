"""What people do in a simulated yard: submit, cancel at bad moments, resume.

Owns: the mix of workloads and the clients' patience. Must not know: how the yard works inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airyard.core import events
from airyard.core.commands import Command, SubmitRun, UpdateRun
from airyard.core.decide import Submitted
from airyard.core.errors import AiryardError, Unavailable
from airyard.core.run import Outcome
from airyard.core.workload import (
    Compute,
    HangAction,
    HangRules,
    PreemptionRules,
    Priority,
    Timeouts,
    Tracking,
    Workload,
)
from airyard.sim.network import AWAY, Answer, Network
from airyard.sim.setting import Setting

if TYPE_CHECKING:
    from airyard.sim.server import SimServer

SHAPES = (
    ("CPU", 1), ("CPU", 2), ("GPU_1xA10", 1), ("GPU_1xA10", 2), ("GPU_2xH100", 1), ("GPU_4xH100", 2),
    ("GPU_8xH100", 1), ("GPU_8xH100", 2), ("GPU_1xH100", 1),
)  # fmt: skip
IMPOSSIBLE = (("GPU_1xB200", 1), ("GPU_8xH100", 99))
COMMANDS = (
    "for={d} exit=0",
    "for={d} exit=0 saves=900 term=clean",
    "for={d} exit=0 child=yes",
    "for={d} exit=1 only=0",
    "for={d} exit=1 until=1",
    "for={d} exit=1",
    "for={d} exit=127",
    "for={d} signal=11 only=1",
    "for={d} exit=137 oom=yes until=2",
    "for={d} prepare=slow term=ignore",
    "for={d} prepare=broken",
    "for={d} prepare=download until=2",
    "for={d} prepare=unfit until=1",
    "for={d} prepare=dirty until=1",
    "for={d} port=taken",
    "for={d} exit=1 port=clash until=1",
    "for=ever term=clean saves=2500",
    "for=ever term=ignore",
    "for=ever term=die child=yes",
)
LASTING = ("for={d} exit=0 saves=900", "for={d} exit=0 child=yes", "for=ever term=clean saves=2500")
DURATIONS_MS = (200, 3_000, 20_000, 90_000)
LASTING_MS = (60_000, 90_000, 150_000)
BAD_MOMENTS = (
    events.AttemptPlaced, events.MemberPreparing, events.MemberReady, events.AttemptReleased,
    events.MemberStarted, events.MemberExited, events.MemberLost, events.StopOrdered, events.RunQueuedAgain,
)  # fmt: skip
RESUMES = 3
PROJECTS = ("default", "nlp")


class People:
    """Everybody who talks to the server.

    ``busy`` counts requests that have not been answered for good. ``endless`` and ``hung`` name runs that only a cancel
    ends: their command never does, or a runner of theirs says nothing any more.
    """

    def __init__(self, setting: Setting, network: Network, *, lasting: bool) -> None:
        """``lasting``: most of what is submitted runs for longer than a lease."""
        self._setting = setting
        self._network = network
        self._durations_ms = LASTING_MS if lasting else DURATIONS_MS
        self._commands = LASTING if lasting else COMMANDS
        self._limits_s = (None, None, None, 60) if lasting else (None, 15, 60)
        self._resumes = 0
        self.busy = 0
        self.endless: set[int] = set()
        self.hung: set[int] = set()
        self.tokens: tuple[str, ...] = ()
        """With which some runs are submitted."""

    def arrive(self, count: int, within_ms: int) -> None:
        """Spread submissions over a time."""
        for number in range(count):
            workload = self._workload()
            after_ms = self._setting.chance.between(0, within_ms)
            command = SubmitRun(
                owner="ada",
                workload=workload,
                idempotency_key=f"key-{number}",
                held=self._setting.chance.roll(0.1),
                begin_ms=self._begin_ms(after_ms),
            )
            self.busy += 1
            self._setting.later(after_ms, partial(self._submit, command))

    def _begin_ms(self, after_ms: int) -> int:
        chance = self._setting.chance
        return self._setting.time.now_ms() + after_ms + chance.between(1, 60_000) if chance.roll(0.1) else 0

    def _workload(self) -> Workload:
        chance = self._setting.chance
        impossible = chance.roll(0.04)
        accelerator, nodes = chance.pick(IMPOSSIBLE if impossible else SHAPES)
        command = chance.pick(self._commands).format(d=chance.pick(self._durations_ms))
        compute = Compute.of(accelerator, nodes=nodes)
        priority = chance.pick((Priority.CRITICAL, Priority.NORMAL, Priority.NORMAL, Priority.BEST_EFFORT))
        retries = chance.between(0, 2)
        return Workload(
            experiment="sim",
            command=command,
            compute=_with_priority(compute, priority),
            max_retries=retries,
            attempt_timeout_s=chance.pick(self._limits_s),
            timeouts=Timeouts(
                queue_s=chance.pick((None, None, 120)),
                environment_s=chance.pick((None, None, 40)),
                total_s=chance.pick((None, None, None, 150)),
            ),
            preemption=PreemptionRules(grace_s=chance.pick((None, 0, 5))),
            hang=HangRules(action=tuple(HangAction)[retries]),
            tracking=Tracking(enabled=chance.roll(0.7)),
            project=chance.pick((None, *PROJECTS)),
        )

    def _submit(self, command: SubmitRun) -> None:
        def then(answer: Any) -> None:
            if isinstance(answer, Submitted):
                if answer.existing:
                    self._setting.chance.seen["people: submit found its own run"] += 1
                if "for=ever" in command.workload.command and command.workload.attempt_timeout_s is None:
                    self.endless.add(answer.run_id)
            else:
                self._setting.chance.seen["people: submit refused"] += 1

        if self.tokens and self._setting.chance.roll(0.5):
            command = replace(command, token_id=self._setting.chance.pick(self.tokens))
        self._persist(lambda server, answer: server.ask(command, answer), then)

    def _persist(self, request: Callable[[SimServer, Answer], None], then: Answer) -> None:
        """Ask until there is an answer that is not "later"; the caller has counted itself busy."""

        def done(answer: Any) -> None:
            if answer is AWAY or isinstance(answer, Unavailable):
                self._setting.later(
                    self._setting.chance.between(500, 3_000), lambda: self._persist(request, then)
                )
                return
            self.busy -= 1
            then(answer)

        self._network.call("people", request, done, timeout_ms=10_000)

    def cancel(self, run_id: int) -> None:
        """Cancel a run, asking until it is certain."""
        self.busy += 1
        self._persist(lambda server, answer: server.cancel(run_id, "ada", answer), lambda _: None)

    def witness(self, event: events.Event) -> None:
        """Look at what happens and now and then do the worst at that moment."""
        chance = self._setting.chance
        if chance.healed:
            return
        if isinstance(event, BAD_MOMENTS) and chance.roll(0.012):
            chance.seen[f"people: cancel at {type(event).__name__}"] += 1
            run_id = event.run_id
            self._setting.later(chance.between(0, 6), lambda: self.cancel(run_id))
        if isinstance(event, events.RunEnded) and event.outcome is not Outcome.SUCCEEDED:
            self._perhaps_resume(event.run_id)

    def _perhaps_resume(self, run_id: int) -> None:
        chance = self._setting.chance
        if self._resumes < RESUMES and chance.roll(0.15):
            self._resumes += 1
            self._setting.later(chance.between(0, 30_000), lambda: self._resume(run_id))

    def _resume(self, run_id: int) -> None:
        def then(answer: Any) -> None:
            word = "refused" if isinstance(answer, AiryardError) else "done"
            self._setting.chance.seen[f"people: resume {word}"] += 1

        self.busy += 1
        self._persist(lambda server, answer: server.resume(run_id, "ada", answer), then)

    def ask(self, command: Command, then: Answer = lambda _: None) -> None:
        """Ask for something until there is an answer."""
        self.busy += 1
        self._persist(lambda server, answer: server.ask(command, answer), then)

    def update(self, command: UpdateRun, command_line: str) -> None:
        """Change a run."""

        def then(answer: Any) -> None:
            word = "refused" if isinstance(answer, AiryardError) else "done"
            self._setting.chance.seen[f"people: update {word}"] += 1

        if command.attempt_timeout_s == 0 and "for=ever" in command_line:
            self.endless.add(command.run_id)
        self.ask(command, then)


def _with_priority(compute: Compute, priority: Priority) -> Compute:
    data = compute.to_json()
    return Compute.from_json({**data, "priority": priority.value})
