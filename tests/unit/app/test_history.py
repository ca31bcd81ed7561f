"""A server that starts learns how long its earlier runs lasted."""

from __future__ import annotations

from dataclasses import replace

from airyard.adapters.memory import MemoryDisk, MemoryJournal, MemoryReadStore
from airyard.app.changes import ChangeFeed
from airyard.app.forecasting import likeness
from airyard.app.history import PIECE, teach
from airyard.app.loop import ControlLoop
from airyard.app.projection import run_row
from airyard.core.forecast.durations import KEPT
from airyard.core.run import Outcome
from core_samples import ATTEMPT, RUN


class Still:
    """Time that stands still."""

    def now_ms(self) -> int:
        return 1_000_000

    def monotonic_ms(self) -> int:
        return 1_000_000


def test_ended_runs_teach_the_forecast() -> None:
    disk = MemoryDisk()
    for run_id in range(1, PIECE + 51):
        ran = replace(ATTEMPT, run_id=run_id, number=0, running_ms=0, ended_ms=5_000)
        outcome = Outcome.CANCELLED if run_id % 2 else Outcome.SUCCEEDED
        disk.runs[run_id] = run_row(replace(RUN, run_id=run_id, attempts=(ran,), outcome=outcome))
    loop = ControlLoop(
        journal=MemoryJournal(disk), clock=Still(), do=lambda actions: None, changes=ChangeFeed()
    )
    loop.start()
    try:
        assert teach(loop, MemoryReadStore(disk), Still()) == PIECE + 50
        found = loop.inquire(lambda planning: planning.forecast.predictor.remaining(likeness(RUN))).result()
    finally:
        loop.stop()
    assert (found.p50_ms, found.source) == (5_000, "experiment")
    assert found.samples == min((PIECE + 50) // 2, KEPT)
