"""What becomes of the rows of sacct: which are carried over as runs, and what is counted of the rest."""

from __future__ import annotations

import pytest

from airyard.core.errors import UserError
from airyard.sim.slurm.jobs import join
from airyard.sim.slurm.pools import partition_of
from airyard.sim.slurm.runs import trace_runs
from airyard.sim.slurm.sacct import read_starts
from airyard.sim.trace.records import Trace, TraceOutcome, TraceRun
from airyard.sim.trace.tally import Tally
from slurm_samples import counts, jobs, row, waiting

HOUR_MS = 3_600_000


def read(lines: list[str]) -> Trace:
    """Read the output of sacct alone."""
    tally = Tally()
    found = join(read_starts(lines, "jobs.txt", tally), "jobs.txt", tally)
    runs = trace_runs(found, partition_of, None, tally)
    return Trace(runs=runs, not_carried=tally.records())


def only(*rows: str) -> TraceRun:
    """Return the one run of a trace."""
    (run,) = read(jobs(*rows)).runs
    return run


def refusal(*rows: str) -> str:
    """Return the message with which rows are refused."""
    with pytest.raises(UserError) as caught:
        read(jobs(*rows))
    assert caught.value.code == "BAD_TRACE"
    assert caught.value.fix is not None
    return caught.value.message


def test_a_job_becomes_a_run() -> None:
    run = only(row())
    assert (run.run_id, run.name, run.nodes, run.devices_per_node) == (1, "4711", 2, 8)
    assert (run.project, run.user, run.experiment, run.pool) == ("nlp", "ann", "pretrain-7b", "h100")
    assert run.duration_ms == 2 * HOUR_MS
    assert run.limit_ms == 4 * HOUR_MS
    assert run.really_waited_ms == 600_000
    assert run.really_started_ms == run.submit_ms + 600_000
    assert run.really_ended_ms == run.submit_ms + 600_000 + 2 * HOUR_MS
    assert (run.begin_ms, run.outcome, run.starts) == (run.submit_ms, TraceOutcome.SUCCEEDED, 1)


def test_runs_are_numbered_in_order_of_submit() -> None:
    trace = read(jobs(row(JobID="2", Submit="2026-03-02T07:59:00"), row(JobID="1")))
    assert [(run.run_id, run.name) for run in trace.runs] == [(1, "2"), (2, "1")]


def test_columns_may_come_in_any_order_and_any_case() -> None:
    header, line = jobs(row())
    turned = ["|".join(reversed(text.split("|"))) for text in (header.lower(), line)]
    assert read(turned).runs == read([header, line]).runs


def test_a_closed_table_and_another_separator_are_read() -> None:
    plain = jobs(row())
    assert read([f"{line}|" for line in plain]).runs == read(plain).runs
    assert read([line.replace("|", "~~") for line in plain]).runs == read(plain).runs


def test_steps_are_passed_over_and_counted() -> None:
    steps = [
        row(JobID=f"4711.{step}", User="", Partition="", Timelimit="") for step in ("batch", "extern", "0")
    ]
    trace = read(jobs(row(), *steps))
    assert len(trace.runs) == 1
    assert counts(trace) == {"steps": 3}


def test_arrays_and_heterogeneous_jobs_are_runs_of_their_own() -> None:
    parts = [row(JobID="9+0"), row(JobID="9+1", AllocTRES="cpu=8,node=1", ReqTRES="cpu=8,node=1")]
    trace = read(jobs(row(JobID="8_1"), row(JobID="8_2"), *parts))
    assert [run.name for run in trace.runs] == ["8_1", "8_2", "9+0"]
    assert counts(trace) == {"heterogeneous": 1, "cpu-only": 1}


def test_what_never_ran_to_an_end_is_counted() -> None:
    trace = read(
        jobs(
            row(),
            waiting(JobID="1"),
            waiting(JobID="2_[5-900%4]"),
            waiting(JobID="3", State="CANCELLED by 1000", Start="None", End="2026-03-02T09:00:00"),
            row(JobID="4", State="RUNNING", End="Unknown"),
            row(JobID="5", State="REVOKED"),
            row(JobID="6", AllocTRES="cpu=4,node=1", ReqTRES="cpu=4,node=1"),
            row(JobID="7", AllocTRES="cpu=4,gres/gpu:1g.10gb=1,gres/gpu=1,node=1", ReqTRES="gres/gpu=1"),
            # Older versions give a job that was cancelled while it waited a start, but no allocation.
            waiting(JobID="8", State="CANCELLED", Start="2026-03-02T09:00:00", End="2026-03-02T09:00:00"),
        )
    )
    assert [run.name for run in trace.runs] == ["4711"]
    assert counts(trace) == {"cpu-only": 1, "gpu-parts": 1, "never-started": 2, "not-ended": 3, "revoked": 1}


def test_a_requeued_job_is_one_run() -> None:
    first = row(State="PREEMPTED", End="2026-03-02T09:10:00", ElapsedRaw="3600")
    again = row(
        Submit="2026-03-02T09:10:04",
        Eligible="2026-03-02T09:12:05",
        Start="2026-03-02T11:00:00",
        End="2026-03-02T13:00:00",
    )
    trace = read(jobs(again, first))
    (run,) = trace.runs
    assert (run.starts, run.duration_ms, run.outcome) == (2, 3 * HOUR_MS, TraceOutcome.SUCCEEDED)
    assert (run.really_waited_ms, run.really_ended_ms) == (600_000, run.submit_ms + 5 * HOUR_MS)
    assert counts(trace) == {"requeues": 1}


def test_a_requeued_job_that_waits_again_has_not_ended() -> None:
    again = waiting(JobID="5", Submit="2026-03-02T09:10:04")
    trace = read(jobs(row(), row(JobID="5", State="NODE_FAIL", End="2026-03-02T09:10:00"), again))
    assert counts(trace) == {"not-ended": 1}


def test_a_job_cancelled_after_its_requeue_ends_with_its_last_start() -> None:
    cancelled = waiting(State="CANCELLED by 0", Submit="2026-03-02T10:10:04", End="2026-03-02T12:00:00")
    run = only(row(State="PREEMPTED"), cancelled)
    assert (run.outcome, run.starts, run.duration_ms) == (TraceOutcome.CANCELLED, 1, 2 * HOUR_MS)
    assert run.really_ended_ms == run.submit_ms + 600_000 + 2 * HOUR_MS


def test_a_number_that_was_given_anew_is_another_job() -> None:
    trace = read(jobs(row(), row(User="bob", JobName="eval")))
    assert [run.user for run in trace.runs] == ["ann", "bob"]


def test_exports_that_overlap_are_read_once() -> None:
    still_running = row(State="RUNNING", End="Unknown", ElapsedRaw="60")
    trace = read([*jobs(still_running), *jobs(row(), row())])
    assert len(trace.runs) == 1
    assert counts(trace) == {"repeated-headers": 1, "repeated-records": 2}


def test_records_that_contradict_each_other_are_refused() -> None:
    assert "line 3: tells another story of job 4711 than line 2" in refusal(row(), row(ElapsedRaw="7000"))
    overlapping = row(Submit="2026-03-02T08:30:00", Start="2026-03-02T09:00:00")
    assert "line 3: says that job 4711 started before its start in line 2 had ended" in refusal(
        row(), overlapping
    )


def test_a_job_begins_when_it_became_eligible() -> None:
    trace = read(jobs(row(Eligible="2026-03-02T08:06:00")))
    (run,) = trace.runs
    assert (run.begin_ms - run.submit_ms, run.really_waited_ms) == (360_000, 240_000)
    assert counts(trace) == {"late-eligible": 1}
    assert only(row(Eligible="Unknown")).begin_ms == run.submit_ms


def test_the_gpus_it_held_count() -> None:
    asked = "cpu=1,gres/gpu=1,node=1"
    trace = read(jobs(row(NNodes="1", ReqTRES=asked, AllocTRES="cpu=64,gres/gpu:h100=8,gres/gpu=8,node=1")))
    assert (trace.runs[0].nodes, trace.runs[0].devices_per_node) == (1, 8)
    assert counts(trace) == {"exclusive": 1}


def test_gpus_that_do_not_divide_by_nodes_are_rounded_up() -> None:
    trace = read(jobs(row(AllocTRES="gres/gpu=13,node=2", ReqTRES="gres/gpu=13")))
    assert trace.runs[0].devices_per_node == 7
    assert counts(trace) == {"uneven": 1}


def test_what_a_replay_does_not_know_is_counted() -> None:
    held = "cpu=8,gres/gpu:a100=4,gres/gpu:h100=4,gres/gpu=8,license/abc=1,node=1"
    trace = read(
        jobs(
            row(
                Constraints="fabric-a&rack1",
                Reservation="course",
                Suspended="00:10:00",
                Timelimit="Partition_Limit",
                QOS="urgent",
                Account="",
                AllocTRES=held,
                ReqTRES="gres/gpu=8",
                State="TELEPORTED",
            )
        )
    )
    (run,) = trace.runs
    assert (run.limit_ms, run.project, run.outcome) == (None, "unknown", TraceOutcome.UNKNOWN)
    assert set(counts(trace)) == {
        "suspended", "mixed-types", "constraints", "reservations", "licences", "partition-limits", "states", "qos",
        "no-account",
    }  # fmt: skip


def test_columns_that_nothing_reads_are_named() -> None:
    header, line = jobs(row())
    (left,) = read([f"MaxRSS|{header}", f"12K|{line}"]).not_carried
    assert (left.what, left.count) == ("columns", 1)
    assert "MaxRSS" in left.why


def test_few_columns_are_enough() -> None:
    names = ("JobID", "User", "Account", "Partition", "State", "Submit", "Start", "End", "AllocTRES")
    values = dict(zip(*(text.split("|") for text in jobs(row())), strict=True))
    (run,) = read(["|".join(names), "|".join(values[name] for name in names)]).runs
    assert (run.nodes, run.devices, run.duration_ms, run.limit_ms) == (2, 16, 2 * HOUR_MS, None)
    assert run.experiment == "4711"


def test_a_run_that_ended_in_the_second_of_its_start_took_one_second() -> None:
    assert only(row(ElapsedRaw="0", End="2026-03-02T08:10:00")).duration_ms == 1000


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("JobID", "nlp", "a job id like 123"),
        ("State", "fine", "a job state"),
        ("Submit", "Unknown", "a time like"),
        ("Start", "8 o'clock", "a time like"),
        ("Submit", "1960-01-01T00:00:00", "a time after 1970"),
        ("ElapsedRaw", "-7200", "a number of seconds, not below zero"),
        ("Timelimit", "long", "a duration"),
        ("AllocTRES", "gres/gpu=many", "counts from 0"),
        ("NodeList", "n[1-", "node names"),
        ("Suspended", "x", "a duration"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(column: str, value: str, expected: str) -> None:
    message = refusal(row(), row(**{"JobID": "4712", column: value}))
    assert message.startswith(f"jobs.txt, line 3, column {column}: found {value!r}, expected {expected}")


def test_an_end_before_its_start_is_refused_and_the_clock_named() -> None:
    with pytest.raises(UserError, match=r"line 2, column End: found '2026-03-02T08:00:00'") as caught:
        read(jobs(row(End="2026-03-02T08:00:00")))
    assert caught.value.fix is not None
    assert "TZ=UTC sacct" in caught.value.fix.text


def test_a_start_before_its_submit_is_left_out_and_counted() -> None:
    trace = read(jobs(row(), row(JobID="5", Submit="2026-03-02T08:30:00")))
    assert counts(trace) == {"early-starts": 1}
    assert "line 3" in trace.not_carried[0].why


def test_a_name_with_the_separator_is_read_where_it_comes_last() -> None:
    assert only(row(JobName="train|7b|v2")).experiment == "train|7b|v2"
    header, line = jobs(row(Reservation="a|b"))
    with pytest.raises(UserError, match="line 2: has 22 fields where the header names 21"):
        read([f"{header}|ExitCode", f"{line}|0:0"])


def test_a_line_that_was_cut_is_refused() -> None:
    assert "line 3: has 12 fields where the header names 20" in refusal(
        row(), "|".join(row().split("|")[:12])
    )


def test_columns_that_lack_are_named_together_with_the_command() -> None:
    with pytest.raises(UserError) as caught:
        read(["JobID|JobName|User|Partition", "1|a|b|c"])
    assert "lacks the columns Account, State, Submit, Start, End, AllocTRES" in caught.value.message
    assert caught.value.fix is not None
    assert "sacct -a -X -D --parsable2" in caught.value.fix.text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "jobs.txt: is empty"),
        (["", "  "], "jobs.txt: is empty"),
        (jobs(), "has a header and no jobs"),
        ([row()], "line 1: has no header with JobID: it begins with '4711|ann"),
        (["JobID           JobName  Partition", "------- --- ---"], "line 1: is a table for people"),
        (["JobID,User,State", "1,a,b"], "has no header with JobID"),
        (["sacct: error: slurm_persist_conn_open"], "has no header with JobID"),
    ],
)
def test_what_is_no_output_of_sacct_is_refused(lines: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read(lines)
    assert expected in caught.value.message


def test_a_column_named_twice_is_refused() -> None:
    header, line = jobs(row())
    with pytest.raises(UserError, match="names a column twice: User"):
        read([f"User|{header}", f"x|{line}"])


def test_two_clusters_are_refused() -> None:
    header, *lines = jobs(row(), row(JobID="4712"))
    with pytest.raises(UserError, match="is of cluster b, line 2 of cluster a"):
        read([f"Cluster|{header}", f"a|{lines[0]}", f"b|{lines[1]}"])


def test_a_record_without_gpus_names_what_slurm_must_be_told() -> None:
    with pytest.raises(UserError, match=r"no job that ran to an end on whole GPUs \(1 cpu-only\)") as caught:
        read(jobs(row(AllocTRES="cpu=8,node=1", ReqTRES="cpu=8,node=1")))
    assert caught.value.fix is not None
    assert "AccountingStorageTRES=gres/gpu" in caught.value.fix.text
