"""Times and spans as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from airyard.cli.moments import moment, on_the_wire, span_s

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2026, 12, 1, 20, 30, 15, tzinfo=ZONE)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("90min", 5400), ("2h", 7200), ("1h30m", 5400), ("1 d 12 h", 129_600), ("1.5h", 5400)],
)  # fmt: skip
def test_spans(text: str, seconds: int) -> None:
    assert span_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "h", "2w", "-5m", "2h!", "1h-3m"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="is not a span such as"):
        span_s(text)


@pytest.mark.parametrize("text", ["99999999d", "9" * 400 + "s"])
def test_what_no_server_takes_is_no_span(text: str) -> None:
    for read in (span_s, lambda said: moment(f"+{said}", NOW, ZONE)):
        with pytest.raises(ValueError, match=r"longer than any span may be \(11,574d\)"):
            read(text)


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("2026-12-02T08:00:00Z", "2026-12-02T08:00:00.000Z"),
        ("2026-12-02T08:00:00-05:00", "2026-12-02T13:00:00.000Z"),
        ("2026-12-02 08:00", "2026-12-02T06:00:00.000Z"),
        ("2026-12-02", "2026-12-01T22:00:00.000Z"),
        ("21:00", "2026-12-01T19:00:00.000Z"),
        ("8:00", "2026-12-02T06:00:00.000Z"),
        ("20:30", "2026-12-02T18:30:00.000Z"),
        ("+90m", "2026-12-01T20:00:15.000Z"),
        ("+1d", "2026-12-02T18:30:15.000Z"),
    ],
)
def test_times_are_those_of_ones_own_zone(text: str, wire: str) -> None:
    assert on_the_wire(moment(text, NOW, ZONE)) == wire


def test_without_a_zone_it_is_this_machines() -> None:
    local = datetime(2026, 12, 2, 8, 0).astimezone()
    assert moment("2026-12-02 08:00", NOW) == local
    assert on_the_wire(local) == local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.mark.parametrize("text", ["", "tomorrow", "25:00", "2026-13-01", "+", "+90"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (time|span) such as"):
        moment(text, NOW, ZONE)
