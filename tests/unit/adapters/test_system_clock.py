"""The server's clock under a machine's clock that is set."""

from __future__ import annotations

from airyard.adapters.system_clock import SystemClock


class Machine:
    wall_ms = 1_000_000
    monotonic_ms = 500


def test_time_goes_on_whatever_the_machine_says() -> None:
    machine = Machine()
    clock = SystemClock(lambda: machine.wall_ms * 1_000_000, lambda: machine.monotonic_ms * 1_000_000)
    assert clock.now_ms() == 1_000_000
    machine.wall_ms -= 3_600_000
    assert clock.now_ms() == 1_000_000
    machine.monotonic_ms += 250
    assert clock.now_ms() == 1_000_250, "set back: it counts on, it does not stand still"
    machine.wall_ms += 3_600_000 + 5_000
    machine.monotonic_ms += 10
    assert clock.now_ms() == 1_005_000, "set ahead: it follows"
