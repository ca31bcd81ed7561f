"""What a step does on a host: passwords stay off command lines, and a refused removal leaves the service as it was."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from airyard.node.remote import steps

INDEX = "https://ada:hidden@index.example/simple"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


def test_an_index_with_a_password_is_on_no_command_line(tmp_path: Path) -> None:
    incoming = tmp_path / "install" / "incoming"
    incoming.mkdir(parents=True)
    program(
        incoming / "uv",
        f'echo "$@" >> {tmp_path}/lines; echo "$UV_DEFAULT_INDEX $PIP_INDEX_URL" >> {tmp_path}/indexes',
    )
    steps._fill(
        tmp_path / "made",
        incoming,
        {"home": str(tmp_path), "python": "python3", "index_url": INDEX, "wheel": "airyard.whl"},
    )
    lines = (tmp_path / "lines").read_text()
    assert "--require-hashes" in lines
    assert "hidden" not in lines
    assert f"{INDEX} {INDEX}" in (tmp_path / "indexes").read_text().splitlines()


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_removal_enables_the_service_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    home, binaries = tmp_path / "home", tmp_path / "bin"
    (home / "node" / "ray").mkdir(parents=True)
    (home / "node" / "ray" / "offer.json").write_text('{"machine": "m"}')
    binaries.mkdir()
    program(binaries / "systemctl", f'echo "$@" >> {tmp_path}/asked')
    error: dict[str, object] = {"error": {"code": "NODE_BUSY", "message": "2 members live here"}}
    answer: dict[str, object] = error if refused else {"data": {"members": []}}
    program(binaries / "airyard", f"echo '{json.dumps(answer)}'")
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(steps, "SYSTEMD", tmp_path)
    monkeypatch.setattr(steps, "UNITS", tmp_path)
    service, _ = steps._unit_file(home)
    service.parent.mkdir(parents=True, exist_ok=True)
    service.touch()
    asked = {
        "home": str(home),
        "bin": str(binaries / "airyard"),
        "within_s": None,
        "force": False,
        "purge": False,
    }
    if refused:
        with pytest.raises(steps.Problem, match="2 members"):
            steps.leave(asked, io.BytesIO())
    else:
        steps.leave(asked, io.BytesIO())
    lines = (tmp_path / "asked").read_text().splitlines()
    assert any("disable" in line for line in lines)
    assert service.exists() == refused
    assert lines[-1].endswith(f"enable --now {service.name}" if refused else "daemon-reload")
