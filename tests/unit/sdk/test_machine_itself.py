"""Which hosts are this very machine: a token may go there in the open, and no proxy is asked."""

from __future__ import annotations

import pytest

from airyard.sdk.transport import _is_here


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("127.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("192.0.2.1", False),
    ],
)
def test_only_an_address_is_this_machine(host: str, here: bool) -> None:
    assert _is_here(host) == here
