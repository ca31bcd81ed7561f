"""The spool's file: order, durability across reopening, torn records, bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airyard.adapters.tracking_spool import SpooledWrite, WriteSpool
from airyard.core.errors import Unavailable


def write(number: int) -> SpooledWrite:
    return SpooledWrite(path=f"/p/{number}", body=b'{"n": %d}\n\x00' % number, at_ms=number)


def drained(spool: WriteSpool) -> list[SpooledWrite]:
    found = []
    while oldest := spool.oldest():
        found.extend(oldest)
        spool.drop_oldest()
    return found


def test_writes_come_back_in_order_and_the_file_shrinks(tmp_path: Path) -> None:
    spool = WriteSpool(tmp_path)
    for number in range(5):
        spool.append(write(number))
    assert spool.backlog().writes == 5
    assert drained(spool) == [write(number) for number in range(5)]
    assert spool.is_empty
    assert (tmp_path / "writes.spool").stat().st_size == 0
    spool.append(write(9))
    assert drained(spool) == [write(9)]
    spool.close()


def test_what_waited_is_there_after_reopening(tmp_path: Path) -> None:
    spool = WriteSpool(tmp_path)
    for number in range(4):
        spool.append(write(number))
    spool.drop_oldest()
    spool.close()
    again = WriteSpool(tmp_path)
    assert again.backlog().writes == 3
    again.append(write(4))
    assert drained(again) == [write(1), write(2), write(3), write(4)]
    again.close()


@pytest.mark.parametrize("kept_bytes", range(1, 40, 3))
def test_a_torn_last_record_is_cut_off(tmp_path: Path, kept_bytes: int) -> None:
    spool = WriteSpool(tmp_path)
    spool.append(write(0))
    whole = (tmp_path / "writes.spool").stat().st_size
    spool.append(write(1))
    spool.close()
    with (tmp_path / "writes.spool").open("r+b") as file:
        file.truncate(whole + kept_bytes)
    again = WriteSpool(tmp_path)
    assert again.backlog().bytes == whole
    again.append(write(2))
    assert drained(again) == [write(0), write(2)]
    again.close()


def test_a_full_spool_refuses_and_loses_nothing(tmp_path: Path) -> None:
    spool = WriteSpool(tmp_path, limit_bytes=200)
    taken = 0
    while spool.backlog().bytes < 150:
        spool.append(write(taken))
        taken += 1
    with pytest.raises(Unavailable, match="fill the spool"):
        spool.append(write(taken))
    assert drained(spool) == [write(number) for number in range(taken)]
    spool.close()


def test_a_refused_write_is_kept_aside_with_its_reason(tmp_path: Path) -> None:
    spool = WriteSpool(tmp_path)
    spool.append(write(0))
    spool.append(write(1))
    spool.refuse_oldest("HTTP status 400")
    line = json.loads((tmp_path / "writes.refused").read_text())
    assert (line["path"], line["reason"]) == ("/p/0", "HTTP status 400")
    assert spool.backlog().refused == 1
    assert drained(spool) == [write(1)]
    spool.close()


def test_the_reason_of_a_stuck_write_shows_until_one_goes_through(tmp_path: Path) -> None:
    spool = WriteSpool(tmp_path)
    spool.append(write(0))
    spool.note_failure("HTTP status 401")
    assert spool.backlog().reason == "HTTP status 401"
    assert not spool.is_draining
    spool.append(write(1))
    spool.drop_oldest()
    assert spool.backlog().reason == ""
    assert spool.is_draining
    spool.close()
