"""What is asked of the server: one pure function per call, returning a frozen request.

Owns: methods, paths, queries and bodies of the native API (docs/internals.md); which may be repeated.
Must not know: sockets, tokens, files, how an answer is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from airyard.core.versions import CLIENT

PREFIX = "/api/v1"
LONG_POLL_S = 20
LATEST = -1
"""The attempt number that means the newest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call: ``path`` is complete with prefix and query; ``body`` is sent as JSON."""

    method: str
    path: str
    body: Any = None
    idempotent: bool = True
    """Sending it twice does what sending it once does; only then is it repeated after a broken connection."""
    read_timeout_s: float = 60.0
    """Longest silence of the server that is still normal."""


def _path(*parts: object, query: Iterable[tuple[str, object]] = ()) -> str:
    text = PREFIX + "".join("/" + quote(str(part), safe="@:=,.-_~") for part in parts)
    pairs = [(key, _text(value)) for key, value in query if value is not None]
    return f"{text}?{urlencode(pairs)}" if pairs else text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def identify(nonce: str, token_id: str | None = None) -> str:
    """Return the path of the identity question; it is asked without a token, at most with the id of one.

    It says what this client speaks: the server answers with the newest form that it speaks, too.
    """
    return _path("identify", query=[("nonce", nonce), ("token", token_id), ("protocol", CLIENT.newest)])


def status() -> Request:
    """Ask what server this is and how it is doing."""
    return Request(method="GET", path=_path("status"))


def submit(
    workload: Mapping[str, Any],
    *,
    source_yaml: str | None,
    git_diff: str | None = None,
    idempotency_key: str | None,
    dry_run: bool,
    held: bool = False,
    begin_at: str | None = None,
) -> Request:
    """Submit a normalised workload, or with ``dry_run`` ask the planner about it.

    Without a key the request is not repeated after a broken connection.
    """
    body = {
        "workload": dict(workload),
        "source_yaml": source_yaml,
        "idempotency_key": idempotency_key,
        "dry_run": dry_run,
    }
    if git_diff is not None:
        body["git_diff"] = git_diff
    if held:
        body["held"] = True
    if begin_at is not None:
        body["begin_at"] = begin_at
    return Request(
        method="POST", path=_path("runs"), body=body, idempotent=dry_run or idempotency_key is not None
    )


def has_code(tree_hash: str) -> Request:
    """Ask whether the server holds this snapshot."""
    return Request(method="HEAD", path=_path("code", tree_hash))


def put_code(tree_hash: str) -> Request:
    """Upload a snapshot; the octets go beside the request. The name is a hash, so repeating is harmless."""
    return Request(method="PUT", path=_path("code", tree_hash), read_timeout_s=300.0)


def get_run(ref: str, *, wait_version: int | None = None, timeout_s: int = LONG_POLL_S) -> Request:
    """Read one run; with ``wait_version`` once its version is higher, or the time is over."""
    query = [] if wait_version is None else [("wait_version", wait_version), ("timeout_s", timeout_s)]
    return Request(method="GET", path=_path("runs", ref, query=query))


def list_runs(
    *,
    state: str = "all",
    limit: int | None = None,
    before: int | None = None,
    tags: Mapping[str, str] | None = None,
    experiment: str | None = None,
    owner: str | None = None,
    ids: Sequence[int] | None = None,
) -> Request:
    """List runs, newest first; ``before`` is the ``next_before`` of the page ahead."""
    query: list[tuple[str, object]] = [("state", state), ("limit", limit), ("before", before)]
    query += [("tag", f"{key}={value}") for key, value in (tags or {}).items()]
    query += [("experiment", experiment), ("owner", owner)]
    if ids is not None:
        query.append(("ids", ",".join(map(str, ids))))
    return Request(method="GET", path=_path("runs", query=query))


def wait(run_ids: Sequence[int], *, any_: bool, timeout_s: int = LONG_POLL_S) -> Request:
    """Wait on the server until all (or any) of the runs have ended, at most ``timeout_s``."""
    query = [("ids", ",".join(map(str, run_ids))), ("any", any_), ("timeout_s", timeout_s)]
    return Request(method="GET", path=_path("wait", query=query))


def cancel(ref: str) -> Request:
    """Ask a run to stop; an ended run answers ``already_ended``."""
    return Request(method="POST", path=_path("runs", ref, "cancel"), body={})


def update(ref: str, changes: Mapping[str, Any]) -> Request:
    """Change a queued or active run. The fields are values, not differences: repeating is harmless."""
    return Request(method="POST", path=_path("runs", ref, "update"), body=dict(changes))


def resume(ref: str) -> Request:
    """Start a new attempt of an ended run. Not repeatable: a second one would find it live."""
    return Request(method="POST", path=_path("runs", ref, "resume"), body={}, idempotent=False)


def source(ref: str) -> Request:
    """Read what the run was submitted with: ``{source_yaml, git_diff, workload}``."""
    return Request(method="GET", path=_path("runs", ref, "source"))


def delete(ref: str) -> Request:
    """Remove an ended run with its logs, snapshot and tracking."""
    return Request(method="DELETE", path=_path("runs", ref))


def explain(ref: str) -> Request:
    """Ask why the run is where it is."""
    return Request(method="GET", path=_path("runs", ref, "explain"))


def triage(ref: str, *, attempt: int = LATEST, fresh: bool = False) -> Request:
    """Ask why an attempt failed. ``fresh`` reads its logs again, so that it may take a while."""
    query: list[tuple[str, object]] = [("attempt", attempt)]
    if fresh:
        query.append(("fresh", "true"))
    return Request(method="GET", path=_path("runs", ref, "triage", query=query), read_timeout_s=300.0)


def logs(
    ref: str,
    *,
    attempt: int = LATEST,
    node: int | None = None,
    tail: int | None = None,
    since_ms: int | None = None,
    grep: str | None = None,
    follow: bool = False,
) -> Request:
    """Read log lines as NDJSON (LOG, GAP, END), in corrected time order over the nodes."""
    query: list[tuple[str, object]] = [("attempt", attempt), ("node", node), ("tail", tail)]
    query += [("since_ms", since_ms), ("grep", grep), ("follow", follow)]
    return Request(method="GET", path=_path("runs", ref, "logs", query=query), read_timeout_s=45.0)


def raw_log(ref: str, *, node: int, attempt: int = LATEST) -> Request:
    """Read the octets that one member printed, stdout and stderr in order."""
    return Request(
        method="GET", path=_path("runs", ref, "logs", "raw", query=[("attempt", attempt), ("node", node)])
    )


def stream(ref: str, *, cursor: str | None = None, with_logs: bool = True) -> Request:
    """Follow a run as NDJSON; ``cursor`` of the last object seen goes on right after it."""
    query = [("cursor", cursor), ("logs", with_logs)]
    return Request(method="GET", path=_path("runs", ref, "stream", query=query), read_timeout_s=30.0)


def metrics(ref: str, *, keys: Sequence[str] = (), history: bool = False) -> Request:
    """Read the newest value of each metric (or of ``keys``), with ``history`` every step too."""
    query: list[tuple[str, object]] = [("key", key) for key in keys]
    if history:
        query.append(("history", True))
    return Request(method="GET", path=_path("runs", ref, "metrics", query=query))


def page(ref: str) -> Request:
    """Ask for a link to the run's MLflow page, good for one browser within two minutes."""
    return Request(method="POST", path=_path("runs", ref, "page"), body={})


def files(ref: str, *, path: str | None = None) -> Request:
    """List a folder of the run's output, or fetch a file of it."""
    return Request(method="GET", path=_path("runs", ref, "files", query=[("path", path)]))


def queue(*, limit: int | None = None, offset: int = 0) -> Request:
    """Read a part of the queue in order, each run with its position and pending reason."""
    query = [("limit", limit), ("offset", offset or None)]
    return Request(method="GET", path=_path("queue", query=query))


def nodes() -> Request:
    """Read the nodes and their devices."""
    return Request(method="GET", path=_path("nodes"))


def node(name: str) -> Request:
    """Read one node, its machine, and the runs on it."""
    return Request(method="GET", path=_path("nodes", name))


def cordon(nodes: Sequence[str], reason: str) -> Request:
    """Close nodes for new members. Repeating says that they are closed already."""
    return Request(method="POST", path=_path("nodes", "cordon"), body={"nodes": [*nodes], "reason": reason})


def uncordon(nodes: Sequence[str]) -> Request:
    """Open nodes again."""
    return Request(method="POST", path=_path("nodes", "uncordon"), body={"nodes": [*nodes]})


def drain(nodes: Sequence[str], reason: str, deadline_s: int | None) -> Request:
    """Close nodes and ask who is on them to leave. Not repeatable with a deadline: it counts from when it arrives."""
    body = {"nodes": [*nodes], "reason": reason, "deadline_s": deadline_s}
    return Request(method="POST", path=_path("nodes", "drain"), body=body, idempotent=deadline_s is None)


def confirm_dead(name: str, reason: str, boot_id: str) -> Request:
    """Give one's word that nothing runs on a machine that is away."""
    body = {"reason": reason, "boot_id": boot_id}
    return Request(method="POST", path=_path("nodes", name, "confirm-dead"), body=body)


def health_events(node: str | None, since_s: int | None) -> Request:
    """Read what became of nodes by their health."""
    return Request(method="GET", path=_path("health", "events", query=[("node", node), ("since_s", since_s)]))


def notifications(state: str, limit: int) -> Request:
    """Read what became of messages to people."""
    query = [("state", state), ("limit", limit)]
    return Request(method="GET", path=_path("admin", "notifications", query=query))


def maintenance(nodes: Sequence[str], on: bool, reason: str) -> Request:
    """Take nodes over, or give them back to be tested."""
    body = {"nodes": [*nodes], "on": on, "reason": reason}
    return Request(method="POST", path=_path("health", "maintenance"), body=body)


def acquit(nodes: Sequence[str], reason: str) -> Request:
    """Say that it was a false alarm."""
    return Request(method="POST", path=_path("health", "acquit"), body={"nodes": [*nodes], "reason": reason})


def reset_breaker(pool: str) -> Request:
    """Let nodes of a pool (of all, if empty) be taken out again."""
    return Request(method="POST", path=_path("health", "breaker", "reset"), body={"pool": pool})


def health_report(events: Sequence[Mapping[str, Any]]) -> Request:
    """Report what a monitor of one's own saw; the same event again says nothing new."""
    return Request(method="POST", path=_path("health", "report"), body={"events": [*events]})


def check_node(node: str, profile: str) -> Request:
    """Have a node checked. Not repeatable: a second round would be refused while the first goes on."""
    body = {"node": node, "profile": profile}
    return Request(method="POST", path=_path("health", "check"), body=body, idempotent=False)


def checked(name: str, wait_s: float) -> Request:
    """Wait on the server for the results of a round of checks."""
    return Request(method="GET", path=_path("health", "check", name, query=[("wait_s", wait_s)]))


def pair_nodes(one: str, other: str) -> Request:
    """Have two nodes tested against each other. Not repeatable, as ``check_node``."""
    return Request(
        method="POST", path=_path("health", "pair"), body={"nodes": [one, other]}, idempotent=False
    )


def paired(name: str, wait_s: float) -> Request:
    """Wait on the server for what a test of two nodes came to."""
    return Request(method="GET", path=_path("health", "pair", name, query=[("wait_s", wait_s)]))


def pools() -> Request:
    """Read the pools and what is free in them."""
    return Request(method="GET", path=_path("pools"))


def reserve(body: Mapping[str, Any]) -> Request:
    """Set nodes aside. Not repeatable: a second one would overlap with the first."""
    return Request(method="POST", path=_path("reservations"), body=dict(body), idempotent=False)


def reservations() -> Request:
    """Read the reservations that are not over."""
    return Request(method="GET", path=_path("reservations"))


def unreserve(reservation_id: int) -> Request:
    """Take a reservation back. Not repeatable: a second one would find it gone."""
    return Request(method="DELETE", path=_path("reservations", reservation_id), idempotent=False)


def policy() -> Request:
    """Read what is declared: pools, projects, users."""
    return Request(method="GET", path=_path("policy"))


def declare_policy(document: Mapping[str, Any], *, dry_run: bool) -> Request:
    """Replace what is declared, or with ``dry_run`` only check it. Repeating changes nothing further."""
    return Request(method="PUT", path=_path("policy"), body={"policy": dict(document), "dry_run": dry_run})


def policy_history(*, limit: int) -> Request:
    """Read who declared what and when, newest first."""
    return Request(method="GET", path=_path("policy", "history", query=[("limit", limit)]))


def projects() -> Request:
    """Read the projects with members, rights, shares and budgets."""
    return Request(method="GET", path=_path("projects"))


def quota(*, project: str | None = None) -> Request:
    """Read guarantees, ceilings, use and decayed shares per project and pool."""
    return Request(method="GET", path=_path("quota", query=[("project", project)]))


def put_secret(
    scope: str, key: str, value: str, *, unmasked: bool = False, project: str | None = None
) -> Request:
    """Store a secret; the value travels in the body and never comes back."""
    body: dict[str, Any] = {"value": value, "unmasked": unmasked}
    if project is not None:
        body["project"] = project
    return Request(method="PUT", path=_path("secrets", scope, key), body=body)


def list_secrets() -> Request:
    """List the names of the stored secrets."""
    return Request(method="GET", path=_path("secrets"))


def delete_secret(scope: str, key: str, *, project: str | None = None) -> Request:
    """Delete a secret."""
    return Request(method="DELETE", path=_path("secrets", scope, key, query=[("project", project)]))


def create_token(fields: Mapping[str, Any]) -> Request:
    """Give out a token. Not repeatable: the answer to the first time is the only one with its secret."""
    return Request(method="POST", path=_path("tokens"), body=dict(fields), idempotent=False)


def list_tokens() -> Request:
    """List tokens, without their secrets."""
    return Request(method="GET", path=_path("tokens"))


def revoke_token(token_id: str) -> Request:
    """Take a token back."""
    return Request(method="DELETE", path=_path("tokens", token_id))


def login_ways() -> Request:
    """Ask how one logs in."""
    return Request(method="GET", path=_path("login"))


def login_step(step: str, fields: Mapping[str, Any]) -> Request:
    """Go one step of a login (``browser``, ``device``, ``finish``, ``poll``, ``service``). Each works once."""
    return Request(method="POST", path=_path("login", step), body=dict(fields), idempotent=False)


def who_am_i() -> Request:
    """Ask who the caller is."""
    return Request(method="GET", path=_path("whoami"))


def audit(since_ms: int) -> Request:
    """Read the audit as JSON lines."""
    return Request(method="GET", path=_path("admin", "audit", query=[("since_ms", since_ms or None)]))


def gc(*, dry_run: bool) -> Request:
    """Remove what retention no longer keeps, or with ``dry_run`` say what would go."""
    return Request(method="POST", path=_path("admin", "gc"), body={"dry_run": dry_run}, read_timeout_s=600.0)


def verify() -> Request:
    """Replay the journal and compare it with the live state and the read tables."""
    return Request(method="POST", path=_path("admin", "verify"), body={}, read_timeout_s=600.0)


def shutdown(*, runs: str) -> Request:
    """Stop the server; ``runs`` says what of live runs: ``refuse``, ``keep`` or ``cancel``."""
    return Request(method="POST", path=_path("admin", "shutdown"), body={"runs": runs}, read_timeout_s=180.0)
