"""Lines that were cut, and what came between their parts."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.cli.console import Console
from airyard.cli.watching import LogPrinter


def event(line: str, *, partial: bool = False, stream: str = "stdout", node: int = 0) -> dict[str, Any]:
    return {"attempt": 0, "node": node, "stream": stream, "line": line, "partial": partial}


def printed(capsys: pytest.CaptureFixture[str], *events: dict[str, Any]) -> str:
    printer = LogPrinter(Console(as_json=False, colour="never"), prefixed=False)
    for one in events:
        printer.line(one)
    printer.close()
    return capsys.readouterr().out


def test_a_shown_beginning_is_ended_by_an_empty_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, event("50%", partial=True), event(""), event("next")) == "50%\nnext\n"


def test_an_end_after_another_line_is_no_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [event("50%", partial=True), event("other", stream="stderr"), event(""), event("next"), event("")]
    assert printed(capsys, *lines) == "50%\nother\nnext\n\n"


def test_a_continuation_after_another_line_starts_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [event("begin", partial=True), event("other", stream="stderr"), event("end"), event("")]
    assert printed(capsys, *lines) == "begin\nother\nend\n\n"
