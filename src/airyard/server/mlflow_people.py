"""What a person who may not see every run reaches in MLflow: the runs that the table of rights opens, and nothing else.

Owns: the reading of a person's requests, and which runs they are about. Pure; must not know: HTTP libraries, tokens,
the upstream. MLflow knows nothing of Airyard's people, so only requests whose answer is bounded by what they name are
let through: a few that name runs, and the search for one's own runs, to which a filter is added. Everything else, such
as lists of all experiments, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airyard.core.errors import UserError
from airyard.core.ids import AttemptKey
from airyard.server.mlflow_policy import (
    API,
    ARTIFACT,
    CREATED_BY_TAG,
    RUN_FOLDER,
    Effect,
    Purpose,
    RunFacts,
    is_path_of_server,
    run_ids_of,
)

CREATED_BY_USER_TAG = "airyard.created_by_user"
_OWNER_TAG = "mlflow.user"
_SERVED = re.compile(r"^(?:ajax-)?(?:api/|graphql|get-artifact|model-versions/|upload-artifact|v1/|gateway)")
_PLAIN = re.compile(
    r"^(?:version|health|(?:ajax-)?api/\d\.\d/mlflow/(?:server-info|experiments/get(?:-by-name)?))$"
)
_OF_RUNS = frozenset(
    {
        "runs/get",
        "metrics/get-history",
        "metrics/get-history-bulk",
        "metrics/get-history-bulk-interval",
        "artifacts/list",
    }
)
_FIELDS = frozenset({"mlflowGetRun", "mlflowListArtifacts", "mlflowGetMetricHistoryBulkInterval"})
_HARMLESS_FIELDS = frozenset({"mlflowGetExperiment"})
_LISTING = re.compile(r"^(?:ajax-)?api/2\.0/mlflow-artifacts/artifacts$")
_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonScope:
    """Somebody who may not do everything. The functions take the number of an Airyard run."""

    name: str
    sees_all: bool = False
    may_write: bool
    sees: Callable[[int], bool]
    steers: Callable[[int], bool]

    def may(self, facts: RunFacts | None, *, write: bool) -> bool:
        """Whether the person may look at, or write to, a run of MLflow."""
        if facts is None:
            return False
        if facts.created_by_user is not None:
            return facts.created_by_user == self.name
        number = number_of(facts)
        return number is not None and (self.steers if write else self.sees)(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is left of a request: the runs it names, which have to be the caller's to see (or write), or a refusal."""

    refused: bool = False
    runs: frozenset[str] = field(default=frozenset())
    write: bool = False
    body: bytes | None = None
    """Sent upstream in the place of the one that came; None: the one that came."""


PASSED = Ask()
REFUSED = Ask(refused=True)


def number_of(facts: RunFacts) -> int | None:
    """Return which run of Airyard a run of MLflow is, or was made by."""
    if facts.created_by is not None:
        try:
            return AttemptKey.parse(facts.created_by).run_id
        except UserError:
            return None
    return facts.airyard_run


def ask_of(
    scope: PersonScope,
    purpose: Purpose,
    method: str,
    path: str,
    query: Mapping[str, Sequence[str]],
    body: bytes,
) -> Ask:
    """Classify a person's request. ``query`` holds every value of each name."""
    if scope.sees_all and purpose.effect is Effect.READ:
        return PASSED
    if purpose.effect is Effect.READ and method in ("GET", "HEAD", "OPTIONS"):
        return _look(path, query)
    if path == "graphql":
        return _graphql(body)
    if purpose.operation == "runs/search":
        return Ask(body=narrowed(body, scope.name))
    if not scope.may_write:
        return REFUSED
    if purpose.creates_run:
        return Ask(body=with_user(body, scope.name))
    if purpose.creates_experiment:
        return REFUSED if is_path_of_server(body) else PASSED
    if purpose.effect is not Effect.RUN_WRITE:
        return REFUSED
    flat = {name: values[0] for name, values in query.items() if values}
    named = frozenset({purpose.run_id}) if purpose.run_id else run_ids_of(body, flat)
    return Ask(runs=named, write=True) if named else REFUSED


def _look(path: str, query: Mapping[str, Sequence[str]]) -> Ask:
    if not _SERVED.match(path) or _PLAIN.match(path):
        return PASSED
    named = frozenset(
        value
        for name in ("run_id", "run_uuid", "run_ids", "run_ids[]")
        for value in query.get(name, ())
        if value
    )
    match = API.match(path)
    if (match and match[2] in _OF_RUNS) or path in ("get-artifact", "ajax-api/2.0/mlflow/get-artifact"):
        return Ask(runs=named) if named else REFUSED
    folder = found[1] if (found := ARTIFACT.match(path)) else None
    if _LISTING.match(path):
        folder = next(iter(query.get("path", ())), "")
    run = RUN_FOLDER.search(folder) if folder and ".." not in folder else None
    return Ask(runs=frozenset({run[1]})) if run else REFUSED


def _graphql(body: bytes) -> Ask:
    """Let through a query of the run page: its fields are bounded by the runs that it names."""
    try:
        asked = json.loads(body)
    except ValueError:
        return REFUSED
    text = asked.get("query") if isinstance(asked, dict) else None
    if not isinstance(text, str) or "\\" in text:
        return REFUSED
    fields = set(re.findall(r"\bmlflow[A-Za-z0-9_]*", text))
    if not fields or not fields <= _FIELDS | _HARMLESS_FIELDS or re.search(r"\bmutation\b", text):
        return REFUSED
    named = frozenset(_RUN_ID.findall(text + json.dumps(asked.get("variables"))))
    return REFUSED if fields & _FIELDS and not named else Ask(runs=named)


def narrowed(body: bytes, user: str) -> bytes:
    """Return the body of a ``runs/search`` for the user's own runs. A filter knows no OR: none gets around it."""
    request = _object(body)
    own = f"tags.`{_OWNER_TAG}` = '{user}'"
    asked = request.get("filter")
    request["filter"] = f"{own} and {asked}" if isinstance(asked, str) and asked.strip() else own
    return json.dumps(request).encode()


def with_user(body: bytes, user: str) -> bytes:
    """Return the body of a ``runs/create`` with its maker's tags, replacing those that the caller sent."""
    request = _object(body)
    tags = request.get("tags") if isinstance(request.get("tags"), list) else []
    forged = (CREATED_BY_TAG, CREATED_BY_USER_TAG, "airyard.run_id", _OWNER_TAG)
    kept = [tag for tag in tags or [] if isinstance(tag, dict) and tag.get("key") not in forged]
    own = [{"key": CREATED_BY_USER_TAG, "value": user}, {"key": _OWNER_TAG, "value": user}]
    request["tags"] = [*kept, *own]
    return json.dumps(request).encode()


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}
