"""What a process hides of its memory from others of its account, and what that costs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Two processes of one account that is not root's; what is root may read everything.
LOOK = """
import os, sys, time
from airyard.node import memory_guard

def of_the_account():
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)

ready_read, ready_write = os.pipe()
victim = os.fork()
if victim == 0:
    of_the_account()
    memory_guard._LIBC.prctl(4, 1, 0, 0, 0)
    if sys.argv[1] == "hide":
        memory_guard.hide()
    with memory_guard.shown(), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")
    assert memory_guard.is_hidden() == (sys.argv[1] == "hide")
    os.write(ready_write, b"x")
    time.sleep(60)
os.read(ready_read, 1)
thief = os.fork()
if thief == 0:
    of_the_account()
    got = []
    for name in ("environ", "mem", "maps"):
        try:
            with open(f"/proc/{victim}/{name}", "rb") as file:
                if name != "mem":
                    file.read(1)
            got.append(name)
        except PermissionError:
            pass
    print(open(f"/proc/{victim}/oom_score_adj").read().strip(), *got, flush=True)
    os._exit(0)
os.waitpid(thief, 0)
os.kill(victim, 9)
"""


@pytest.mark.parametrize(("what", "seen"), [("hide", ["500"]), ("show", ["500", "environ", "mem", "maps"])])
def test_what_another_process_of_the_account_reads(what: str, seen: list[str]) -> None:
    if what == "show" and restricted():
        pytest.skip("this machine lets no process look at another that is not its child")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, what], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == seen, done.stderr


def restricted() -> bool:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            return file.read().strip() != "0"
    except OSError:
        return False
