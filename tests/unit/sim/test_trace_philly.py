"""The trace in four columns, and the files that traces come in."""

from __future__ import annotations

import lzma
from itertools import pairwise
from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.sim.trace.lines import read_lines
from airyard.sim.trace.philly import parse_philly, read_philly
from airyard.sim.trace.records import Trace

HEADER = "submit_s,duration_s,gpus,team"
FILE = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "philly-2017-sep-oct.csv.xz"


def parse(*rows: str, header: str = HEADER) -> Trace:
    """Read rows on nodes of 8 GPUs."""
    return parse_philly([header, *rows], "trace.csv", gpus_per_node=8)


def test_the_whole_trace_has_the_figures_that_are_published() -> None:
    trace = read_philly(FILE, gpus_per_node=8)
    runs = trace.runs
    assert len(runs) == 55_803
    assert round(sum(run.devices * run.duration_ms for run in runs) / 3_600_000) == 691_624
    assert sum(run.devices == 1 for run in runs) / len(runs) == pytest.approx(0.946, abs=0.0006)
    assert max(run.devices for run in runs) == 32
    assert sum(run.duration_ms for run in runs) / len(runs) / 3_600_000 == pytest.approx(3.88, abs=0.005)
    assert [run.run_id for run in runs] == list(range(1, 55_804))
    assert all(before.submit_ms <= after.submit_ms for before, after in pairwise(runs))
    assert trace.not_carried == ()


@pytest.mark.parametrize(
    ("gpus", "nodes", "each"),
    [(1, 1, 1), (8, 1, 8), (9, 2, 5), (12, 2, 6), (16, 2, 8), (24, 3, 8), (32, 4, 8)],
)
def test_gpus_are_spread_over_as_few_whole_nodes_as_hold_them(gpus: int, nodes: int, each: int) -> None:
    trace = parse(f"0,60,{gpus},a")
    (run,) = trace.runs
    assert (run.nodes, run.devices_per_node) == (nodes, each)
    assert [left.what for left in trace.not_carried] == (["uneven"] if nodes * each > gpus else [])


def test_a_row_becomes_a_run() -> None:
    late, early = parse("90,1.5,4,b", "30,0,2,a").runs[::-1]
    assert (late.submit_ms, late.duration_ms, late.project, late.user) == (90_000, 1500, "b", "b")
    assert (early.run_id, early.begin_ms, early.duration_ms) == (1, 30_000, 1)
    assert (early.really_started_ms, early.limit_ms) == (None, None)


def test_rows_without_gpus_and_other_columns_are_counted() -> None:
    trace = parse("a,0,60,0,x", "b,0,60,1,x", header="team,submit_s,duration_s,gpus,colour")
    assert [run.project for run in trace.runs] == ["b"]
    assert {left.what: left.count for left in trace.not_carried} == {"columns": 1, "cpu-only": 1}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["0,60,1"], "line 2: has 3 fields where the header names 4: '0,60,1'"),
        (["0,60,1,a", "-1,60,1,a"], "line 3, column submit_s: found '-1', expected a number of seconds"),
        (["0,-60,1,a"], "line 2, column duration_s: found '-60'"),
        (["0,nan,1,a"], "column duration_s: found 'nan'"),
        (["inf,1,1,a"], "column submit_s: found 'inf'"),
        (["1e300,1,1,a"], "column submit_s: found '1e300'"),
        (["0,60,one,a"], "column gpus: found 'one', expected a whole number of GPUs"),
        (["0,60,-8,a"], "column gpus: found '-8'"),
        (["0,60,99999999,a"], "column gpus: found '99999999'"),
        (["0,60,1,"], "column team: found ''"),
        ([], "has a header and no runs"),
        (['0,60,1,"a'], "is no CSV"),
    ],
)
def test_a_malformed_row_is_refused_with_its_place(rows: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(*rows)
    assert caught.value.code == "BAD_TRACE"
    assert caught.value.message.startswith("trace.csv")
    assert expected in caught.value.message


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("submit_s,team", "lacks the columns duration_s, gpus: it reads 'submit_s,team'"),
        (f"{HEADER},gpus", "names a column twice"),
        ("0,60,1,a", "lacks the columns submit_s, duration_s, gpus, team"),
    ],
)
def test_a_header_that_lacks_something_is_refused(header: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        parse("0,60,1,a", header=header)
    assert expected in caught.value.message
    with pytest.raises(UserError, match="is empty"):
        parse_philly([], "trace.csv", gpus_per_node=8)


def test_a_yard_without_gpus_is_refused() -> None:
    with pytest.raises(UserError, match="expected a whole number, at least 1"):
        parse_philly([HEADER, "0,60,1,a"], "trace.csv", gpus_per_node=0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("trace.csv", b"", "is empty"),
        ("trace.csv", b"\x7fELF\x00\x01junk", "line 1: is no text: it has a NUL byte"),
        ("trace.csv", b"x" * (1 << 21), "is no text: it has a line over 1 MiB"),
        ("trace.xz", b"submit_s,duration_s,gpus,team\n", "is no xz file: its first bytes are b'submit'"),
        ("trace.xz", b"\xfd7zXZ\x00 and then junk", "is damaged"),
        (
            "trace.csv.xz",
            lzma.compress(b"submit_s,duration_s,gpus,team\n" + b"0,60,1,a\n" * 99)[:-20],
            "is damaged",
        ),
        ("trace.gz", b"\x1f\x8b\x08\x00 and then junk", "is damaged"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_philly(path, gpus_per_node=8)
    assert caught.value.message.startswith(str(path))
    assert expected in caught.value.message


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            read_philly(path, gpus_per_node=8)


def test_lines_come_without_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\xff\nlast")
    assert list(read_lines(path)) == ["one", "two", "\\xff", "last"]
