"""The documents about why runs wait or run: ExplainDoc and its parts, and what a queue page says beside its runs.

Owns: their fields (``docs/internals.md``, "Explanations") and the sentences in them.
Pure; must not know: HTTP, stores, clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from airyard.app.estimates import Figures
from airyard.app.explaining import Runs, Waits
from airyard.app.views import Document, eta_document, rfc3339
from airyard.core.scheduling.counterfactual import Change, Counterfactual
from airyard.core.scheduling.explain import Ahead
from airyard.core.scheduling.exposure import Exposure
from airyard.core.scheduling.overtakes import Overtake
from airyard.core.scheduling.places import Rule
from airyard.core.scheduling.plan import Hold, Reason
from airyard.core.scheduling.preempt import PRIORITY, RECLAIM, SLICE
from airyard.core.scheduling.prospects import Prospect

AHEAD_TEXT = {
    Rule.CLASS: "of a higher class",
    Rule.CLAIM: "for which others were evicted",
    Rule.AGED: "that have waited longer than their pool lets anybody wait",
    Rule.GUARANTEE: "within their project's guarantee",
    Rule.SLICE: "that have not had their first slice",
    Rule.SHARE: "of projects that have used less of their share",
    Rule.SHORTER: "queued later, but predicted to be so much shorter",
    Rule.EARLIER: "queued earlier",
}
SOURCES = {
    "experiment": "runs like it of the same user and experiment",
    "user": "runs of the same user, project and shape",
    "project": "runs of the same project and shape",
    "shape": "runs of the same shape",
    "pool": "runs of the same pool",
    "limit": "its time limit: nothing like it has ended yet",
    "none": "nothing: no run like it has ended yet, and it has no limit",
}

RIGHTS = {
    PRIORITY: "its class is above theirs",
    RECLAIM: "its project may take its guarantee back",
    SLICE: "it has not had its first slice, they have",
}


def waiting_parts(found: Waits) -> Document:
    """Return what an ExplainDoc says of a waiting run."""
    one, prediction = found.explanation, found.prediction
    ways = one.ways_out
    return {
        "reason": one.reason.value,
        "message": one.message,
        "evidence": dict(one.evidence),
        "position": one.position,
        "waiting": one.waiting,
        "ahead": [_ahead(each) for each in one.ahead],
        "eta": eta_document(one.eta),
        "predicted": {
            "p50_ms": one.expected_ms,
            "p90_ms": one.likely_ms,
            "limit_ms": one.limit_ms,
            "samples": prediction.samples,
            "source": prediction.source,
            "text": SOURCES[prediction.source],
        },
        "promise": _promise(one.promise),
        "may_evict": _prospect(ways.prospect),
        "counterfactuals": [counterfactual_document(each, one.run_id) for each in ways.counterfactuals],
        "counterfactuals_failed": ways.failed,
        "passed_by": _overtakes(one.passed, one.passed_count),
        "estimates": figures_document(found.figures),
        "fix": _fix(ways.counterfactuals, one.run_id, one.reason),
    }


def running_parts(found: Runs, *, acknowledged: bool) -> Document:
    """Return what an ExplainDoc says of a live attempt; ``acknowledged``: it has saved a checkpoint."""
    return {
        "preemption": _exposure(found.exposure, acknowledged),
        "went_before": _overtakes(found.passed, found.passed_count),
        "estimates": figures_document(found.figures),
    }


NO_PARTS: Document = {
    "position": None,
    "waiting": None,
    "ahead": [],
    "eta": None,
    "predicted": None,
    "promise": None,
    "may_evict": None,
    "counterfactuals": [],
    "counterfactuals_failed": False,
    "passed_by": None,
    "went_before": None,
    "preemption": None,
    "estimates": None,
    "progress": None,
    "slowed": [],
    "notifications": [],
}


def figures_document(figures: Figures | None) -> Document | None:
    """Return how good expected starts have been, in numbers and in words."""
    if figures is None:
        return None
    return {
        "count": figures.count,
        "before_p50": round(figures.before_p50, 4),
        "before_p90": round(figures.before_p90, 4),
        "median_error_ms": figures.median_error_ms,
    }


def counterfactual_document(one: Counterfactual, run_id: int | None) -> Document:
    """Return one change that would let a run start; with the command that makes it, where there is one."""
    return {
        "change": one.change.value,
        "text": one.text,
        "detail": dict(one.detail),
        "at": rfc3339(one.at_ms),
        "evicts": list(one.evicts),
        "command": _command(one, run_id) if run_id is not None else None,
    }


def _command(one: Counterfactual, run_id: int) -> str | None:
    match one.change:
        case Change.HIGHER_CLASS:
            return f"airyard update {run_id} --priority {one.detail['priority']}"
        case Change.SHORTER_LIMIT:
            return f"airyard update {run_id} --timeout {one.detail['timeout_s'] // 60}m"
        case Change.RELEASED:
            return f"airyard release {run_id}"
        case Change.BEGUN:
            return f"airyard update {run_id} --begin now"
    return None


def _fix(found: Sequence[Counterfactual], run_id: int, reason: Reason) -> Document:
    for one in found:
        if one.change is Change.SHORTER_LIMIT:
            continue  # it may well end the run before its work is done: that is for its owner to weigh
        if (command := _command(one, run_id)) is not None:
            return {"text": f"it would start {one.text}: `{command}`", "command": command}
    if reason is Reason.PAUSED:
        return {"text": f"`airyard release {run_id}` lets it go", "command": f"airyard release {run_id}"}
    if reason is Reason.NOT_YET:
        command = f"airyard update {run_id} --begin now"
        return {"text": f"`{command}` lets it go at once", "command": command}
    return {"text": "`airyard queue` shows what is ahead of it", "command": "airyard queue"}


def _ahead(one: Ahead) -> Document:
    return {
        "rule": one.rule.value,
        "count": one.count,
        "runs": list(one.runs),
        "text": AHEAD_TEXT[one.rule],
    }


def _promise(hold: Hold | None) -> Document | None:
    if hold is None:
        return None
    return {
        "nodes": list(hold.nodes),
        "devices_per_node": hold.devices_per_node,
        "from_at": rfc3339(hold.from_ms),
    }


def _prospect(one: Prospect | None) -> Document | None:
    if one is None:
        return None
    return {
        "runs": list(one.runs),
        "rules": list(one.rules),
        "from_at": rfc3339(one.from_ms),
        "text": "; ".join(RIGHTS[rule] for rule in one.rules),
    }


def _overtakes(found: Sequence[Overtake], count: int) -> Document:
    return {
        "count": count,
        "runs": [
            {
                "later": one.later,
                "earlier": one.earlier,
                "rule": one.rule,
                "at": rfc3339(one.at_ms),
                "text": one.text,
            }
            for one in found
        ],
    }


def _exposure(one: Exposure, acknowledged: bool) -> Document:
    return {
        "classes": list(one.classes),
        "own_class": one.own_class,
        "owners": list(one.owners),
        "younger": one.younger,
        "from_at": rfc3339(one.from_ms),
        "younger_from_at": rfc3339(one.younger_from_ms),
        "evicted_at": rfc3339(one.evicted_ms),
        "spared_until": rfc3339(one.spared_until_ms),
        "lost_device_seconds": one.lost_ms // 1000,
        "since": rfc3339(one.safe_ms),
        "acknowledged": acknowledged,
        "ends": {"p50": rfc3339(one.end_ms), "p90": rfc3339(one.late_end_ms)},
        "leaving": one.leaving,
    }
