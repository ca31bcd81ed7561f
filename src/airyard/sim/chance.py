"""What a seed decides: which faults a world knows, how often they strike, and every other draw.

Owns: the one random source of a simulation, fault rates, counters of what really happened.
Must not know: how a fault is carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Fault(Enum):
    """Every kind of fault. The first group strikes messages, the last is done by the injector."""

    LOSS = "message lost"
    SLOW = "message late"
    DUPLICATE = "message twice"
    ECHO = "message again minutes later"

    CLOCK_RATE = "clock runs too fast or too slow"

    RUNNER_KILLED = "runner killed"
    RUNNER_PAUSED = "runner stopped for a while"
    RUNNER_HUNG = "runner stopped for ever"
    MACHINE_CRASH = "machine restarted"
    AGENT_RESTART = "agent restarted"
    LINK_CUT = "agent link cut"
    HELLO_AGAIN = "agent says hello again"
    PARTITION = "machine cut off"
    SERVER_UNREACHABLE = "machine cut off from the server only"
    ONE_WAY = "machine cut off one way"
    AGENT_AWAY = "machine cut off from its agent only"
    LAG = "network slow before it breaks"
    SUSPENDED = "machine suspended"
    CLOCK_JUMP = "node clock set"
    SERVER_KILLED = "server killed"
    SERVER_AWAY = "server killed and away for long"
    SERVER_STOPPED = "server stopped as planned"
    TAKEOVER = "standby takes over from a living leader"
    KILLED_BEFORE_APPEND = "server killed before an append"
    KILLED_AFTER_APPEND = "server killed after an append"
    STALE_WRITER = "old server writes"
    JOURNAL_FULL = "journal full"
    TRACKER_AWAY = "tracker away"


MESSAGE_FAULTS = (Fault.LOSS, Fault.SLOW, Fault.DUPLICATE, Fault.ECHO)
CIRCUMSTANCES = (Fault.CLOCK_RATE, Fault.LAG)
INJECTED = tuple(fault for fault in Fault if fault not in (*MESSAGE_FAULTS, *CIRCUMSTANCES))


@dataclass(slots=True)
class Chance:
    """The random source of one world, and its count of what happened.

    Every world has its own ``Random``: nothing outside the seed can change a draw.
    """

    random: Random
    rates: dict[Fault, float]
    pace_ms: int
    seen: Counter[str]
    healed: bool = False

    @classmethod
    def of(cls, seed: int) -> Chance:
        """Choose the faults of a seed: about one world in eight is calm, the others know about half of all kinds."""
        random = Random(seed)
        calm = random.random() < 0.125
        rates = {}
        for fault in Fault:
            on = random.random() < 0.5
            rate = random.choice((0.01, 0.05, 0.15)) if fault in MESSAGE_FAULTS else 1.0
            rates[fault] = rate if on and not calm else 0.0
        return cls(random=random, rates=rates, pace_ms=random.choice((4_000, 10_000, 25_000)), seen=Counter())

    @property
    def calm(self) -> bool:
        """True in a world that knows no faults: there everything happens in time."""
        return not any(self.rates.values())

    def strikes(self, fault: Fault) -> bool:
        """Draw whether a message fault strikes now, and count it."""
        rate = self.rates[fault]
        if self.healed or rate == 0.0 or self.random.random() >= rate:
            return False
        self.note(fault)
        return True

    def note(self, fault: Fault) -> None:
        """Count a fault that really happened."""
        self.seen[f"fault: {fault.value}"] += 1

    def clock_rate_ppm(self) -> int:
        """Draw how wrong a clock runs, in millionths: a thousandth at most."""
        if not self.rates[Fault.CLOCK_RATE]:
            return 0
        self.note(Fault.CLOCK_RATE)
        return self.between(-1_000, 1_000)

    def roll(self, probability: float) -> bool:
        """Draw a yes or no."""
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Draw a whole number, both ends included."""
        return self.random.randint(low, high)

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one."""
        return choices[self.random.randrange(len(choices))]
