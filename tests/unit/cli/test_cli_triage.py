"""The verb triage: saved logs without a server, a run of the server, and what it says of bad input."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airyard.core.errors import NotFound
from airyard.core.triage.causes import FailureCause
from airyard.core.triage.judging import judge
from airyard.core.triage.reading import Findings
from airyard.sdk.transport import ConnectionLost
from triage_score import CORPUS

ECC = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def told(done: tuple[int, str, str]) -> Any:
    code, out, err = done
    assert (code, err) == (0, "")
    return json.loads(out)["data"]


def test_a_folder_of_logs_with_the_kernels_beside_them(airyard: Any) -> None:
    found = told(airyard("triage", str(CORPUS / "develop" / "14-container-fails-gsp"), "-o", "json"))
    assert (found["class"], found["cause"], found["rule"]) == ("driver", "NODE", "xid.119")
    assert (found["confirmed"], found["blamed_device"], found["files"]) == (True, "0000:81:00", 3)
    assert found["evidence"][0]["kernel"] is True


def test_text_names_file_and_line(airyard: Any, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"step 1\nstep 2\n{ECC}")
    code, out, err = airyard("triage", str(log))
    assert (code, err) == (0, "")
    assert "class       hardware → DEVICE" in out
    assert "first rank  1\n" in out
    assert f"{log}:3: RuntimeError: CUDA error: uncorrectable ECC error encountered" in out
    assert "blamed      nobody" in out


def test_one_file_a_rank_and_compressed(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\n")
    (tmp_path / "rank7.log.gz").write_bytes(gzip.compress(b"KeyError: 'labels'\n"))
    found = told(airyard("triage", str(tmp_path), "-o", "json"))
    assert (found["class"], found["first_rank"], found["also_seen"]) == ("user", 7, ["torch.watchdog"])


def test_a_kernels_log_by_any_name(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "n7.txt").write_text("[ 5.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    as_job = told(airyard("triage", str(tmp_path / "n7.txt"), "-o", "json"))
    assert (as_job["class"], as_job["confirmed"]) == ("unknown", False)
    as_kernel = told(airyard("triage", "--kernel", str(tmp_path / "n7.txt"), "-o", "json"))
    assert (as_kernel["class"], as_kernel["confirmed"]) == ("hardware", True)


@pytest.mark.parametrize("name", ["messages_rank0.log", "kernel_fusion_job.log", "journal.txt", "syslog"])
def test_a_name_alone_makes_no_kernels_log(airyard: Any, tmp_path: Path, name: str) -> None:
    log = tmp_path / name
    log.write_text(
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        "RuntimeError: shape '[2, 3]' is invalid for input of size 5\n"
    )
    code, out, err = airyard("triage", str(tmp_path))
    assert code == 0
    assert "user.shape" in out
    assert f"{log} was read as a job's log" in err
    assert "--kernel" in err
    assert told(airyard("triage", "--kernel", str(log), "-o", "json"))["class"] == "hardware"
    log.write_text("[ 5.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert told(airyard("triage", str(tmp_path), "-o", "json"))["class"] == "hardware"


@pytest.mark.parametrize("name", ["dmesg", "dmesg-n7.txt", "kern.log", "kern.log.1", "kmsg"])
def test_a_kernels_log_without_stamps_is_one_by_its_name(airyard: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert told(airyard("triage", str(tmp_path), "-o", "json"))["confirmed"] is True


def test_a_pipe_in_a_folder_is_left_out_and_one_that_is_named_is_read(airyard: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "rank0.log"
    os.mkfifo(pipe)
    (tmp_path / "rank1.log").write_text("KeyError: 'x'\n")
    code, out, err = airyard("triage", str(tmp_path))
    assert (code, "user.exception" in out) == (0, True)
    assert f"left out: {pipe} is a pipe" in err
    writer = threading.Thread(target=pipe.write_text, args=("KeyError: 'y'\n",), daemon=True)
    writer.start()
    assert told(airyard("triage", str(pipe), "-o", "json"))["class"] == "user"
    writer.join(5)


def test_what_others_wrote_into_the_kernels_log_is_told(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("12,9,88,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    code, out, err = airyard("triage", str(tmp_path))
    assert code == 0
    assert "class       unknown" in out
    assert "1 line of a kernel's log was not written by the kernel" in err


def test_many_octets_are_read_by_several_processes_to_the_same_end(
    airyard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        text = "step 1 loss 2.0\n" * 2000 + (ECC.replace("rank1", "rank2") if rank == 2 else "")
        (tmp_path / f"rank{rank}.log").write_text(text)
    alone = told(airyard("triage", str(tmp_path), "-o", "json"))
    monkeypatch.setattr("airyard.cli.triage_files._MUCH", 1)
    together = told(airyard("triage", str(tmp_path), "-o", "json"))
    assert alone == together
    assert (together["first_rank"], together["lines"]) == (2, 8001)


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("none.log", None, "LOG_NOT_FOUND", "there is no file"),
        ("empty.log", b"", "EMPTY_LOG", "is empty"),
        ("binary.log", b"\x7fELF" + b"\0" * 400, "NOT_A_LOG", "is no text"),
        ("packed.log", random.Random(7).randbytes(20_000), "NOT_A_LOG", "is no text"),
        ("cut.log.gz", gzip.compress(b"x" * 100_000, mtime=0)[:60], "LOG_NOT_READABLE", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    airyard: Any, tmp_path: Path, name: str, content: bytes | None, code: str, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    exit_code, out, _ = airyard("triage", str(path), "-o", "json")
    error = json.loads(out)["error"]
    assert (exit_code, error["code"]) == (2, code)
    assert words in error["message"]
    assert name in error["message"]
    assert error["fix"]


def test_a_damaged_log_is_judged_as_far_as_it_goes(airyard: Any, tmp_path: Path) -> None:
    noise = (
        random.Random(7).randbytes(300_000).hex(" ", 40)
    )  # packs badly: half of the octets is half of the lines
    packed = gzip.compress((ECC + noise.replace(" ", "\n")).encode())
    (tmp_path / "rank1.log.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "rank2.log.gz").write_bytes(packed[:20])
    (tmp_path / "rank3.log").write_text("step 1\n")
    code, out, err = airyard("triage", str(tmp_path))
    assert code == 0
    assert "class       hardware" in out
    assert "rank1.log.gz cannot be read to its end" in err
    assert "of it was read" in err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_logs_of_other_encodings_and_line_ends_are_read(airyard: Any, tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "a.log"
    log.write_bytes("KeyError: 'labels é'\r\nstep\r\n".encode(encoding))
    found = told(airyard("triage", str(log), "-o", "json"))
    assert (found["rule"], found["lines"]) == ("user.exception", 2)


def test_a_log_that_was_emptied_while_it_was_written_is_read(airyard: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"step\n" * 5_000 + b"\0" * 100_000 + b"KeyError: 'labels'\n")
    assert told(airyard("triage", str(log), "-o", "json"))["rule"] == "user.exception"


def test_of_several_files_an_empty_one_is_left_out(airyard: Any, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("rank0.log", "rank1.log")]
    paths[0].write_bytes(b"")
    paths[1].write_text("KeyError: 'labels'\n")
    code, out, err = airyard("triage", *map(str, paths))
    assert code == 0
    assert "class       user" in out
    assert err == f"left out: {paths[0]} is empty\n"


def test_a_line_of_many_megabytes_hides_no_other(airyard: Any, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"error " * 1_700_000 + b"\nKeyError: 'labels'\n")
    assert told(airyard("triage", str(log), "-o", "json"))["rule"] == "user.exception"


def test_a_folder_leaves_out_what_is_no_log_and_says_so(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("KeyError: 'labels'\n")
    (tmp_path / "model.pt").write_bytes(b"PK\3\4" + b"\0" * 400)
    (tmp_path / ".hidden").write_text(ECC)
    code, out, err = airyard("triage", str(tmp_path))
    assert code == 0
    assert "class       user" in out
    assert err == f"left out: {tmp_path / 'model.pt'} is no text\n"


def test_a_folder_without_logs_is_refused(airyard: Any, tmp_path: Path) -> None:
    code, out, _ = airyard("triage", str(tmp_path), "-o", "json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "NO_LOGS")


def test_nothing_named_and_an_attempt_of_files_are_usage_errors(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x\n")
    assert airyard("triage")[0] == 2
    code, _, err = airyard("triage", str(tmp_path / "a.log"), "--attempt", "1")
    assert code == 2
    assert "--attempt is of a run" in err


def test_a_run_is_asked_of_the_server(airyard: Any) -> None:
    verdict: FailureCause = judge(Findings())
    answers = {"GET /runs/12/triage": [{"run_id": 12, "attempt": 1, "verdict": verdict.as_json()}]}
    code, out, _ = airyard("triage", "12", "--attempt", "1", answers=answers)
    assert code == 0
    assert "nothing in these logs looks like a failure (nothing.found)" in out
    assert "the logs of attempt 1 of run 12" in out


def test_a_run_goes_by_its_name_where_no_file_has_it(
    airyard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = {"run_id": 12, "attempt": 0, "verdict": judge(Findings()).as_json()}
    unknown = NotFound("there is no run 'rank0.log'", code="RUN_NOT_FOUND")
    answers = {"GET /runs/digits/triage": [answer], "GET /runs/rank0.log/triage": [unknown]}
    assert "attempt 0 of run 12" in airyard("triage", "digits", answers=answers)[1]
    code, _, err = airyard("triage", "rank0.log", answers=answers)
    assert (code, "there is no file rank0.log, and no run has that name" in err) == (2, True)
    assert airyard("triage", "rank0.log", "--fresh", answers=answers)[0] == 3
    answers["GET /runs/rank0.log/triage"] = [ConnectionLost("nobody answers at h", sent=False)]
    code, _, err = airyard("triage", "rank0.log", answers=answers)
    assert (code, "cannot be told: nobody answers at h" in err) == (2, True)
    # A path is no name, and of a file's name the file is meant.
    code, _, err = airyard("triage", "./digits", answers=answers)
    assert (code, "goes by its number, its name, @last or tag:" in err) == (2, True)
    (tmp_path / "digits").write_text("KeyError: 'labels'\n")
    assert "1 file" in airyard("triage", "digits", answers=answers)[1]


def test_no_server_is_started_for_a_file_that_is_not_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AIRYARD_HOME": str(home)}
    command = [sys.executable, "-m", "airyard.cli", "triage", "rank0.log"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "there is no file rank0.log" in done.stderr) == (2, True)
    assert not home.exists()


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("rank4.log.1", gzip.compress),
        ("rank4.log.gz", bytes),
        ("rank4.log.xz", lzma.compress),
        ("rank4.log.bz2", bz2.compress),
    ],
)
def test_rotated_logs_are_read_by_what_they_are_not_by_their_ending(
    airyard: Any, tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    (tmp_path / name).write_bytes(pack(b"step 1\nKeyError: 'labels'\n"))
    found = told(airyard("triage", str(tmp_path), "-o", "json"))
    assert (found["rule"], found["first_rank"], found["notes"]) == ("user.exception", 4, [])


def test_a_damaged_packed_log_is_told_of(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("KeyError: 'labels'\n")
    (tmp_path / "b.log.xz").write_bytes(lzma.compress(b"step\n" * 100_000)[:80])
    found = told(airyard("triage", str(tmp_path), "-o", "json"))
    assert found["rule"] == "user.exception"
    assert "b.log.xz cannot be read" in found["notes"][0]


def test_what_a_container_printed_is_no_kernels_log_and_that_is_told(airyard: Any, tmp_path: Path) -> None:
    heading = "2026-12-03T10:11:12.000000000Z stdout F "
    (tmp_path / "dmesg.txt").write_text(
        f"{heading}[   99.1] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen\n"
    )
    found = told(airyard("triage", str(tmp_path), "-o", "json"))
    assert (found["class"], found["confirmed"]) == ("unknown", False)
    assert "take its heading off" in found["notes"][0]


def piped(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "airyard.cli", "triage", *arguments]
    return subprocess.run(line, input=data, capture_output=True, check=False, timeout=60)


def test_what_is_piped_in_is_judged_alone_or_beside_files(tmp_path: Path) -> None:
    said = piped(ECC.encode(), "-", "-o", "json")
    found = json.loads(said.stdout)["data"]
    assert (said.returncode, found["rule"], found["first_rank"], found["files"]) == (0, "cuda.ecc", 1, 1)
    assert found["evidence"][0]["file"] == "-"
    (tmp_path / "rank0.log").write_text("step 1\n")
    both = piped(ECC.encode(), str(tmp_path / "rank0.log"), "-", "-o", "json")
    assert json.loads(both.stdout)["data"]["files"] == 2
    kernel = b"[   12.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    confirmed = json.loads(piped(kernel, "--kernel", "-", "-o", "json").stdout)["data"]
    assert (confirmed["rule"], confirmed["confirmed"]) == ("xid.79", True)
    nothing = piped(b"", "-")
    assert (nothing.returncode, nothing.stderr.startswith(b"error: - had nothing to read")) == (2, True)


def test_an_empty_name_is_not_taken_for_this_folder(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(ECC)
    code, out, err = airyard("triage", str(tmp_path / "rank0.log"), "")
    assert (code, out) == (2, "")
    assert "error: one of the names is empty\nnext: Name a file or a folder; a variable of the shell" in err


def test_streams_that_the_caller_closed_are_no_bug(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(ECC)
    line = f"{sys.executable} -m airyard.cli triage {tmp_path / 'rank0.log'}"
    for closed in (">&-", "2>&-", ">&- 2>&-", "<&-"):
        done = subprocess.run(f"{line} {closed}", shell=True, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b""), closed
