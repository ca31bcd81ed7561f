"""The agent's looks at runners that ended: one at a time a runner, however often it is swept meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from airyard.node.agent import Agent
from airyard.node.attempts import Attempt, Seen


def test_sweeps_do_not_pile_up_looks(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    agent = Agent(tmp_path, lambda: False)
    looks: list[str] = []
    free = threading.Event()

    def look(key: str) -> Attempt:
        looks.append(key)
        free.wait(30)
        return Attempt(key=key, state=Seen.ALIVE)

    def settled(count: int) -> None:
        while len(looks) < count or agent._looking:
            agent._run_done()
            time.sleep(0.001)

    try:
        agent._attempts.look = look  # type: ignore[method-assign]  # the moment of the look matters
        agent._take_up(Attempt(key="1.0.0", state=Seen.ALIVE))
        for _ in range(50):
            agent._sweep()
        free.set()
        settled(1)
        assert looks == ["1.0.0"]
        agent._sweep()
        settled(2)
        assert looks == ["1.0.0"] * 2
    finally:
        free.set()
        agent._hub.close()
        agent._zygote.close()
        agent._inventory.close()
        agent._workers.shutdown(wait=True)
