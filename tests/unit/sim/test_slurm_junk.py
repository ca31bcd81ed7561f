"""Whatever a file holds, a reader returns a trace or refuses the file; no row disappears."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.errors import UserError
from airyard.sim.slurm.associations import read_projects
from airyard.sim.slurm.jobs import join
from airyard.sim.slurm.nodes import read_nodes
from airyard.sim.slurm.pools import Pools, partition_of
from airyard.sim.slurm.qos import read_qos
from airyard.sim.slurm.runs import trace_runs
from airyard.sim.slurm.sacct import read_starts
from airyard.sim.slurm.topology import read_topology
from airyard.sim.trace.philly import parse_philly
from airyard.sim.trace.records import Trace
from airyard.sim.trace.tally import Tally
from slurm_samples import ASSOCIATIONS, QOS, TOPOLOGY, counts, jobs, node, row, waiting


def read_jobs(lines: list[str]) -> Trace:
    """Read the output of sacct alone."""
    tally = Tally()
    found = join(read_starts(lines, "x", tally), "x", tally)
    return Trace(runs=trace_runs(found, partition_of, None, tally), not_carried=tally.records())


READERS = {
    "jobs": (
        read_jobs,
        "\n".join(jobs(row(), waiting(JobID="2_[1-3]"), row(JobID="3+0"), row(JobID="1.batch"))),
    ),
    "nodes": (lambda lines: Pools(read_nodes(lines, "x"), None, Tally()), node("n01") + node("n02", "gpu:2")),
    "topology": (lambda lines: read_topology(lines, "x"), TOPOLOGY),
    "associations": (lambda lines: read_projects(lines, "x", Tally()), ASSOCIATIONS),
    "qos": (lambda lines: read_qos(lines, "x", Tally()), QOS),
    "philly": (
        lambda lines: parse_philly(lines, "x", gpus_per_node=8),
        "submit_s,duration_s,gpus,team\n0,7,8,a\n1,7,12,b\n",
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_good_samples_are_read(name: str) -> None:
    read, sample = READERS[name]
    read(sample.splitlines())


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    read, sample = READERS[name]
    text = sample
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.sampled_from([0, 1, 1, 5, 200]))
        junk = data.draw(
            st.one_of(st.text(max_size=4), st.sampled_from(["|", "\n", "=", ",", "-", "9" * 30, "²", "[1-"]))
        )
        text = text[:at] + junk + text[at + cut :]
    refusal = None
    try:
        read(text.split("\n"))
    except UserError as refused:
        refusal = refused
    assert refusal is None or (refusal.code == "BAD_TRACE" and refusal.fix is not None)


@settings(max_examples=60, deadline=None)
@given(
    states=st.lists(
        st.sampled_from(
            [
                "COMPLETED",
                "FAILED",
                "CANCELLED by 7",
                "TIMEOUT",
                "RUNNING",
                "PENDING",
                "REQUEUED",
                "STEP",
                "CPU",
            ]
        ),
        max_size=12,
    )
)
def test_every_row_is_a_run_or_counted(states: list[str]) -> None:
    rows = [row(JobID="1")]
    for number, state in enumerate(states, start=2):
        if state == "STEP":
            rows.append(row(JobID=f"{number}.batch"))
        elif state == "CPU":
            rows.append(row(JobID=str(number), AllocTRES="cpu=1,node=1", ReqTRES="cpu=1"))
        elif state == "PENDING":
            rows.append(waiting(JobID=str(number)))
        else:
            rows.append(row(JobID=str(number), State=state))
    trace = read_jobs(jobs(*rows))
    assert len(trace.runs) + sum(counts(trace).values()) == len(rows)
