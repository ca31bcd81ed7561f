"""Makes variants of a case of the triage corpus: other launchers, clocks, colours and drivers, and noise between.

Owns: the forms. Must not know: how triage judges. What is to be said of a variant is what is to be said of its case,
but for the first rank where a variant adds ranks to lines that had none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from triage_score import KERNEL_LOG, Case

_BEGIN = datetime(2025, 3, 4, 9, 0, 0, tzinfo=UTC)
_RANK_FILE = re.compile(r"rank(\d+)\.log")
_OF_RANK = re.compile(r"\[rank(\d+)\]: ?")
_NAMES_RANK = re.compile(r"\[rank(\d+)\]|\[(?:PG[^\]]*? )?Rank (\d+)\]")
_OF_LAUNCHER = re.compile(
    r"torch[./]distributed[./]elastic|^\s*(?:rank|exitcode|traceback) +: |^Root Cause|^\[\d+\]:$"
)
_NOISE = (
    " 41%|####1     | 410/1000 [02:11<03:09,  3.11it/s, loss=2.31]\r 42%|####2     | 420/1000 [02:14<03:06]",
    "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/x.py:88: UserWarning: a parameter was not used",
    "step 4410 | loss 2.3111 | grad_norm 0.911 | lr 3.0e-04 | tokens/s 41211",
    "n0:2210:2299 [0] NCCL INFO Channel 03/08 :    0   1   2   3   4   5   6   7",
    "INFO:__main__:saved checkpoint at step 4000 in 3.1 s",
    "[2025-03-04 09:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0",
    "",
)
_KERNEL_NOISE = (
    "[  100.000001] systemd[1]: Started Session 4 of user u.",
    "[  100.000002] perf: interrupt took too long (2511 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "[  100.000003] docker0: port 1(veth1) entered forwarding state",
)
_UPTIME = re.compile(r"^\[ *(\d+)\.(\d+)\] ")


def variant(case: Case, seed: int) -> Case:
    """Return one variant; the same seed gives the same one."""
    chance = random.Random(f"{case.name} {seed}")
    kernel = {name: _kernel(text, chance) for name, text in _texts(case.files, True).items()}
    jobs = _texts(case.files, False)
    ranks = {name: int(found[1]) for name in jobs if (found := _RANK_FILE.fullmatch(name)) is not None}
    if len(ranks) == len(jobs) > 1 and chance.random() < 0.7:
        jobs = {"all.log": _interleaved({ranks[name]: text for name, text in jobs.items()}, chance)}
    else:
        clock = chance.choice(_CLOCKS)
        jobs = {name: _job(text, clock, chance) for name, text in jobs.items()}
    end = chance.choice(("\n", "\n", "\r\n"))
    files = {name: text.replace("\n", end).encode() for name, text in {**jobs, **kernel}.items()}
    return replace(case, name=f"{case.name}#{seed}", files=files)


def relaid(case: Case, seed: int) -> Case | None:
    """Return a case with its one job log laid out as another launcher would, amid ranks that only work; None if it
    has several job logs already. Lines of a rank go to it, those of a launcher to nobody; what has no rank goes with
    the line before. The order of lines is kept, but for logs of a file a rank.
    """
    chance = random.Random(f"{case.name} relaid {seed}")
    jobs = _texts(case.files, False)
    if len(jobs) != 1:
        return None
    (text,) = jobs.values()
    rank = _rank_in(text, chance.randrange(8))
    told: list[tuple[int | None, str]] = []
    for line in text.splitlines():
        found = _OF_RANK.match(line)
        rank = _rank_in(line, rank)
        told.append((None if _OF_LAUNCHER.search(line) else rank, line[found.end() :] if found else line))
        told += [(chance.randrange(8), chance.choice(_NOISE)) for _ in range(chance.randint(0, 3))]
    files = {name: content for name, content in case.files.items() if KERNEL_LOG.match(name) is not None}
    if chance.random() < 0.3:
        ranks = {of for of, _ in told}
        lines = {of: [line for whose, line in told if whose == of] for of in ranks}
        logs = {f"rank{of}.log" if of is not None else "launcher.log": rows for of, rows in lines.items()}
    else:
        prefix = chance.choice(_PREFIXES)
        clock = chance.choice(_CLOCKS)
        rows = [line if of is None else prefix(of) + _coloured(line, chance) for of, line in told]
        logs = {"all.log": [clock(_BEGIN + timedelta(seconds=at)) + row for at, row in enumerate(rows)]}
    files |= {name: ("\n".join(rows) + "\n").encode() for name, rows in logs.items()}
    return replace(case, name=f"{case.name}#relaid{seed}", files=files)


def _rank_in(text: str, otherwise: int) -> int:
    found = _NAMES_RANK.search(text)
    return int(found[1] or found[2]) if found is not None else otherwise


def _texts(files: Mapping[str, bytes], kernel: bool) -> dict[str, str]:
    return {
        name: content.decode()
        for name, content in files.items()
        if (KERNEL_LOG.match(name) is not None) == kernel
    }


_CLOCKS: tuple[Callable[[datetime], str], ...] = (
    lambda _: "",
    lambda _: "",
    lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%fZ "),
    lambda at: at.strftime("%Y-%m-%d %H:%M:%S,") + f"{at.microsecond // 1000:03d} ",
    lambda at: at.strftime("[%H:%M:%S] "),
    lambda at: at.strftime("%b %d %H:%M:%S ") + "node-7 train[4110]: ",
)
_PREFIXES: tuple[Callable[[int], str], ...] = (
    lambda rank: f"[rank{rank}]: ",
    lambda rank: f"{rank}: ",
    lambda rank: f"[{rank}]: ",
    lambda rank: f"[1,{rank}]<stderr>: ",
    lambda rank: f"[trainer{rank}|{rank}]: ",
)


def _job(text: str, clock: Callable[[datetime], str], chance: random.Random) -> str:
    """Stamp and colour lines, and put noise between them."""
    at = _BEGIN
    lines = []
    stamped = "Traceback" not in text or chance.random() < 0.5
    for line in text.splitlines():
        at += timedelta(milliseconds=chance.randint(1, 900))
        for _ in range(chance.randint(0, 3)):
            lines.append(chance.choice(_NOISE))
        lines.append((clock(at) if stamped else "") + _coloured(line, chance))
    return "\n".join(lines) + "\n"


def _coloured(line: str, chance: random.Random) -> str:
    return f"\x1b[31;1m{line}\x1b[0m" if line and chance.random() < 0.25 else line


def _interleaved(texts: Mapping[int, str], chance: random.Random) -> str:
    """Merge the logs of ranks into one, with one launcher's prefixes; the order within a rank is kept."""
    prefix = chance.choice(_PREFIXES)
    waiting = {rank: text.splitlines() for rank, text in texts.items()}
    lines = []
    while any(waiting.values()):
        rank = chance.choice([rank for rank, rest in waiting.items() if rest])
        line = waiting[rank].pop(0)
        lines.append(prefix(rank) + _coloured(line, chance))
        if chance.random() < 0.3:
            lines.append(prefix(rank) + chance.choice(_NOISE))
    return "\n".join(lines) + "\n"


def _kernel(text: str, chance: random.Random) -> str:
    """Write the log as another tool or driver would: stamps, the address of an Xid, noise."""
    form = chance.choice(("as it is", "kmsg", "human", "journal", "levels"))
    address = chance.choice(("as it is", "short", "function"))
    lines = []
    for number, line in enumerate(text.splitlines()):
        if address == "short":
            line = line.replace("Xid (PCI:", "Xid (")
        elif address == "function":
            line = re.sub(r"Xid \((PCI:[0-9a-f:]+)\)", r"Xid (\1.0)", line)
        if _UPTIME.match(line) and chance.random() < 0.3:
            lines.append(_stamped(chance.choice(_KERNEL_NOISE), form, number))
        lines.append(_stamped(line, form, number))
    return "\n".join(lines) + "\n"


def _stamped(line: str, form: str, number: int) -> str:
    found = _UPTIME.match(line)
    if found is None or form == "as it is":
        return line
    rest = line[found.end() :]
    seconds = int(found[1])
    at = _BEGIN + timedelta(seconds=seconds)
    if form == "kmsg":
        return f"4,{1000 + number},{seconds}{found[2][:6].ljust(6, '0')},-;{rest}"
    if form == "human":
        return at.strftime("[%a %b %e %H:%M:%S %Y] ") + rest
    if form == "journal":
        return at.strftime("%b %d %H:%M:%S n7 kernel: ") + rest
    return f"kern  :err   : {line}"
