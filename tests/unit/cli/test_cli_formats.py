"""Values in text."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import pytest

from airyard.cli import formats


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (120, "0.1 s"),
        (9_949, "9.9 s"),
        (9_960, "10 s"),
        (59_400, "59 s"),
        (59_700, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (360_000_000, "4 d 4 h"),
    ],
)
def test_durations(ms: float | None, text: str) -> None:
    assert formats.duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**52, "4096.0 TiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert formats.size(count) == text


def test_times_are_shown_in_the_zone_of_the_reader_with_offset() -> None:
    assert formats.moment("2026-01-31T12:00:00.25Z", UTC) == "2026-01-31 12:00:00 +00:00"
    india = timezone(timedelta(hours=5, minutes=30))
    assert formats.moment("2026-01-31T12:00:00Z", india) == "2026-01-31 17:30:00 +05:30"


def test_tables_align_coloured_cells_by_what_is_seen() -> None:
    rows = [[1, formats.paint("up", "green", True)], [20, "down"]]
    lines = formats.table(("ID", "STATE"), rows, right=(0,)).splitlines()
    assert lines[0] == "ID  STATE"
    assert lines[2] == "20  down"
    assert lines[1].startswith(" 1  \x1b[32mup")


@pytest.mark.parametrize(
    ("line", "shown"),
    [("plain", "plain"), ("10%\r50%\r100%", "100%"), ("100%\r", "100%"), ("100%\r   ", "100%"), ("\r", "")],
)
def test_progress_bars_show_their_last_state(line: str, shown: str) -> None:
    assert formats.last_state(line) == shown
