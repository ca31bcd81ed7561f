"""The files of a cluster, put together."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.core.workload import Priority
from airyard.sim.slurm.reader import read_slurm
from slurm_samples import ASSOCIATIONS, QOS, TOPOLOGY, counts, jobs, node, row

NODES = "\n".join(node(f"n{number:02}", partitions="h100,long") for number in range(1, 7))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = jobs(
        row(),
        row(JobID="4712", QOS="urgent", Partition="long", NodeList="n03", Submit="2026-03-02T08:01:00"),
        row(JobID="4713", QOS="scavenger", Account="vision", Submit="2026-03-02T08:02:00"),
        row(JobID="4714", QOS="gold", Partition="old", NodeList="x01", Submit="2026-03-02T08:03:00"),
    )
    (tmp_path / "jobs.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "nodes.txt").write_text(NODES, encoding="utf-8")
    (tmp_path / "topology.txt").write_text(TOPOLOGY, encoding="utf-8")
    (tmp_path / "associations.txt").write_text(ASSOCIATIONS, encoding="utf-8")
    (tmp_path / "qos.txt").write_text(QOS, encoding="utf-8")
    return tmp_path


def test_sacct_alone_gives_runs_by_partition(folder: Path) -> None:
    trace = read_slurm(folder / "jobs.txt")
    assert [run.pool for run in trace.runs] == ["h100", "long", "h100", "old"]
    assert {run.priority_class for run in trace.runs} == {Priority.NORMAL}
    assert (trace.yard.nodes, trace.yard.projects) == ((), ())
    assert counts(trace) == {"qos": 3}


def test_all_files_give_a_yard_in_any_order(folder: Path) -> None:
    names = ["qos.txt", "nodes.txt", "associations.txt", "topology.txt"]
    trace = read_slurm(folder / "jobs.txt", [folder / name for name in names])
    assert trace == read_slurm(folder / "jobs.txt", [folder / name for name in reversed(names)])
    assert [(run.name, run.pool, run.priority_class) for run in trace.runs] == [
        ("4711", "h100", Priority.NORMAL),
        ("4712", "h100", Priority.CRITICAL),
        ("4713", "h100", Priority.BEST_EFFORT),
    ]
    assert [run.run_id for run in trace.runs] == [1, 2, 3]
    assert trace.yard.devices == 48
    assert trace.yard.nodes[5].labels == {"fabric": "row2", "rack": "leaf3"}
    assert [project.name for project in trace.yard.projects] == ["nlp", "vision"]
    assert counts(trace)["no-pool"] == 1
    assert "old" in next(left.why for left in trace.not_carried if left.what == "no-pool")


def test_packed_files_and_windows_line_ends_are_read(folder: Path) -> None:
    plain = (folder / "jobs.txt").read_bytes()
    (folder / "jobs.xz").write_bytes(lzma.compress(plain))
    (folder / "jobs.gz").write_bytes(gzip.compress(plain))
    (folder / "windows.txt").write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    expected = read_slurm(folder / "jobs.txt")
    for name in ("jobs.xz", "jobs.gz", "windows.txt"):
        assert read_slurm(folder / name) == expected


def test_bytes_that_are_no_text_in_a_name_are_kept_apart(folder: Path) -> None:
    path = folder / "jobs.txt"
    path.write_bytes(path.read_bytes().replace(b"pretrain-7b", b"pr\xe9-7b"))
    assert {run.experiment for run in read_slurm(path).runs} == {"pr\\xe9-7b"}


def test_a_file_of_no_known_kind_is_refused(folder: Path) -> None:
    (folder / "notes.txt").write_text("remember the milk\n", encoding="utf-8")
    with pytest.raises(
        UserError, match=r"notes\.txt: is not known: it begins with 'remember the milk'"
    ) as caught:
        read_slurm(folder / "jobs.txt", [folder / "notes.txt"])
    assert caught.value.fix is not None
    assert "scontrol show nodes" in caught.value.fix.text


def test_two_files_of_one_kind_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="is of the same kind"):
        read_slurm(folder / "jobs.txt", [folder / "qos.txt", folder / "qos.txt"])
    with pytest.raises(UserError, match="is of the same kind"):
        read_slurm(folder / "jobs.txt", [folder / "jobs.txt"])


def test_the_nodes_of_another_cluster_are_refused(folder: Path) -> None:
    (folder / "others.txt").write_text(node("z01", partitions="a100"), encoding="utf-8")
    with pytest.raises(UserError, match="has no job in a partition of the nodes given"):
        read_slurm(folder / "jobs.txt", [folder / "others.txt"])
    (folder / "others.txt").write_text(node("z01", "(null)", configured=""), encoding="utf-8")
    with pytest.raises(UserError, match="has no node with whole GPUs"):
        read_slurm(folder / "jobs.txt", [folder / "others.txt"])
