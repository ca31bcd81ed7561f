"""When time alone ends the wait of a queued run.

Owns: what the limits of waiting mean. Must not know: what follows when one has passed (``decide.timers``).
"""

from __future__ import annotations

from airyard.core.run import Run


def wait_end(run: Run) -> tuple[int, str] | None:
    """Return when a queued run has waited too long, and which limit that is, in words; None without one."""
    limits = run.workload.timeouts
    ends: list[tuple[int, str]] = []
    if limits.queue_s is not None and (since_ms := _waiting_since_ms(run)) is not None:
        words = f"it waited longer than its queue limit of {limits.queue_s} s"
        ends.append((since_ms + limits.queue_s * 1000, words))
    if (end_ms := total_end_ms(run)) is not None:
        ends.append((end_ms, f"its total time limit of {limits.total_s} s passed while it waited"))
    return min(ends, key=lambda end: end[0], default=None)


def total_end_ms(run: Run) -> int | None:
    """Return when the limit of the whole run passes; it counts from the submit, held or not."""
    total_s = run.workload.timeouts.total_s
    return None if total_s is None else run.submitted_ms + total_s * 1000


def _waiting_since_ms(run: Run) -> int | None:
    """Return since when the run waits for devices; None while it is held: then it waits for a person.

    ``queued_ms`` keeps the run's place in the queue over all its attempts. Before its begin a run waits for the clock.
    """
    if run.held:
        return None
    last_ms = (run.attempt.ended_ms or 0) if run.attempt is not None else 0
    return max(run.queued_ms, last_ms, run.eligible_ms, run.begin_ms)
