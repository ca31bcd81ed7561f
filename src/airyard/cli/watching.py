"""Following one run to its end: log lines to stdout, status to stderr, or everything as JSON lines.

Owns: what each stream object looks like, Ctrl-C, the metrics between. Must not know: HTTP, options.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from airyard.cli import formats, run_text
from airyard.cli.console import Console
from airyard.cli.exit_codes import ExitCode, of_run
from airyard.core.errors import AiryardError
from airyard.sdk.client import Client

Event = Mapping[str, Any]
METRICS_EVERY_S = 5.0


def watch(
    client: Client,
    console: Console,
    run: Mapping[str, Any],
    *,
    propagate: bool = False,
    with_logs: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Follow the run until it has ended and its logs are complete; return the exit code it deserves.

    A first Ctrl-C leaves the run alive and says how to come back (130).
    """
    run_id = run["run_id"]
    show = (
        JsonWatch(client, console, run_id, clock) if console.as_json else TextWatch(console, run, with_logs)
    )
    try:
        for event in client.stream(run_id, with_logs=with_logs, ticks=True):
            show.event(event)
            if event["type"] == "TERMINAL":
                return of_run(event["run"], propagate=propagate)
    except KeyboardInterrupt:
        console.note(
            f"\nrun {run_id} goes on. `airyard watch {run_id}` follows it again, "
            f"`airyard cancel {run_id}` stops it."
        )
    return ExitCode.INTERRUPTED


class LogPrinter:
    """Prints LOG and GAP objects as text, each line behind its node where there is more than one."""

    def __init__(self, console: Console, *, prefixed: bool) -> None:
        self._console = console
        self.prefixed = prefixed
        self._open: tuple[Any, ...] | None = None
        self._interrupted: set[tuple[Any, ...]] = set()

    def line(self, event: Event) -> None:
        """Print one LOG object; a line that was cut goes on where it stopped. Airyard's own go to stderr."""
        source = (event.get("attempt"), event.get("node"), event.get("stream"))
        text = formats.last_state(event["line"])
        if event.get("stream") == "airyard":
            self.close()
            self._console.note(self._prefix(event, self._console.colour_err) + text, "dim")
            return
        if self._open != source:
            if source in self._interrupted and not text and not event.get("partial"):
                # Another line was printed since, which ended this one.
                self._interrupted.discard(source)
                return
            self.close()
            text = self._prefix(event, self._console.colour_out) + text
        self._interrupted.discard(source)
        self._open = source if event.get("partial") else None
        self._console.write(text if event.get("partial") else text + "\n")

    def gap(self, event: Event) -> None:
        """Say what is missing, where it is missing."""
        self.close()
        size = f", {formats.size(event['bytes'])}" if event.get("bytes") else ""
        first, last = event.get("first_seq"), event.get("last_seq")
        missing = "the end of the log" if last is None else f"records {first} to {last}{size}"
        verb = "is" if last is None else "are"
        self._console.note(
            f"{self._prefix(event, self._console.colour_err)}-- gap: {missing} {verb} missing "
            f"({event.get('reason') or 'unknown reason'}) --",
            "yellow",
        )

    def close(self) -> None:
        """End a line that was left open."""
        if self._open is not None:
            self._console.write("\n")
            self._interrupted.add(self._open)
            self._open = None

    def _prefix(self, event: Event, colour: bool) -> str:
        node = event.get("node")
        if not self.prefixed or node is None:
            return ""
        return formats.paint(f"[n{node}]", formats.node_colour(int(node)), colour) + " "


class TextWatch:
    """The stream for people."""

    def __init__(self, console: Console, run: Mapping[str, Any], with_logs: bool = True) -> None:
        self._console = console
        self._printer = LogPrinter(console, prefixed=(run.get("nodes") or 1) > 1)
        self._with_logs = with_logs
        self._last = ""
        self._placed: Any = None
        """The attempt whose nodes have been named."""

    def event(self, event: Event) -> None:
        """Show one stream object.

        Alerts are for programs: a person has just read the line itself. Unknown kinds are news from a newer server.
        """
        handler = getattr(self, f"_on_{event['type'].lower()}", None)
        if handler is not None:
            handler(event)

    def _on_log(self, event: Event) -> None:
        self._printer.line(event)

    def _on_gap(self, event: Event) -> None:
        self._printer.gap(event)

    def _on_status(self, event: Event) -> None:
        run = event["run"]
        self._printer.prefixed = (run.get("nodes") or 1) > 1
        line = run_text.status_line(run)
        if run.get("status") == "PREPARING":
            # The nodes are named once, at the start; then what goes on there.
            named, self._placed = self._placed == run.get("attempt"), run.get("attempt")
            line = run_text.preparing_line(run) if named else run_text.status_line(run)
        told = _news(run, line)
        if told in ("", self._last) or run.get("state") == "ENDED":
            return
        self._last = told
        self._printer.close()
        self._console.note(f"run {run['run_id']}: {line}", "dim")

    def _on_retry(self, event: Event) -> None:
        self._printer.close()
        at = event.get("next_attempt_at")
        when = f"; the next attempt not before {formats.clock_time(at)}" if at else ""
        reason = run_text.reason(event, brief=self._with_logs)
        self._console.note(
            f"retry: attempt {event.get('attempt')} ended ({event.get('cause')}): {reason}{when}", "yellow"
        )

    def _on_terminal(self, event: Event) -> None:
        run = event["run"]
        self._printer.close()
        colour = "green" if run.get("outcome") == "SUCCEEDED" else "red"
        told = run_text.verdict(run, logs_shown=self._with_logs)
        self._console.note(told, "yellow" if run.get("outcome") == "CANCELLED" else colour)
        if run.get("logs_complete") is False:
            self._console.note("logs: some lines have not arrived (yet); `airyard logs` shows what is there")
        step = run_text.next_step(run)
        if step:
            self._console.note(f"next: {step}")


def _news(run: Mapping[str, Any], line: str) -> str:
    """Return what a line tells, without what changes by the second: a wait until a fixed time is said once."""
    pending = run.get("pending") or {}
    return f"until {pending['not_before']}" if pending.get("reason") == "BACKOFF" else line


class JsonWatch:
    """The stream as JSON lines, with a METRIC line for each value that changed."""

    def __init__(self, client: Client, console: Console, run_id: int, clock: Callable[[], float]) -> None:
        self._client, self._console, self._run_id, self._clock = client, console, run_id, clock
        self._seen: dict[str, Any] = {}
        self._asked_at = clock()
        self._status: str | None = None

    def event(self, event: Event) -> None:
        """Print one stream object."""
        kind = event["type"]
        terminal = kind == "TERMINAL"
        if terminal or self._clock() - self._asked_at >= METRICS_EVERY_S:
            self._metrics()
        if kind == "TICK":
            return
        data = {key: value for key, value in event.items() if key != "type"}
        if kind == "STATUS":
            data = {"status": event["run"].get("status"), "previous_status": self._status, **data}
            self._status = event["run"].get("status")
        self._console.event(kind, data)

    def _metrics(self) -> None:
        try:
            found = self._client.metrics(self._run_id)
        except AiryardError:
            found = {}  # tracking that is away never disturbs a watch
        for key, value in found.items():
            if self._seen.get(key) != value:
                self._seen[key] = value
                self._console.event("METRIC", {"key": key, **value})
        self._asked_at = self._clock()
