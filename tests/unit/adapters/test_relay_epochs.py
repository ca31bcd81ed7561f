"""The relay serves the newest leader that it has heard of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from airyard.adapters.ray_command import HOME_VARIABLE
from airyard.adapters.ray_relay import Relay


def test_a_leader_that_was_replaced_does_not_get_the_agent_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))  # of a machine that has left: nothing is started

    async def story() -> None:
        relay = Relay()
        for epoch in (5, 6, 6):
            with pytest.raises(ConnectionError, match="has left the fleet"):
                await relay.open("", epoch)
        with pytest.raises(ConnectionError, match="serves the leader of epoch 6, 5 is over"):
            await relay.open("", 5)

    asyncio.run(story())
