"""The simulated server's judge of failed attempts: it answers soon, late, twice or never, and says anything.

Owns: when and what is answered. Must not know: what follows; logs, which a simulation has none of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from airyard.core.actions import JudgeAttempt
from airyard.core.commands import VerdictReached
from airyard.core.run import Attempt, Cause
from airyard.core.triage.causes import Action, FailureCause, FailureClass, Judgement
from airyard.sim.chance import Chance
from airyard.sim.setting import Setting

WAIT_MS = 5_000
_SAID = (
    ("user.exception", FailureClass.USER, Cause.USER_CODE, 0.8),
    ("cuda.ecc", FailureClass.HARDWARE, Cause.DEVICE, 0.9),
    ("driver.gone", FailureClass.DRIVER, Cause.NODE, 0.7),
    ("net.connect", FailureClass.NETWORK, Cause.NETWORK, 0.6),
    ("collective.timeout", FailureClass.UNKNOWN, Cause.PLATFORM, 0.3),
    ("nothing.found", FailureClass.UNKNOWN, Cause.PLATFORM, 0.3),
)
"""Rule, class, cause, confidence."""


class SimJudges:
    """One server's judge: one answer at a time for an attempt, asked again by whoever needs it."""

    def __init__(
        self,
        setting: Setting,
        answer: Callable[[VerdictReached], None],
        find: Callable[[JudgeAttempt], Attempt | None],
    ) -> None:
        self._setting = setting
        self._answer = answer
        self._find = find
        self._under_way: set[tuple[int, int]] = set()
        self._silent: set[tuple[int, int]] = set()
        self.closed = False

    def do(self, action: JudgeAttempt) -> None:
        """Begin, unless the same attempt is being judged."""
        key, chance = (action.run_id, action.attempt), self._setting.chance
        if key in self._under_way or (key in self._silent and not chance.healed):
            return
        if not chance.healed and chance.roll(0.1):
            self._silent.add(key)  # it does not answer while there is trouble
            return
        self._under_way.add(key)
        slow = not chance.healed and chance.roll(0.2)
        delay_ms = chance.between(4_000, 40_000) if slow else chance.between(20, 2_500)
        self._setting.later(delay_ms, partial(self._judge, action, twice=chance.roll(0.2)))

    def _judge(self, action: JudgeAttempt, *, twice: bool) -> None:
        if self.closed:
            return
        self._under_way.discard((action.run_id, action.attempt))
        attempt = self._find(action)
        if attempt is None:
            return
        for _ in range(2 if twice else 1):
            judgement = _anything(attempt, self._setting.chance)
            self._answer(VerdictReached(run_id=action.run_id, attempt=action.attempt, judgement=judgement))


def _anything(attempt: Attempt, chance: Chance) -> Judgement:
    """Return a verdict that may blame any node of the attempt, or one that it never was on."""
    members = len(attempt.members)
    if chance.roll(0.05):
        return Judgement(verdict=None, members=members, missing="all of it")
    rule, failure_class, cause, confidence = chance.pick(_SAID)
    blames = failure_class in (FailureClass.HARDWARE, FailureClass.DRIVER)
    node = chance.pick([*(member.node for member in attempt.members), "somebody-elses"]) if blames else ""
    verdict = FailureCause(
        failure_class=failure_class,
        cause=cause,
        action=Action.RETRY_ELSEWHERE,
        rule=rule,
        message="a simulated verdict",
        next_step="nothing",
        confidence=confidence,
        blamed_node=node,
        confirmed=blames and chance.roll(0.5),
    )
    return Judgement(verdict=verdict, logs=members, members=members)
