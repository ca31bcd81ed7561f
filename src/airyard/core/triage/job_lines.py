"""Takes a line that a job printed apart: its rank, host and time, and the text itself.

Owns: colours, prefixes of launchers, stamps. Must not know: what a text means (``signatures.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airyard.core.triage.moments import stamp_ms

_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
_LONGEST = 2000
"""Of a longer line only the start is looked at: what is searched for stands in its first words."""

_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_PREFIXES = (
    (re.compile(r"\[rank ?(?P<rank>\d+)\]:? ?", re.I), "rank"),
    (re.compile(r"rank ?(?P<rank>\d+): ", re.I), "rank"),
    (re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?"), "rank"),  # mpirun --tag-output
    (re.compile(r"(?P<rank>\d{1,5}): "), "rank"),  # srun --label
    (re.compile(r"\[(?P<rank>\d{1,5})\]:? "), "rank"),
    (re.compile(r"\[default(?P<local>\d+)\]: ?"), "local"),  # torchrun --tee
    (re.compile(r"\[pod/[\w.-]+/[\w.-]+\] "), "logger"),  # kubectl logs --prefix
    (re.compile(r"[\w.-]*[a-zA-Z_][\w.-]*-\d+ +\| "), "logger"),  # docker compose: it counts from 1
    (
        re.compile(r"(?:" + _STAMP + r") (?:stdout|stderr) [FP] "),
        "stamp",
    ),  # Kubernetes, of containerd and CRI-O
    (re.compile(r"\[?(?:trainer|worker)[-/]?\d*[|/-](?P<rank>\d+)\]?:? ", re.I), "rank"),
    (re.compile(r"\[n(?P<member>\d+)\] "), "member"),
    (re.compile(r"\((?:\w+ )?pid=\d+(?:, ip=(?P<host>[\w.:-]+))?\) "), "host"),  # Ray
    (
        re.compile(r"(?:\w{3} +\d+ \d\d:\d\d:\d\d|" + _STAMP + r") (?P<host>[\w.-]+) \S+?\[\d+\]: "),
        "host",
    ),  # syslog
    (
        re.compile(
            r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)[ :]+(?:\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? )?"
            r"\[?[\w./-]+\.py:\d+\]? "
        ),
        "logger",  # vLLM and others: level, time, [file.py:line]
    ),
    (
        re.compile(
            r'\{(?:[^{}]{0,400}?,)? ?"(?:msg|message|event|error|exception|exc_info|log|line|textPayload)" ?: ?"'
        ),
        "logger",  # one JSON object a line
    ),
    (
        re.compile(r'\{.{0,400}?[,{] ?"(?:log|line|textPayload|message|msg)" ?: ?"'),
        "logger",
    ),  # ... of a collector
    (re.compile(r"(?:- )?ERROR(?: - |: | )(?=[A-Za-z_.]*(?:Error|Exception)\b)"), "logger"),
    (re.compile(r"\+?[-+| ]*\| +"), "logger"),  # of an exception in a group
    (re.compile(r"[\[(]?(?:" + _STAMP + r")[\])]?(?: UTC)?:? ?(?:- |\| )?"), "stamp"),
    (re.compile(r"(?P<host>[a-zA-Z][\w.-]*\d[\w.-]*|\d{1,3}(?:\.\d{1,3}){3})(?:: | \| )(?=\S)"), "host"),
)
_NCCL = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d+ \[(?P<device>\d+)\] (?:NCCL |[\w./]+:\d+ NCCL )")
_TORCH_RANK = re.compile(r"\[(?:PG[^\]]*? )?Rank (\d+)\]|\bon rank (\d+)\b|\bRank (\d+)\b(?= )", re.I)
_RANK_FIELD = re.compile(r'"(?:global_)?rank" ?: ?"?(\d{1,6})\b')
"""Of one JSON object a line."""
_LOCAL_RANK = re.compile(r"\blocal_rank: (\d+)")  # of the launcher that tells who failed
_MOST_PREFIXES = 6
_FIELDS = 400
"""So far into an object its fields are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine:
    """A line without colours and prefixes. ``device`` is the GPU's index on its host, where the line says so.

    ``prefix_rank``: the rank that a prefix tells; ``rank`` may also be one that the text speaks of. ``pid``: of the
    process, where NCCL heads the line.
    """

    text: str
    rank: int | None = None
    prefix_rank: int | None = None
    pid: int | None = None
    local_rank: int | None = None
    member: int | None = None
    host: str = ""
    device: int | None = None
    at_ms: int | None = None


def parse_line(line: str) -> JobLine:
    """Take a line apart. Never raises. Cost: some microseconds; call it for lines that matter only."""
    line = _COLOUR.sub("", line[:_LONGEST]).replace("\x00", "").strip()
    at_ms = stamp_ms(line)
    field = _RANK_FIELD.search(line[:_FIELDS]) if line.startswith("{") else None
    rank: int | None = int(field[1]) if field is not None else None
    local: int | None = None
    member: int | None = None
    host = ""
    for _ in range(_MOST_PREFIXES):
        for expression, kind in _PREFIXES:
            found = expression.match(line)
            if found is None or found.end() == 0:
                continue
            given = found.groupdict()
            if kind == "rank" and rank is None:
                rank = int(given["rank"])
            elif kind == "local":
                local = int(given["local"])
            elif kind == "member":
                member = int(given["member"])
            elif kind == "host":
                host = given["host"] or host
            line = line[found.end() :]
            break
        else:
            break
    nccl = _NCCL.search(line[:200])
    prefix_rank = rank
    if rank is None:
        inner = _TORCH_RANK.search(line[:300])
        rank = int(next(each for each in inner.groups() if each)) if inner is not None else None
    if rank is None and local is None and (told := _LOCAL_RANK.search(line[:300])) is not None:
        local = int(told[1])
    return JobLine(
        text=line,
        rank=rank,
        prefix_rank=prefix_rank,
        pid=int(nccl["pid"]) if nccl is not None else None,
        local_rank=local,
        member=member,
        host=nccl["host"] if nccl is not None else host,
        device=int(nccl["device"]) if nccl is not None else None,
        at_ms=at_ms,
    )


_RANK_OF_FILE = re.compile(r"(?:^|[^a-z])(?:rank|proc|worker)[-_. ]?(\d+)(?!\d)", re.I)
_NUMBER_FILE = re.compile(r"^(\d{1,5})(?:\.(?:log|out|err|txt))+(?:\.gz)?$")


def rank_of_file(name: str) -> int | None:
    """Return the rank that a log's file name tells: ``rank3.log``, ``train-rank_03.out``, ``3.log``; else None."""
    found = _NUMBER_FILE.match(name) or _RANK_OF_FILE.search(name)
    return int(found[1]) if found is not None else None
