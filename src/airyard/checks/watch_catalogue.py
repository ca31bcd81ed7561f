"""The rules of monitoring that do not come from the kernel's log, as the table of docs/health.md.

Owns: the table. Must not know: how rules are run.
"""

from __future__ import annotations

from airyard.checks import gpu_watch, host_watch, port_watch

RULES: dict[str, dict[str, tuple[str, str]]] = {
    "NVML": gpu_watch.RULES,
    "RDMA": port_watch.RULES,
    "host": host_watch.RULES,
}


def table() -> str:
    """Return the rules as a table."""
    lines = ["| rule | severity | fires when | from |", "| --- | --- | --- | --- |"]
    for source, rules in RULES.items():
        lines += [
            f"| `{rule}` | {severity} | {when} | {source} |" for rule, (severity, when) in rules.items()
        ]
    return "\n".join(lines)
