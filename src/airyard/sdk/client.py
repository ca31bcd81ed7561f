"""The client of one Airyard server: every call of the native API as a method.

Owns: finding the server on the first call, repeating what is safe to repeat, waiting and following.
Must not know: text for people, exit codes.

    from airyard.sdk import Client

    client = Client()                       # AIRYARD_HOST/AIRYARD_TOKEN, config.toml, or the local server
    run = client.submit_file("workload.yaml", overrides=["parameters.lr=0.1"], idempotency_key="trial-7")
    done = client.wait([run["run_id"]])[0]  # a RunDoc, see docs/internals.md
    print(done["status"], client.metrics(str(run["run_id"])))

Answers are the JSON documents of docs/internals.md, as dictionaries. Every failure is an
``airyard.core.errors.AiryardError`` with ``code``, ``retryable`` and ``fix``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, BinaryIO

from airyard.core.errors import AiryardError, NotFound, Unavailable
from airyard.sdk import requests, streaming
from airyard.sdk.config import Target, local_token, resolve
from airyard.sdk.health import Health
from airyard.sdk.logins import Logins
from airyard.sdk.requests import LATEST, Request
from airyard.sdk.servers import NOT_LEADER, ServersTransport, split_hosts
from airyard.sdk.streaming import Event
from airyard.sdk.tokens import Tokens
from airyard.sdk.transport import Answer, ConnectionLost, Transport

if TYPE_CHECKING:
    from airyard.sdk.submission import Submission

RETRY_WINDOW_S = 10.0
TAKE_OVER_WINDOW_S = 30.0
"""So long a client waits for a server to take the lead: longer than it takes."""
TAKE_OVER_PAUSE_S = 0.25
Document = dict[str, Any]
Documents = list[Document]
Connect = Callable[[], Transport]
QUEUE_PAGE = 1000
"""So many waiting runs the server returns at a time."""


def _say(line: str) -> None:
    sys.stderr.write(f"airyard: {line}\n")
    sys.stderr.flush()


class Client:
    """A connection to one server; safe to share between threads.

    Nothing is contacted before the first call. Without a configured host that call finds the local server, or
    starts one and says so in one line through ``announce``.
    """

    def __init__(
        self,
        host: str | None = None,
        token: str | None = None,
        *,
        profile: str | None = None,
        home: str | os.PathLike[str] | None = None,
        announce: Callable[[str], None] = _say,
        target: Target | None = None,
        connect: Connect | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``target`` replaces the first four arguments; ``connect`` replaces the network (tests).

        Raises: UserError for a configuration that cannot be read.
        """
        self.target = target or resolve(host=host, token=token, profile=profile, home=home)
        self._announce = announce
        self._connect = connect or self._reach
        self._clock, self._sleep = clock, sleep
        self._transport: Transport | None = None

    def status(self) -> Document:
        """Return version, address, disk use, MLflow's state, containment and counts."""
        return self._get(requests.status())

    def nodes(self) -> Documents:
        """Return the nodes with their devices (NodeDoc)."""
        return _rows(self._get(requests.nodes()), "nodes")

    def node(self, name: str) -> Document:
        """Return ``{node, machine, runs}`` of one node. Raises: NotFound naming the nearest."""
        return self._get(requests.node(name))

    def cordon(self, nodes: Sequence[str], *, reason: str = "") -> Document:
        """Close nodes for new members; returns ``{nodes: [{name, changed, message, node}], runs}``."""
        return self._get(requests.cordon(nodes, reason))

    def uncordon(self, nodes: Sequence[str]) -> Document:
        """Open nodes again and call a drain off; returns what ``cordon`` returns."""
        return self._get(requests.uncordon(nodes))

    def drain(self, nodes: Sequence[str], *, reason: str = "", deadline_s: int | None = None) -> Document:
        """Close nodes and have who is on them leave by ``deadline_s``; returns what ``cordon`` does, with ``runs``."""
        return self._get(requests.drain(nodes, reason, deadline_s))

    def confirm_dead(self, name: str, *, reason: str = "", boot_id: str = "") -> Document:
        """Give one's word that nothing runs on a machine that is away; returns ``{machine, changed, message}``.

        ``boot_id``: only if that system was the last one seen. Raises: Conflict while it is connected.
        """
        return self._get(requests.confirm_dead(name, reason, boot_id))

    def pools(self) -> Documents:
        """Return the pools and what is free in them (PoolDoc)."""
        return _rows(self._get(requests.pools()), "pools")

    def policy(self) -> Document:
        """Return ``{policy, declared}``: pools, projects and users, and who declared them when."""
        return self._get(requests.policy())

    def declare_policy(self, policy: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        """Replace what is declared; returns ``{changed, applied, changes, warnings}``.

        ``policy`` has the form that ``policy`` returns. With ``dry_run`` everything is checked and nothing changes.
        Raises: UserError (``POLICY_INVALID``) with every problem in ``details["problems"]``.
        """
        return self._get(requests.declare_policy(policy, dry_run=dry_run))

    def policy_history(self, *, limit: int = 20) -> Documents:
        """Return the newest declarations: who, when, and what each changed."""
        return _rows(self._get(requests.policy_history(limit=limit)), "history")

    def projects(self) -> Documents:
        """Return the projects (ProjectDoc)."""
        return _rows(self._get(requests.projects()), "projects")

    def quota(self, project: str | None = None) -> Document:
        """Return what each project may have, has and had of each pool (QuotaDoc). Raises: NotFound for no project."""
        return self._get(requests.quota(project=project))

    def queue(self) -> Documents:
        """Return all waiting runs in order, each with ``position`` and ``pending``."""
        return _rows(self.queue_page(limit=None), "runs")

    def queue_page(self, *, limit: int | None = 100, offset: int = 0) -> Document:
        """Return ``{runs, waiting, next_offset, estimates}``: the queue from ``offset`` on, ``limit`` None: all."""
        runs: Documents = []
        while True:
            size = QUEUE_PAGE if limit is None else min(limit - len(runs), QUEUE_PAGE)
            answer = self._get(requests.queue(limit=size, offset=offset + len(runs)))
            runs += answer["runs"]
            if answer["next_offset"] is None or not answer["runs"] or len(runs) == limit:
                return {**answer, "runs": runs}

    def gc(self, *, dry_run: bool = False) -> Document:
        """Remove what retention no longer keeps; with ``dry_run`` only say it."""
        return self._get(requests.gc(dry_run=dry_run))

    def verify(self) -> Document:
        """Have the server replay its journal and compare."""
        return self._get(requests.verify())

    def shutdown(self, *, runs: str = "refuse") -> Document:
        """Stop the server. ``runs``: ``refuse`` while runs are live, ``keep`` them, ``cancel`` them.

        Raises: Conflict listing the live runs.
        """
        return self._get(requests.shutdown(runs=runs))

    def submit(
        self,
        workload: Mapping[str, Any],
        *,
        source_yaml: str | None = None,
        git_diff: str | None = None,
        idempotency_key: str | None = None,
        dry_run: bool = False,
        held: bool = False,
        begin_at: str | None = None,
    ) -> Document:
        """Submit a normalised workload (``Workload.to_json()``); ``git_diff`` is the one whose hash it names.

        ``held``: it waits for ``release``; ``begin_at``: and not before this time (RFC 3339).

        Returns ``{run, existing, warnings}``; with ``dry_run`` ``{dry_run}``. Same key and same workload: the
        same run with ``existing`` true. Without a key the call is not repeated when the connection breaks.
        Raises: Conflict when the key was used for another workload.
        """
        return self._get(
            requests.submit(
                workload,
                source_yaml=source_yaml,
                git_diff=git_diff,
                idempotency_key=idempotency_key,
                dry_run=dry_run,
                held=held,
                begin_at=begin_at,
            )
        )

    def submit_file(
        self,
        path: str | os.PathLike[str],
        *,
        overrides: Sequence[str] = (),
        idempotency_key: str | None = None,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        allow_secret_files: bool = False,
    ) -> Document:
        """Read a workload file, upload its code where the server lacks it, submit, and return the RunDoc.

        ``overrides`` are ``path=value`` with values in YAML. The key is the argument, the file's,
        or a fresh one.
        """
        from airyard.sdk import submission

        prepared = submission.prepare(path, overrides=overrides, name=name, tags=tags or {})
        answer = self.submit_prepared(
            prepared, idempotency_key=idempotency_key, allow_secret_files=allow_secret_files
        )
        return dict(answer["run"])

    def submit_prepared(
        self, prepared: Submission, *, idempotency_key: str | None = None, allow_secret_files: bool = False
    ) -> Document:
        """Pack, upload what is missing and submit; returns ``{run, existing, warnings}``."""
        from airyard.sdk import submission

        answer: Document = submission.submit(
            self, prepared, idempotency_key=idempotency_key, allow_secret_files=allow_secret_files
        )
        return answer

    def get(self, ref: str | int) -> Document:
        """Return one run (RunDoc). ``ref``: number, name, ``@last`` or ``tag:k=v``."""
        return dict(self._get(requests.get_run(str(ref)))["run"])

    def list(
        self,
        *,
        state: str = "all",
        limit: int | None = 20,
        tags: Mapping[str, str] | None = None,
        experiment: str | None = None,
        owner: str | None = None,
    ) -> Documents:
        """Return runs, newest first.

        ``state``: ``queued``, ``active``, ``live`` (both), ``ended``, ``all``, or a status such as ``running`` or
        ``failed``; ``limit`` None returns every one.
        """
        runs: Documents = []
        before: int | None = None
        while True:
            wanted = None if limit is None else limit - len(runs)
            page = self._get(
                requests.list_runs(
                    state=state, limit=wanted, before=before, tags=tags, experiment=experiment, owner=owner
                )
            )
            runs += page["runs"]
            before = page.get("next_before")
            if before is None or not page["runs"] or (limit is not None and len(runs) >= limit):
                return runs if limit is None else runs[:limit]

    def pages(self, *, state: str = "all", size: int = 500) -> Iterator[Documents]:
        """Yield runs, newest first, a page at a time: whoever has enough asks for no more."""
        before: int | None = None
        while True:
            page = self._get(requests.list_runs(state=state, limit=size, before=before))
            yield page["runs"]
            before = page.get("next_before")
            if before is None or not page["runs"]:
                return

    def numbers(self, ref: str | int) -> Sequence[int]:
        """Return the numbers of the runs that ``ref`` names: of ``tag:k=v`` all that match, oldest first.

        Raises: NotFound when there is none.
        """
        if isinstance(ref, int):
            return [ref]
        key, sign, value = ref.removeprefix("tag:").partition("=")
        if not ref.startswith("tag:") or not key or not sign:
            return [int(self.get(ref)["run_id"])]
        found = self.list(tags={key: value}, limit=None)
        if not found:
            raise NotFound(f"No run has the tag {key}={value}.", code="RUN_NOT_FOUND")
        return sorted(int(run["run_id"]) for run in found)

    def wait(
        self, refs: Sequence[str | int], *, any_: bool = False, timeout_s: float | None = None
    ) -> Documents:
        """Wait until all (or any) of the runs have ended and return them all, in the order given.

        ``tag:k=v`` stands for all runs that have the tag when the wait begins.
        Raises: Unavailable ``WAIT_TIMEOUT`` when ``timeout_s`` passes first.
        """
        ids = [run_id for ref in refs for run_id in self.numbers(ref)]
        deadline = None if timeout_s is None else self._clock() + timeout_s
        while True:
            left = requests.LONG_POLL_S if deadline is None else deadline - self._clock()
            poll_s = max(0, min(requests.LONG_POLL_S, int(left + 0.999)))
            answer = self._get(requests.wait(ids, any_=any_, timeout_s=poll_s))
            by_id = {run["run_id"]: run for run in answer["runs"]}
            if answer["done"]:
                return [by_id[run_id] for run_id in ids if run_id in by_id]
            if deadline is not None and self._clock() >= deadline:
                live = [run_id for run_id in dict.fromkeys(ids) if by_id[run_id]["state"] != "ENDED"]
                verb = "is" if len(live) == 1 else "are"
                raise Unavailable(
                    f"Run {', '.join(map(str, live))} {verb} not over after {timeout_s:g} s.",
                    code="WAIT_TIMEOUT",
                    fix=f"Wait again, or see what it does: `airyard explain {live[0]}`.",
                    details={"live": live},
                )

    def cancel(self, ref: str | int) -> Document:
        """Ask a run to stop; returns ``{run_id, already_ended}`` at once."""
        return self._get(requests.cancel(str(ref)))

    def update(self, ref: str | int, **changes: Any) -> Document:
        """Change a queued or active run; returns ``{run, changed, warnings}``.

        Fields: ``priority``, ``project``, ``timeout_s`` (None: no limit), ``begin_at`` (RFC 3339; None: as soon as
        there is room), ``held``. What is not given stays. All of it is done, or on a refusal nothing.
        """
        return self._get(requests.update(str(ref), changes))

    def hold(self, ref: str | int) -> Document:
        """Keep a queued run from starting; returns what ``update`` returns."""
        return self.update(ref, held=True)

    def release(self, ref: str | int) -> Document:
        """Let a held run go; returns what ``update`` returns."""
        return self.update(ref, held=False)

    def resume(self, ref: str | int) -> Document:
        """Start a new attempt of an ended run and return the RunDoc."""
        return dict(self._get(requests.resume(str(ref)))["run"])

    def source(self, ref: str | int) -> Document:
        """Return ``{source_yaml, git_diff, workload}`` as submitted."""
        return self._get(requests.source(str(ref)))

    def delete(self, ref: str | int) -> Document:
        """Remove an ended run, its logs, tracking and unshared snapshot."""
        return self._get(requests.delete(str(ref))) or {}

    def explain(self, ref: str | int) -> Document:
        """Return why the run is where it is: ``{state, reason, message, evidence, position, fix}``."""
        return self._get(requests.explain(str(ref)))

    def triage(self, ref: str | int, *, attempt: int = -1, fresh: bool = False) -> Document:
        """Return why the latest failed attempt (or ``attempt``) failed; ``fresh`` has its logs read again."""
        return self._get(requests.triage(str(ref), attempt=attempt, fresh=fresh))

    def metrics(self, ref: str | int, *, keys: Sequence[str] = (), history: bool = False) -> Document:
        """Return ``{key: {value, step, time_ms}}``; with ``history`` the whole answer."""
        answer = self._get(requests.metrics(str(ref), keys=keys, history=history))
        return answer if history else dict(answer["metrics"])

    def page(self, ref: str | int) -> str:
        """Return a link to the run's MLflow page, good for one browser within two minutes.

        It begins as this client reaches the server, whatever address the server has for itself.
        """
        url = str(self._get(requests.page(str(ref)))["url"])
        if isinstance(self._transport, ServersTransport):
            path = url.split("://", 1)[-1].partition("/")[2]
            return f"{self._transport.url}/{path}"
        return url

    def stream(
        self, ref: str | int, *, cursor: str | None = None, with_logs: bool = True, ticks: bool = False
    ) -> Iterator[Event]:
        """Follow a run to its end: STATUS, LOG, GAP, ALERT, RETRY, then TERMINAL; see docs/internals.md.

        Broken connections and server restarts are bridged, nothing is lost or doubled; the ``cursor`` of an
        object goes on after it. ``ticks`` also yields ``{"type": "TICK"}`` about every 10 s.
        """
        events = streaming.follow(
            lambda after: self._open(requests.stream(str(ref), cursor=after, with_logs=with_logs)),
            last_type="TERMINAL",
            cursor=cursor,
            clock=self._clock,
            sleep=self._sleep,
            revive=self._revive,
        )
        return (event for event in events if ticks or event is not streaming.TICK)

    def logs(
        self,
        ref: str | int,
        *,
        attempt: int = LATEST,
        node: int | None = None,
        tail: int | None = None,
        since_ms: int | None = None,
        grep: str | None = None,
        follow: bool = False,
    ) -> Iterator[Event]:
        """Yield log lines (LOG), holes (GAP) and at last END, which says whether each node's is complete."""
        overlap = streaming.Overlap()

        def open_after(_: Any) -> Any:
            again = overlap.since_ms()
            return self._open(
                requests.logs(
                    str(ref),
                    attempt=attempt,
                    node=node,
                    tail=tail if again is None else None,
                    since_ms=since_ms if again is None else max(again, since_ms or 0),
                    grep=grep,
                    follow=follow,
                )
            )

        events = streaming.follow(
            open_after, last_type="END", clock=self._clock, sleep=self._sleep, revive=self._revive
        )
        for event in events:
            if event is streaming.TICK or (event["type"] == "LOG" and not overlap.is_new(event)):
                continue
            yield event

    def download_log(self, ref: str | int, sink: BinaryIO, *, node: int, attempt: int = LATEST) -> int:
        """Write the octets that one node printed to ``sink``; returns their number."""
        size = 0
        with self._open(requests.raw_log(str(ref), node=node, attempt=attempt)) as chunks:
            for chunk in chunks:
                size += sink.write(chunk)
        return size

    def files(self, ref: str | int, path: str | None = None) -> Document:
        """List a folder of the run's output."""
        return self._get(requests.files(str(ref), path=path))

    def download_file(self, ref: str | int, path: str, sink: BinaryIO) -> int:
        """Write one file of the run's output to ``sink``; returns its size."""
        size = 0
        with self._open(requests.files(str(ref), path=path)) as chunks:
            for chunk in chunks:
                size += sink.write(chunk)
        return size

    def has_code(self, tree_hash: str) -> bool:
        """True when the server holds the snapshot, so that nothing need be sent."""
        try:
            self._send(requests.has_code(tree_hash))
        except NotFound:
            return False
        return True

    def upload_code(self, tree_hash: str, archive: BinaryIO, size: int) -> None:
        """Send ``size`` octets of a packed snapshot."""

        def send() -> Answer:
            archive.seek(0)
            return self._link().send(requests.put_code(tree_hash), archive, size)

        self._retry(send, idempotent=True)

    def reserve(self, nodes: Sequence[str], **fields: Any) -> Document:
        """Set nodes aside; returns ``{reservation, warnings}``.

        Fields: ``from_at`` (RFC 3339; now), ``to_at`` or ``duration_s``, ``maintenance`` or ``project`` (one's own),
        ``note``, ``evict`` (ask runs on nodes that are reserved from now on to leave).
        Raises: Conflict for nodes that are reserved or, without ``evict``, in use.
        """
        return self._get(requests.reserve({"nodes": [*nodes], **fields}))

    def reservations(self) -> Documents:
        """Return the reservations that are not over, by their begin."""
        return _rows(self._get(requests.reservations()), "reservations")

    def unreserve(self, reservation_id: int) -> None:
        """Take a reservation back. Raises: NotFound."""
        self._send(requests.unreserve(reservation_id))

    def put_secret(
        self, scope: str, key: str, value: str, *, unmasked: bool = False, project: str | None = None
    ) -> None:
        """Store a secret, one's own or a project's. ``unmasked`` allows a value too short to be masked in logs."""
        self._send(requests.put_secret(scope, key, value, unmasked=unmasked, project=project))

    def list_secrets(self) -> Document:
        """Return the names of the stored secrets, never a value."""
        return self._get(requests.list_secrets())

    def delete_secret(self, scope: str, key: str, *, project: str | None = None) -> None:
        """Delete a secret. Raises: NotFound."""
        self._send(requests.delete_secret(scope, key, project=project))

    @property
    def health(self) -> Health:
        """Nodes' health."""
        return Health(self._get)

    @property
    def tokens(self) -> Tokens:
        """Tokens and the audit."""
        return Tokens(self._get, self._open)

    @property
    def logins(self) -> Logins:
        """Logging in; of a client that ``sdk.logins.stranger`` made."""
        return Logins(self._get)

    def who_am_i(self) -> Document:
        """Return who the caller is here, and how that is known: ``name, role, groups, how, expires_at`` and so on."""
        return self._get(requests.who_am_i())

    def close(self) -> None:
        """Close the kept connections."""
        if isinstance(self._transport, ServersTransport):
            self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get(self, request: Request) -> Document:
        data: Document = self._send(request).data
        return data

    def _send(self, request: Request) -> Answer:
        return self._retry(lambda: self._link().send(request), idempotent=request.idempotent)

    def _retry(self, send: Callable[[], Answer], *, idempotent: bool) -> Answer:
        begun, delay = self._clock(), 0.05
        others = (self.target.host or "").count(",")
        window_s = TAKE_OVER_WINDOW_S if others else RETRY_WINDOW_S
        while True:
            try:
                return send()
            except ConnectionLost as error:
                if error.sent and not idempotent:
                    raise
                lost: Unavailable = error
            except Unavailable as error:
                if error.retry_after_ms is None:
                    raise
                lost, delay = error, max(delay, error.retry_after_ms / 1000)
                if error.code == NOT_LEADER:
                    window_s = TAKE_OVER_WINDOW_S
                    delay = error.retry_after_ms / 1000
            # One that hangs may take all of the time: the others are asked all the same.
            others -= 1
            if self._clock() + delay > begun + window_s and others < 0:
                raise lost
            self._sleep(delay)
            delay = min(delay * 2, 2.0 if window_s == RETRY_WINDOW_S else TAKE_OVER_PAUSE_S)
            self._revive()

    def _open(self, request: Request) -> Any:
        return self._link().open(request)

    def _link(self) -> Transport:
        if self._transport is None:
            self._transport = self._connect()
        return self._transport

    def _reach(self) -> Transport:
        if self.target.host is not None:
            return ServersTransport(split_hosts(self.target.host), self.target.token)
        from airyard.sdk import embedded

        found = embedded.find_or_start(self.target.home, announce=self._announce)
        return ServersTransport([found], local_token(self.target.home))

    def _revive(self) -> None:
        """After a broken connection: start the embedded server again when it died.

        One that is being stopped is alive, and takes its endpoint.json away: it is left alone.
        """
        if self.target.host is None and isinstance(self._transport, ServersTransport):
            from airyard.sdk import embedded

            endpoint = embedded.read_endpoint(self.target.home)
            if endpoint is None or embedded.is_alive(endpoint.pid):
                return
            try:
                with closing(self._transport):
                    self._transport = self._reach()
            except AiryardError:
                pass  # the caller goes on trying for as long as its patience lasts


def _rows(answer: Document, key: str) -> Documents:
    rows: Documents = answer[key]
    return rows
