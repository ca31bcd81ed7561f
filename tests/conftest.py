"""What tests of every layer may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postgres_server import PostgresServer


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Call bytes by their argument: archives and keys differ each time, and all workers need the same names."""
    return argname if isinstance(val, bytes) and len(val) > 16 else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL, started at the first use; where there is none the test fails and says what to install."""
    server = PostgresServer()
    server.start()
    yield server
    server.close()
