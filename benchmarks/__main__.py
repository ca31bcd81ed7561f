"""Runs the benchmarks one by one: ``python -m benchmarks [NAME...] [--quick]``.

Owns: finding ``bench_*.py`` beside this file and running each ``main(argv)`` in a process of its own, so that
none measures what another left in memory; a folder of environments that they share. Must not know: what any
of them measures. Options go to each of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.yards import CACHE_VARIABLE, FOLDER_VARIABLE, end_tidily

FOLDER = Path(__file__).resolve().parent
CLEAN_UP_LIMIT_S = 120


def available() -> list[str]:
    """Return the names of the benchmarks, ``bench_journal.py`` being ``journal``, in alphabetical order."""
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def run_one(name: str, options: Sequence[str]) -> int:
    """Run one benchmark with this terminal as its output and return its exit status (0 is good)."""
    print(f"== {name}", flush=True)
    started = time.monotonic()
    program = f"import sys; from benchmarks.bench_{name} import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-u", "-c", program, *options]
    process = subprocess.Popen(command, cwd=FOLDER.parent)
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        process.wait(CLEAN_UP_LIMIT_S)  # it takes its yard down
        raise
    print(
        f"== {name}: {'done' if status == 0 else f'exit {status}'} after {time.monotonic() - started:.1f} s\n"
    )
    return status


def main(arguments: Sequence[str]) -> int:
    """Run the named benchmarks, or all; one that fails does not stop the rest but makes the exit status 1."""
    known = available()
    options = [argument for argument in arguments if argument.startswith("-")]
    names = [name.removeprefix("bench_") for name in arguments if name not in options] or known
    unknown = [name for name in names if name not in known]
    if unknown:
        print(
            f"no benchmark named {', '.join(unknown)}; there are: {', '.join(known) or 'none'}",
            file=sys.stderr,
        )
        return 2
    end_tidily()
    with tempfile.TemporaryDirectory(
        prefix="airyard-bench-cache-", dir=os.environ.get(FOLDER_VARIABLE)
    ) as cache:
        os.environ.setdefault(CACHE_VARIABLE, cache)
        failed = [name for name in names if run_one(name, options) != 0]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
