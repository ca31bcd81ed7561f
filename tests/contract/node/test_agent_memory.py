"""What an agent knows of a member is still known once it has died."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airyard.node.agent import Agent
from airyard.node.attempts import Attempt, Seen


def test_a_death_with_a_reason_keeps_release_node_and_devices(tmp_path: Path) -> None:
    (tmp_path / "node" / "attempts").mkdir(parents=True)
    agent = Agent(tmp_path, lambda: False)
    alive = Attempt(key="1.0.0", state=Seen.ALIVE, node="n1", devices=(0, 1), version="1.2.3")
    agent._known[alive.key] = replace(alive, cause="PLATFORM", detail="asked for")
    try:
        agent._settle(replace(alive, state=Seen.DIED, cause="NODE", detail="killed"))
        found = agent._known[alive.key]
        assert found == replace(alive, state=Seen.DIED, cause="NODE", detail="killed: asked for")
    finally:
        agent._hub.close()
        agent._inventory.close()
        agent._workers.shutdown(wait=False)
