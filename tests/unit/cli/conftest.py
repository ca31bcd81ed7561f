"""A command line against a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airyard.cli.app import App
from airyard.cli.main import run
from client_fakes import FakeTransport, fake_client

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def airyard(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run ``airyard`` with arguments against scripted answers; returns exit code, stdout, stderr."""
    monkeypatch.setenv("AIRYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")

    def invoke(*arguments: str, answers: dict[str, list[Any]] | None = None) -> tuple[int, str, str]:
        app = App()
        client, transport, _ = fake_client(answers or {}, home=tmp_path / "home")
        app.__dict__["client"] = client
        invoke.transport = transport  # type: ignore[attr-defined]
        code = run(list(arguments), app)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def asked(invoke: Invoke) -> FakeTransport:
    """Return the transport of the last invocation."""
    return invoke.transport  # type: ignore[attr-defined]
