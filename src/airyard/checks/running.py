"""Runs probes, each in a process of its own with a deadline, and judges what they read.

Owns: deadlines, what a crash or a hang comes to, order. Must not know: any check, how results are shown.

A probe that crashes or is late makes its checks UNKNOWN, which never passes and never fails. One that cannot even be
killed (it waits in the kernel) is left behind and told of.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from airyard.checks import nvml
from airyard.checks.children import die_with_parent
from airyard.checks.contract import Probe, Site, Thresholds
from airyard.checks.hearing import received
from airyard.checks.limit import with_layer
from airyard.checks.own_files import Folder, OwnFiles
from airyard.checks.thresholds import Table, generation_of, limits
from airyard.core.health.facts import CheckResult, CheckStatus
from airyard.core.health.fleet_values import Usual

_KILL_S = 1.0
_MOST_BYTES = 256 << 20


def run(
    probes: Sequence[Probe],
    site: Site,
    table: Table,
    own: Folder | None = None,
    fleet: Mapping[str, Usual] | None = None,
) -> list[CheckResult]:
    """Run all probes at once and return what every check came to, in the order of the probes. Never raises for a probe.

    ``own``: the files of a site's own checks; theirs come last. ``fleet``: what is usual among other nodes.
    Cost: one process a probe and a file; as long as the slowest probe, and at most the longest deadline and a second.
    """
    context = multiprocessing.get_context("fork")
    began = time.monotonic()
    running: list[tuple[Probe, BaseProcess, Connection]] = []
    for probe in probes:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_collect, args=(probe, site, sender, os.getpid()), daemon=True)
        process.start()
        sender.close()
        running.append((probe, process, receiver))
    with OwnFiles(own, site) as files:
        read = [
            (probe, _await(process, receiver, began + probe.deadline_s))
            for probe, process, receiver in running
        ]
        thresholds = replace(limits(table, _generation(read)), fleet=fleet or {})
        ours = [result for probe, found in read for result in _judge(probe, found, thresholds)]
        return [*ours, *files.judge(thresholds)]


Collected = tuple[str, Any, int]
"""``read``, ``crashed`` or ``late``; what was read, or why not; the milliseconds that it took."""


def _collect(probe: Probe, site: Site, sender: Connection, parent: int) -> None:
    die_with_parent(parent)
    began = time.monotonic()
    found: Collected
    try:
        value = probe.collect(site)
        found = ("read", value, int((time.monotonic() - began) * 1000))
        sender.send(found)
    except Exception as error:  # whatever a probe does, the others go on
        sender.send(("crashed", f"{type(error).__name__}: {error}", int((time.monotonic() - began) * 1000)))


def _await(process: BaseProcess, receiver: Connection, until: float) -> Collected:
    left = max(0.0, until - time.monotonic())
    found: Collected
    try:
        late: Collected = ("late", "it did not answer in time", int(left * 1000))
        told = received(receiver, until, _MOST_BYTES)
        found = late if told is None else pickle.loads(told)
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        found = ("crashed", "its process ended without a word", 0)
    receiver.close()
    process.join(_KILL_S if found[0] == "read" else 0)
    if process.is_alive():
        process.kill()
        process.join(_KILL_S)
        if process.is_alive():
            return (
                found[0],
                f"{found[1]}; process {process.pid} waits in the kernel and cannot be ended",
                found[2],
            )
    return found


def _generation(read: Sequence[tuple[Probe, Collected]]) -> str:
    """Return of which generation the GPUs are, by what the probe of GPUs read; empty without one."""
    for _, (state, value, _) in read:
        if state == "read" and isinstance(value, tuple) and value and isinstance(value[0], nvml.Gpus):
            return generation_of(next((gpu.name for gpu in value[0].gpus if gpu.name), ""))
    return ""


def _judge(probe: Probe, found: Collected, thresholds: Thresholds) -> Iterator[CheckResult]:
    state, value, took_ms = found
    for check in probe.checks:
        if state != "read":
            yield CheckResult(
                check=check.name,
                status=CheckStatus.UNKNOWN,
                message=f"the probe {probe.name} {'crashed' if state == 'crashed' else 'is late'}: {value}",
                next_step="run it again; when it stays so, look at the machine by hand",
                duration_ms=took_ms,
                component=check.component,
            )
            continue
        try:
            results = list(check.judge(value, thresholds))
        except Exception as error:  # a rule that crashes says nothing of the machine
            yield CheckResult(
                check=check.name,
                status=CheckStatus.UNKNOWN,
                message=f"the check itself crashed: {type(error).__name__}: {error}",
                next_step="report it: this is a bug of the check",
                component=check.component,
            )
            continue
        for result in results:
            yield replace(with_layer(result), duration_ms=took_ms)
