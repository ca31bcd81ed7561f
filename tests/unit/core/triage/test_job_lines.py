"""Lines of jobs without their colours, prefixes and stamps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from airyard.core.triage.job_lines import parse_line, rank_of_file
from airyard.core.triage.moments import stamp_ms

TEXT = "ValueError: no such optimiser"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("", None),
        ("[rank3]: ", 3),
        ("[Rank 3] ", 3),
        ("3: ", 3),
        ("[3]: ", 3),
        ("[1,3]<stderr>:", 3),
        ("[trainer0|3]: ", 3),
        ("2025-03-04T10:00:00.123Z ", None),
        ("2025-03-04 10:00:00,123 [rank3]: ", 3),
        ("[10:00:00] [rank3]: ", 3),
        ("Mar  4 10:00:00 node-7 train[4110]: ", None),
        ("\x1b[31;1m[rank3]: ", 3),
        ("(RayTrainWorker pid=811, ip=10.0.0.7) ", None),
        ("node-7: [rank3]: ", 3),
    ],
)
def test_prefixes_are_taken_off(prefix: str, rank: int | None) -> None:
    line = parse_line(f"{prefix}{TEXT}\x1b[0m\r\n")
    assert (line.text, line.rank) == (TEXT, rank)


def test_ranks_are_found_within_the_words_of_torch() -> None:
    assert parse_line("[E ProcessGroupNCCL.cpp:474] [PG 1 Rank 7] Exception detected").rank == 7
    assert parse_line("failed (exitcode: -9) local_rank: 2 (pid: 19013) of binary: python").local_rank == 2


def test_the_device_and_host_of_a_line_of_nccl() -> None:
    line = parse_line("gpu46:78367:78492 [5] NCCL INFO Connected all rings")
    assert (line.host, line.device) == ("gpu46", 5)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.log", 3),
        ("train-rank_03.out", 3),
        ("3.log", 3),
        ("3.log.gz", 3),
        ("worker-12.txt", 12),
        ("train.log", None),
        ("node7.log", None),
        ("2025-03-04.log", None),
    ],
)
def test_ranks_of_files(name: str, rank: int | None) -> None:
    assert rank_of_file(name) == rank


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2025-03-04T10:00:00Z x", 1_741_082_400_000),
        ("2025-03-04 10:00:00,500 x", 1_741_082_400_500),
        ("2025/03/04 10:00:00.5 x", 1_741_082_400_500),
        ("2025-03-04T10:00:00+0100 x", 1_741_078_800_000),
        ("[Tue Mar  4 10:00:00 2025] x", 1_741_082_400_000),
        ("Mar  4 10:00:00 n3 x", 5_392_800_000),
        ("W0304 10:00:00.500000 x", 5_392_800_500),
        ("10:00:00 x", 36_000_000),
        ("2025-13-44T10:00:00Z x", None),
        ("no time", None),
    ],
)
def test_stamps(text: str, ms: int | None) -> None:
    assert stamp_ms(text) == ms


@given(some.text(max_size=400))
def test_no_line_is_too_odd(text: str) -> None:
    parse_line(text)
    rank_of_file(text)
