"""A leader that is suspended in the middle of a write, and wakes after another one has taken over: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airyard.adapters.blob_files import FileBlobStore
from airyard.adapters.log_files import FileLogStore
from airyard.adapters.secrets_fernet import FernetSecretStore
from airyard.core.errors import NotFound, Unavailable
from airyard.core.ids import MemberKey
from airyard.core.log_frames import Gap, LogRecord, LogStream, encode

KEY = MemberKey(1, 0, 0)
STOP = "os.kill(os.getpid(), signal.SIGSTOP)"

LOGS = f"""
import os, signal, sys
from pathlib import Path
from airyard.adapters import log_file
from airyard.adapters.log_files import FileLogStore
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord, LogStream, encode

store, key = FileLogStore(Path(sys.argv[1]), term=6), MemberKey(1, 0, 0)

def frames(first, *texts):
    return b"".join(
        encode(LogRecord(stream=LogStream.STDOUT, seq=first + n, time_ns=n, payload=text))
        for n, text in enumerate(texts)
    )

store.append(key, frames(0, b"one\\n"))

def halfway(fd, data, offset):
    half = len(data) // 2
    os.pwrite(fd, data[:half], offset)
    {STOP}
    os.pwrite(fd, data[half:], offset + half)
    os.ftruncate(fd, offset)  # as after a disk that refused the rest
    os.pwrite(fd, data, offset)

log_file._write_at = halfway
store.append(key, frames(1, b"of the old leader\\n" * 200, b"of the old leader, too\\n"))
try:
    store.append(MemberKey(1, 0, 1), frames(0, b"a log that it has not begun\\n"))
except Exception as error:
    sys.exit(f"{{error.code}}")
"""

SECRETS = f"""
import os, signal, sys
from pathlib import Path
from airyard.adapters.secrets_fernet import FernetSecretStore

store = FernetSecretStore(Path(sys.argv[1]), term=6)
store.put("ada", "team", "key", "the first value", masked=True, now_ms=1)
store.put("ada", "team", "gone", "to be deleted", masked=True, now_ms=1)
store._database.execute("BEGIN IMMEDIATE")
{STOP}
store.put("ada", "team", "key", "a value too late", masked=True, now_ms=2)
store.put("ada", "team", "gone", "back from the dead", masked=True, now_ms=2)
store._database.execute("COMMIT")
"""

REMOVAL = f"""
import os, signal, sys
from pathlib import Path
from airyard.adapters.blob_files import FileBlobStore

store = FileBlobStore(Path(sys.argv[1]), shared=True)
replace = os.replace

def late(source, target):
    if ".removed-" in str(target):
        {STOP}
    replace(source, target)

store.put("tree", [b"code"])
os.replace = late
store.delete("tree")
"""


@contextmanager
def suspended(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a leader of term 6 until it has stopped itself; it is killed in the end, if it is still there."""
    leader = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        _, status = os.waitpid(leader.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), leader.stderr and leader.stderr.read()
        yield leader
    finally:
        leader.kill()
        leader.wait()


def wake(leader: subprocess.Popen[str]) -> str:
    """Let it go on to its end; return what it says on stderr."""
    leader.send_signal(signal.SIGCONT)
    return leader.communicate(timeout=60)[1].strip()


def frames(first: int, *texts: bytes) -> bytes:
    return b"".join(
        encode(LogRecord(stream=LogStream.STDOUT, seq=first + number, time_ns=number, payload=text))
        for number, text in enumerate(texts)
    )


def test_a_batch_that_was_half_written_changes_no_log(tmp_path: Path) -> None:
    with suspended(LOGS, tmp_path) as leader:
        new = FileLogStore(tmp_path, term=7)
        assert new.end(KEY).next_seq == 1, "what was acknowledged is there, what was half written is not"
        # The runner died meanwhile, and of the batch only this is left: other octets under the same numbers.
        lost = Gap(first_seq=1, last_seq=2, payload_bytes=9, reason="the runner died")
        assert new.append(KEY, encode(lost.record(5)) + frames(3, b"two\n", b"three\n")) == 5
        other = MemberKey(1, 0, 1)
        new.append(other, frames(0, b"begun by the new leader\n"))
        before = new.end(KEY)
        # Into the log that it had open it writes, and harms nobody; another one it must not touch.
        assert wake(leader) == "NOT_LEADER"
        assert new.append(KEY, frames(5, b"four\n")) == 6
        again = FileLogStore(tmp_path, term=8)
        for store in (new, again):
            payloads = [record.payload for record in store.read(KEY) if record.stream is LogStream.STDOUT]
            assert payloads == [b"one\n", b"two\n", b"three\n", b"four\n"]
            assert [record.payload for record in store.read(other)] == [b"begun by the new leader\n"]
        assert before.next_seq == 5
        assert again.end(KEY).sha256 == new.end(KEY).sha256
        # A later take-over, and then a server alone, go on with what counts.
        assert again.append(KEY, frames(6, b"five\n")) == 7
        with pytest.raises(Unavailable) as refused:
            FileLogStore(tmp_path, term=7).append(KEY, frames(7, b"x"))
        assert refused.value.code == "NOT_LEADER"
        alone = FileLogStore(tmp_path)
        assert alone.append(KEY, frames(7, b"six\n")) == 8
        assert [path.name for path in (tmp_path / "1" / "0").glob("0.*log")] == ["0.8.log"]


def test_a_secret_that_comes_too_late_is_nobodys(tmp_path: Path) -> None:
    with suspended(SECRETS, tmp_path) as leader:
        new = FernetSecretStore(tmp_path, term=7)
        assert new.get("ada", "team", "key") == ("the first value", True)
        new.put("ada", "team", "key", "the newest value", masked=True, now_ms=3)
        new.delete("ada", "team", "gone")
        assert wake(leader) == ""
        for store in (new, FernetSecretStore(tmp_path, term=8), FernetSecretStore(tmp_path)):
            assert store.get("ada", "team", "key") == ("the newest value", True)
            with pytest.raises(NotFound):
                store.get("ada", "team", "gone")
            store.close()
        with pytest.raises(Unavailable):
            FernetSecretStore(tmp_path, term=7)


def test_code_that_a_late_removal_takes_comes_back(tmp_path: Path) -> None:
    with suspended(REMOVAL, tmp_path) as leader:
        new = FileBlobStore(tmp_path, shared=True)
        assert new.exists("tree"), "so the client uploads nothing"
        assert wake(leader) == ""
        assert list(new.names()) == []
        with new.open("tree") as blob:
            assert blob.read() == b"code"
        assert new.exists("tree")
        new.delete("tree")
        assert list(new.names()) == []
        removed = tmp_path / ".removed-tree.tar.gz"
        assert removed.exists()
        alone = FileBlobStore(tmp_path)
        assert alone.exists("tree")
        alone.delete("tree")
        assert not alone.exists("tree")
