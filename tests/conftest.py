"""What tests of every layer may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL, started at the first use; where there is none the test fails and says what to install."""
    server = PostgresServer()
    server.start()
    yield server
    server.close()
