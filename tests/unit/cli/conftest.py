"""A command line against a scripted server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airyard.cli.app import App
from airyard.cli.main import run
from client_fakes import FakeTransport, fake_client


class Invoked:
    """Calls ``airyard`` in this process; ``transport`` is that of the last call."""

    def __init__(self, capsys: pytest.CaptureFixture[str], home: Path) -> None:
        self._capsys, self._home = capsys, home
        self.transport = FakeTransport({})

    def __call__(self, *arguments: str, answers: dict[str, list[Any]] | None = None) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        app = App()
        app.__dict__["client"], self.transport, _ = fake_client(answers or {}, home=self._home)
        code = run(list(arguments), app)
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def airyard(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoked:
    """Run ``airyard`` with arguments against scripted answers; returns exit code, stdout, stderr."""
    monkeypatch.setenv("AIRYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")

    return Invoked(capsys, tmp_path / "home")
