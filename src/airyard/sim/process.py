"""The process tree of one member on a simulated machine: it lives and dies whatever becomes of its runner.

Owns: the main process, what outlives it, and whether anybody touched it. Must not know: runners, agents.
"""

from __future__ import annotations

from collections.abc import Callable

from airyard.core.ids import MemberKey
from airyard.sim.behaviour import Behaviour
from airyard.sim.setting import Setting

SIGKILL = 9
SIGTERM = 15


class SimTree:
    """A command that was started. ``on_exit`` hears of the main process's end, ``on_gone`` of the last one's."""

    def __init__(
        self,
        setting: Setting,
        key: MemberKey,
        behaviour: Behaviour,
        on_exit: Callable[[int | None, int | None], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._setting = setting
        self._behaviour = behaviour
        self._on_exit = on_exit
        self._on_gone = on_gone
        self.key = key
        self.running = True
        self.alive = True
        self.touched = False
        self.dying = False
        self.asleep_until_ms = 0
        """The machine sleeps until then, and its processes with it."""
        if behaviour.duration_ms is not None:
            code = None if behaviour.signal is not None else behaviour.code
            self._later(3 + behaviour.duration_ms, lambda: self._exit(code, behaviour.signal))

    @property
    def asleep(self) -> bool:
        """True while it cannot do anything, because its machine is suspended."""
        return self._setting.time.now_ms() < self.asleep_until_ms

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something after a while, but not while the machine sleeps."""

        def when_awake() -> None:
            if self.asleep:
                self._setting.time.at(self.asleep_until_ms, when_awake)
            else:
                act()

        self._setting.later(delay_ms, when_awake)

    def _exit(self, code: int | None, signal: int | None) -> None:
        if not self.running:
            return
        self.running = False
        self._on_exit(code, signal)
        if not self._behaviour.child and not self.dying:
            self._end()

    def _end(self) -> None:
        if self.alive:
            self.alive = False
            self._on_gone()

    def signal(self) -> None:
        """Deliver the stop signal."""
        if not self.running:
            return
        self.touched = True
        if self._behaviour.term == "die":
            self._later(4, lambda: self._exit(None, SIGTERM))
        elif self._behaviour.term == "clean":
            self._later(self._setting.chance.between(50, 3_000), lambda: self._exit(0, None))

    def kill(self) -> None:
        """Kill every process; they are gone a little later."""
        if not self.alive or self.dying:
            return
        self.dying = True
        self.touched |= self.running

        def gone() -> None:
            self._exit(None, SIGKILL)
            self._end()

        self._later(self._setting.chance.between(2, 200), gone)

    def vanish(self) -> None:
        """End with the machine."""
        self.touched |= self.running
        self.running = False
        self._end()
