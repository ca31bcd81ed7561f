"""Tells people what happened: makes messages of the journal's events and delivers them, on threads of its own.

Owns: when messages are made, sent, tried again and given up. Must not know: what stands in them, SQL, sockets.

It follows the journal from a stored mark, never the other way round: neither commits nor plans wait for it. One queue
sends one message at a time; a receiver that is away costs its own queue, which is bounded.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

import airyard
from airyard.adapters.webhook_post import Answer, Reach, post
from airyard.app.delivery_turns import LONGEST_REST_MS, Turns, owner_of
from airyard.app.notifying import FleetReceiver, Sender
from airyard.app.run_lookup import run_from
from airyard.core.errors import AiryardError, NotFound, UserError
from airyard.core.events import Recorded, RunSubmitted
from airyard.core.notices import SOURCES
from airyard.core.notify import SECRET_ADDRESS, check_address, shown_target
from airyard.core.run import Run
from airyard.core.webhooks import Verdict, headers_of, next_try_ms, verdict_of
from airyard.ports.clock import Clock
from airyard.ports.notice_store import Message, MessageState, NoticeStore
from airyard.ports.read_store import ReadStore
from airyard.server.config_notify import NotifySection
from airyard.server.context import ServerContext
from airyard.server.journal_place import read_password

EVERY_S = 1.0
PAGE_EVENTS = 500
MARK_EVENTS = 5_000
"""The mark is written at least every so many events; up to it nothing is looked at again after a restart."""
MOST_IN_QUEUE = 1_000
MOST_WAITING = 20_000
MOST_OF_OWNER = 5_000
"""So many messages wait at most: in a queue, in all, in those of one owner."""
ALWAYS_KEPT = 20
"""So many a queue may have whatever others have: who does not answer must not cost others their messages."""

_log = structlog.get_logger("airyard.notify")
Post = Callable[..., Answer]


class _NowhereError(Exception):
    """There is nobody any more to whom a message could go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How messages go out. ``secret_of`` returns a run's secret (run, scope, key). Raises: NotFound."""

    reach: Reach
    secret_of: Callable[[Run, str, str], str]
    run_secret: str | None = None
    """Signs messages of runs that name no secret of their own."""
    leads: Callable[[], bool] = lambda: True
    post: Post = post


class Notifier:
    """Follows the journal and empties the queues until it is stopped."""

    def __init__(
        self,
        store: NoticeStore,
        reads: ReadStore,
        sender: Sender,
        delivery: Delivery,
        clock: Clock,
        *,
        end: Callable[[], int],
        chance: Callable[[], float],
    ) -> None:
        """``end`` returns the last event that was committed; ``chance`` a number from 0 to 1."""
        self._store = store
        self._reads = reads
        self._sender = sender
        self._delivery = delivery
        self._clock = clock
        self._end = end
        self._chance = chance
        self._seen = self._marked = 0
        self._turns = Turns()
        self._woken = threading.Event()
        self._stopping = False
        self._away = False
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Go on from the stored mark."""
        self._seen = self._marked = self._store.cursor()
        self._thread.start()

    def stop(self) -> None:
        """End; what is under way is sent again by the next server, under the same id, unless its answer still comes."""
        self._stopping = True
        self._woken.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._collect()
                self._send()
                self._away = False
            except AiryardError as error:
                if not self._away:
                    _log.warning("notices_wait", error=error.message)
                self._away = True
            except Exception:
                # People go on without news; the next round may do better.
                _log.exception("notices_broke")
            self._woken.wait(EVERY_S)
            self._woken.clear()

    def _collect(self) -> None:
        """Make messages of what was committed since the last round."""
        while self._seen < self._end() and not self._stopping:
            events, upto = self._store.events_after(self._seen, SOURCES.keys(), PAGE_EVENTS)
            messages = [message for recorded in events for message in self._made(recorded)]
            if messages or upto - self._marked >= MARK_EVENTS:
                self._store.keep(self._bounded(messages), upto)
                self._marked = upto
            self._seen = upto
            if len(events) < PAGE_EVENTS:
                return

    def _made(self, recorded: Recorded) -> Sequence[Message]:
        try:
            return self._sender.messages(recorded, self._find_run)
        except AiryardError:
            raise  # the journal is away; the event is looked at again
        except Exception:
            # A bug met by one event must not hold up all that come after it.
            _log.exception("notice_not_made", seq=recorded.seq)
            return ()

    def _find_run(self, run_id: int) -> Run | None:
        row = self._reads.run(run_id)
        if row is not None:
            return run_from(row) if row.record["workload"].get("notify") else None
        # Removed meanwhile: the journal still knows what was asked.
        events = (recorded.event for recorded in self._reads.events_of(run_id))
        return next((event.run for event in events if isinstance(event, RunSubmitted)), None)

    def _bounded(self, messages: Sequence[Message]) -> list[Message]:
        """Give up at once what would overfill a queue."""
        if not messages:
            return []
        waiting = Counter(self._store.queues())
        total = waiting.total()
        owners: Counter[str] = Counter()
        for queue, count in waiting.items():
            owners[owner_of(queue)] += count
        out: list[Message] = []
        for message in messages:
            queue, owner = message.queue, owner_of(message.queue)
            full = waiting[queue] >= MOST_IN_QUEUE or (
                waiting[queue] >= ALWAYS_KEPT and (owners[owner] >= MOST_OF_OWNER or total >= MOST_WAITING)
            )
            if full or total >= 2 * MOST_WAITING:
                out.append(self._given_up(message, f"{waiting[queue]:,} messages wait already"))
                continue
            waiting[queue] += 1
            total += 1
            owners[owner] += 1
            out.append(message)
        return out

    def _send(self) -> None:
        """Begin to send what is due, as far as there is room."""
        if not self._delivery.leads():
            return
        now_ms = self._clock.now_ms()
        for queue in self._turns.waiting(self._store.queues(), now_ms):
            if not self._turns.take(queue, now_ms):
                continue
            message = self._store.due(queue, now_ms)
            if message is None:
                self._turns.let_go(queue)
                continue
            threading.Thread(target=self._deliver, args=(message,), name="notice", daemon=True).start()

    def _deliver(self, message: Message) -> None:
        """Send one message and note what came of it. On a thread of its own."""
        try:
            noted, answered = self._tried(message)
            if answered:
                self._turns.answered(message.queue)
            elif answered is not None:
                self._turns.failed(message.queue, self._clock.now_ms(), self._chance())
            self._store.note(noted)
            if noted.state is MessageState.GIVEN_UP:
                _log.warning(
                    "notice_given_up",
                    id=noted.message_id,
                    kind=noted.kind,
                    run_id=noted.run_id,
                    to=shown_target(noted.target),
                    error=noted.error,
                )
        except AiryardError as error:
            # The tables are away. The message waits in them, and is sent again when they are back.
            self._turns.failed(message.queue, self._clock.now_ms(), 1.0, LONGEST_REST_MS // 10)
            _log.warning("notice_not_noted", id=message.message_id, error=error.message)
        except Exception:
            self._turns.failed(message.queue, self._clock.now_ms(), 1.0, LONGEST_REST_MS)
            _log.exception("notice_broke", id=message.message_id)
        finally:
            self._turns.let_go(message.queue)
            self._woken.set()

    def _tried(self, message: Message) -> tuple[Message, bool | None]:
        """Send a message once and return it with what came of it, and whether its receiver did its part.

        None: nothing was sent.
        """
        try:
            url, secret, reach = self._addressed(message)
        except NotFound as error:
            return self._given_up(message, error.message), None
        except _NowhereError as error:
            return self._given_up(message, str(error)), None
        except ValueError as error:
            return self._given_up(message, f"the secret holds no address: it {error}"), None
        body = message.body.encode()
        answer = self._delivery.post(url, _headers(message, body, secret), body, reach=reach)
        tried = replace(message, tries=message.tries + 1)
        if answer.refused:
            return self._given_up(tried, answer.problem), None
        verdict = Verdict.AGAIN if answer.status is None else verdict_of(answer.status)
        now_ms = self._clock.now_ms()
        if verdict is Verdict.DELIVERED:
            return replace(tried, state=MessageState.DELIVERED, error="", ended_ms=now_ms), True
        problem = answer.problem or f"answered {answer.status}"
        next_ms = next_try_ms(message.at_ms, now_ms, tried.tries, self._chance())
        if verdict is Verdict.NEVER or next_ms is None:
            return self._given_up(tried, problem), verdict is Verdict.NEVER
        return replace(tried, error=problem, next_ms=next_ms), False

    def _given_up(self, message: Message, problem: str) -> Message:
        return replace(message, state=MessageState.GIVEN_UP, error=problem, ended_ms=self._clock.now_ms())

    def _addressed(self, message: Message) -> tuple[str, str | None, Reach | None]:
        """Return address, secret and reach of a message. Raises: NotFound, _NowhereError, ValueError."""
        if message.run_id is None:
            # As the configuration is now: a secret may have been changed since.
            receivers = [one for one in self._sender.fleet if one.to == message.target]
            if not receivers:
                raise _NowhereError("the configuration names this receiver no more")
            return message.target, receivers[0].secret, None
        run, url, secret = self._find_run(message.run_id), message.target, self._delivery.run_secret
        if run is None:
            raise _NowhereError("nothing is known of the run any more")
        named = SECRET_ADDRESS.fullmatch(url)
        if named:
            url = check_address(self._delivery.secret_of(run, named[1], named[2]).strip())
        if message.secret is not None:
            scope, _, key = message.secret.partition("/")
            secret = self._delivery.secret_of(run, scope, key)
        return url, secret, self._delivery.reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """The secrets that the configuration's files hold: who is told of the yard, and what signs messages of runs."""

    fleet: tuple[FleetReceiver, ...]
    run_secret: str | None


def signers_of(config: NotifySection) -> Signers:
    """Read the secrets' files: before a server begins. Raises: UserError for one that is unfit."""
    fleet = tuple(
        FleetReceiver(on=one.on, to=one.to, secret=_secret(one.secret_file, "[[notify.fleet]] secret_file"))
        for one in config.fleet
    )
    return Signers(fleet=fleet, run_secret=_secret(config.secret_file, "[notify] secret_file"))


def notifier_of(
    config: NotifySection,
    signers: Signers,
    store: NoticeStore,
    context: ServerContext,
    yard: str,
    secret_of: Callable[[Run, str, str], tuple[str, bool]],
    leads: Callable[[], bool],
) -> Notifier:
    """Put a notifier together as the configuration says."""
    delivery = Delivery(
        reach=Reach(allow_private=config.allow_private, hosts=frozenset(config.allow_hosts)),
        secret_of=lambda run, scope, key: secret_of(run, scope, key)[0],
        run_secret=signers.run_secret,
        leads=leads,
    )
    loop = context.loop
    return Notifier(
        store,
        context.reads,
        Sender(yard=yard, server=context.url, fleet=signers.fleet),
        delivery,
        context.clock,
        end=lambda: loop.peek(lambda control: control.state.seq),
        chance=random.random,
    )


def _secret(file: str | None, key: str) -> str | None:
    if file is None:
        return None
    secret = read_password(Path(file), key)
    if not secret:
        raise UserError(f"{file} is empty, and is to sign messages", code="BAD_CONFIG", fix=f"correct {key}")
    return secret


def _headers(message: Message, body: bytes, secret: str | None) -> Mapping[str, str]:
    # The receiver compares with its own clock, so it is the wall's.
    signed = headers_of(message.message_id, time.time_ns() // 1_000_000_000, body, secret)
    return {
        **signed,
        "content-type": "application/json; charset=utf-8",
        "user-agent": f"airyard/{airyard.__version__}",
    }
