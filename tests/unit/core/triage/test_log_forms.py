"""Logs as they come from elsewhere: containers' headings, JSON, other languages, long and cut lines.

Owns: forms of lines and files of jobs, and what of them must not be taken for more than it is. Must not know: files.
"""

from __future__ import annotations

import json
import time

import pytest

from airyard.core.triage.causes import FailureCause
from airyard.core.triage.judging import judge
from airyard.core.triage.reading import Reader

ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
STAMP = "2026-12-03T10:11:12.000000001Z"


def verdict(*logs: tuple[str, str | bytes]) -> FailureCause:
    """Judge logs by their names; ``dmesg`` is a kernel's."""
    found = None
    for name, text in logs:
        reader = Reader(name, kernel="dmesg" in name)
        reader.feed(text if isinstance(text, bytes) else text.encode())
        if found is None:
            found = reader.findings()
        else:
            found.merge(reader.findings())
    assert found is not None
    return judge(found)


@pytest.mark.parametrize(
    "line",
    [
        f"{STAMP} stderr F {ECC}",
        f"[pod/train-worker-0/pytorch] {ECC}",
        f"[pod/train-worker-0/pytorch] {STAMP} {ECC}",
        f"trainer-1  | {ECC}",
        f"1: {ECC.removeprefix('[rank3]: ')}",
        json.dumps({"log": f"{ECC}\n", "stream": "stderr", "time": STAMP}),
        json.dumps({"line": ECC, "timestamp": STAMP, "fields": {"pod": "w-9"}}),
        json.dumps({"kubernetes": {"pod_name": "w-0"}, "log": ECC}),
        json.dumps({"rank": 3, "level": "error", "event": ECC.removeprefix("[rank3]: ")}),
    ],
)
def test_headings_of_others_hide_neither_the_error_nor_its_rank(line: str) -> None:
    found = verdict(("all.log", line + "\n"))
    assert found.rule == "cuda.ecc"
    assert found.first_rank == (1 if line.startswith("1: ") else 3)
    assert found.blamed_node == "", "neither a pod nor a service is a node"


def test_the_number_of_a_service_is_no_rank() -> None:
    assert verdict(("c.log", "trainer-1  | KeyError: 'lr'\n")).first_rank is None


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("/tmp/job.sh: Zeile 14: torchrun: Befehl nicht gefunden.", "user.command"),
        ("bash: torchrun : commande introuvable", "user.command"),
        ("bash: torchrun: orden no encontrada", "user.command"),
        ("bash: torchrun: 未找到命令", "user.command"),
        ("bash: ./run.sh: Keine Berechtigung", "user.command"),
        ("job.sh: Zeile 3:  2183 Speicherzugriffsfehler  python train.py", "user.segfault"),
        ("cp: error writing '/d/x': Aucun espace disponible sur le périphérique", "config.disk_full"),
        ("OSError: [Errno 28] Auf dem Gerät ist kein Speicherplatz mehr verfügbar: '/d'", "config.disk_full"),
        ("OSError: [Errno 122] Disk-Kontingent überschritten", "config.disk_full"),
        ("OSError: [Errno 116] Veraltete Dateizugriffsnummer: '/mnt/x'", "config.storage"),
        ("bash: ligne 1:  2183 Processus arrêté          python train.py", "process.killed"),
    ],
)
def test_shells_and_the_c_library_speak_the_users_language(line: str, rule: str) -> None:
    found = verdict(("job.log", line + "\n"))
    assert found.rule == rule
    assert line in [each.text for each in found.evidence], "a person sees what was printed"


def test_an_error_before_a_long_lines_rest_is_found_and_the_rest_costs_nothing() -> None:
    began = time.process_time()
    found = verdict(
        ("rank0.log", b"dump " + b"x" * 8_000_000 + b"\nValueError: too long " + b"z" * 8_000_000)
    )
    assert found.rule == "user.exception"
    assert time.process_time() - began < 3


def test_a_bar_that_overwrites_itself_is_read_to_its_end() -> None:
    bar = "\r".join(f"{step}%|####| {step}/100" for step in range(2_000)) + "\rValueError: bad\n"
    assert verdict(("rank0.log", bar)).rule == "user.exception"


def test_a_traceback_that_is_cut_is_shown_and_not_called_nothing() -> None:
    found = verdict(
        ("rank0.log", "step 1\n[rank0]: Traceback (most recent call last):\n[rank0]:   File 't.py'")
    )
    assert (found.rule, found.failure_class.value) == ("traceback.unread", "unknown")
    assert [(each.number, each.rank) for each in found.evidence] == [(2, 0)]


def test_an_exception_behind_its_level_counts_before_a_fault_of_hours_ago() -> None:
    kernel = "2026-12-03T01:00:00.000000+00:00 n7 kernel: [ 99.1] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off\n"
    found = verdict(("job.log", "2026-12-03 10:11:12,000 ERROR ValueError: bad\n"), ("dmesg", kernel))
    assert (found.rule, found.confirmed) == ("user.exception", False)


def test_an_exception_that_a_program_went_on_after_is_not_why_it_ended() -> None:
    kernel = "2026-12-03T10:11:00.000000+00:00 n7 kernel: [ 99.1] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off\n"
    handled = "2026-12-03 08:10:00 ERROR ValueError: bad sample, skipped\n"
    ended = "2026-12-03 10:11:02 RuntimeError: CUDA error: unspecified launch failure\n"
    assert verdict(("rank0.log", handled + ended), ("dmesg", kernel)).rule == "xid.79"
    peer = (
        "2026-12-03 10:11:02 RuntimeError: NCCL error: remote process exited or there was a network error\n"
    )
    assert verdict(("rank0.log", handled + peer)).rule == "user.exception", (
        "it did not end, and met the network"
    )


def test_data_in_an_object_is_not_what_a_logger_says() -> None:
    row = json.dumps({"id": {"a": 1}, "error": "uncorrectable ECC error", "label": 1})
    assert verdict(("a.log", f"{row}\nKeyError: 'id'\n")).failure_class.value == "user"


KILLED = "[Thu Dec  3 10:11:12 2026] Out of memory: Killed process 2186 (python) total-vm:9kB, anon-rss:6kB\n"


def test_whose_process_was_killed_for_memory_decides_what_it_has_to_do_with_the_failure() -> None:
    error = "[rank0]: KeyError: 'x'\n"
    place = "n7:2186:99 [0] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 3b000 commId 0x2\n"

    assert verdict(("job.log", error), ("dmesg", KILLED)).rule == "user.exception"
    assert verdict(("job.log", place + error), ("dmesg", KILLED)).rule == "host.oom"
    assert (
        verdict(("job.log", error + "job.sh: line 3: 2186 Killed python\n"), ("dmesg", KILLED)).rule
        == "host.oom"
    )


def test_kernels_logs_in_folders_of_their_hosts_are_of_these() -> None:
    def place(host: str, rank: int) -> str:
        return f"{host}:2183:9 [0] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 9b000 commId 0x2\n"

    xid = "[ 99.1] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    jobs = ("job.log", place("n7", 0) + place("n8", 1))

    found = verdict(jobs, ("logs/n8/dmesg", xid))
    assert (found.first_rank, found.blamed_node) == (1, "n8")
    assert verdict(jobs, ("logs/n80/dmesg", xid)).first_rank is None
    assert verdict(jobs, ("logs/n7-n8/dmesg", xid)).first_rank is None
