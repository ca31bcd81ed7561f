"""Verdicts on the steps of simulated gangs, right or wrong: that they stand still, blame others, move on, are over.

Owns: which gangs are judged, and when. Must not know: what follows.
"""

from __future__ import annotations

from random import Random

from airyard.core.commands import GangJudged
from airyard.core.health.signs import CONFIDENCE, SignCase, Source
from airyard.core.run import AttemptState, Member, StallNote
from airyard.sim.people import People
from airyard.sim.setting import Setting
from airyard.sim.truth import Truth

LOOK_MS = 20_000


class GangJudges:
    """Whoever says how gangs get on."""

    def __init__(self, setting: Setting, people: People, truth: Truth, seed: int) -> None:
        self._setting = setting
        self._people = people
        self._truth = truth
        self._random = Random(f"gangs {seed}")
        """Their own: what they draw changes nothing for others."""

    def begin(self) -> None:
        """Judge some gang now and then, until all trouble is over; in some of the worlds."""
        if self._random.random() < 0.25:
            self._look()

    def _look(self) -> None:
        draw = self._random
        if self._setting.chance.healed:
            return
        running = [
            attempt
            for _, attempt in self._truth.state.live_attempts()
            if attempt.state in (AttemptState.RUNNING, AttemptState.STOPPING)
        ]
        if running:
            attempt = draw.choice(running)
            stall = self._stall(draw.choice(attempt.members))
            said = GangJudged(
                run_id=attempt.run_id,
                # Late words may be of an attempt before.
                attempt=attempt.number if draw.random() < 0.9 else max(0, attempt.number - 1),
                stall=stall if draw.random() < 0.6 else None,
            )
            self._people.ask(said, lambda answer: None)
        self._setting.later(draw.randint(500, LOOK_MS), self._look)

    def _stall(self, member: Member) -> StallNote:
        """Return a verdict that names a member or nobody, resting on one of the signs there are."""
        draw, at_ms = self._random, self._setting.time.now_ms()
        source = draw.choices(tuple(Source), weights=(4, 1, 1, 1))[0]
        self._setting.chance.seen[f"stall: by {source.value}"] += 1
        if source is Source.STEPS:
            return StallNote(
                case="BEHIND",
                ranks=(draw.randint(0, 1),),
                nodes=(member.node,),
                step=7,
                at_ms=at_ms,
                message="no step for 60 s",
                suspect_node=member.node if draw.random() < 0.3 else "",
            )
        # As the rules have it: GPUs say nothing of when lines ended, only members with one device are ranks, and what
        # rests on less than steps suspects no node.
        cases = [case for case in SignCase if (source, case) != (Source.GPU, SignCase.LOGS_ENDED_EARLIER)]
        case = draw.choice(cases)
        names = case is not SignCase.SILENT
        return StallNote(
            source=source.value,
            case=case.value,
            ranks=(member.index,) if names and len(member.devices) == 1 else (),
            nodes=(member.node,) if names else (),
            step=7 if draw.random() < 0.5 else 0,
            at_ms=at_ms,
            message="no sign for 900 s",
            confidence=CONFIDENCE[source],
        )
