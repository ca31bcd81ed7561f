"""The spools of attempts whose run is not open: apart from the others, durable, gone when empty."""

from __future__ import annotations

from pathlib import Path

from airyard.adapters.tracking_spool import SpooledWrite, Spools


def write(number: int) -> SpooledWrite:
    return SpooledWrite(path=f"/p/{number}", body=b"{}", at_ms=number)


def test_writes_of_attempts_are_kept_apart_and_found_again(tmp_path: Path) -> None:
    spools = Spools(tmp_path)
    spools.main.append(write(0))
    spools.hold("12.0", write(1))
    spools.hold("12.0", write(2))
    spools.hold("13.1", write(3))
    assert spools.backlog().writes == 4
    spools.close()
    again = Spools(tmp_path)
    assert again.main.oldest(9) == [write(0)]
    assert {key: spool.oldest(9) for key, spool in again.held().items()} == {
        "12.0": [write(1), write(2)],
        "13.1": [write(3)],
    }
    again.close()


def test_an_emptied_spool_goes_and_comes_back_with_the_next_write(tmp_path: Path) -> None:
    spools = Spools(tmp_path)
    spool = spools.hold("12.0", write(1))
    spools.retire("12.0")
    assert spools.held_of("12.0") is spool
    spool.refuse_oldest("no")
    assert spools.held_of("12.0") is None
    spools.retire("12.0")
    assert spools.held() == {}
    assert not (tmp_path / "held" / "12.0").exists()
    assert not spool.append(write(2))
    assert spools.hold("12.0", write(2)) is not spool
    assert spools.backlog().refused == 1
    assert '"reason": "no"' in (tmp_path / "writes.refused").read_text()
    spools.close()
