"""The composition root: puts one server together, runs it, takes it apart.

Owns: which adapter serves which port, and the order of start and stop. Must not know: rules of any kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI, Request

from airyard.adapters.blob_files import FileBlobStore
from airyard.adapters.estimates_sql import SqlEstimateStore
from airyard.adapters.log_files import FileLogStore
from airyard.adapters.notices_sql import SqlNoticeStore
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.adapters.secrets_fernet import FernetSecretStore
from airyard.adapters.system_clock import SystemClock
from airyard.app.changes import ChangeFeed
from airyard.app.control import Control
from airyard.app.history import teach
from airyard.app.leases import Leases
from airyard.app.loop import ControlLoop
from airyard.app.orders import BaseEnvironment, OrderDesk, environment_order
from airyard.app.tracking_runs import real_ids_for
from airyard.core.access.people import RunAs
from airyard.core.access.tokens import Token
from airyard.core.commands import MachineAway
from airyard.core.errors import AiryardError, Unavailable
from airyard.core.ids import AttemptKey
from airyard.core.run import RunState
from airyard.core.tracking_alias import alias_of
from airyard.core.workload import DEFAULT_ENVIRONMENT_VERSION, Workload
from airyard.ports.engine import Engine
from airyard.ports.journal import Journal
from airyard.server import routes_runner, sources
from airyard.server.announcing import AnnouncingServer
from airyard.server.app import create_app
from airyard.server.audit import AuditLog
from airyard.server.auth import SESSION_COOKIE, Gatekeeper
from airyard.server.config import Config
from airyard.server.configured_policy import begin_to_lead, read_configured
from airyard.server.context import AccessParts, Principal, ServerContext
from airyard.server.doors import Doors, keep_ca, named_host, serve
from airyard.server.effects import Effects
from airyard.server.engine_place import EnginePlace
from airyard.server.engines import join_own_fleet, make_engine
from airyard.server.estimates import EstimateKeeper
from airyard.server.gang_watch import GangWatch, note_measured
from airyard.server.garbage import Collector
from airyard.server.housekeeping import Housekeeper
from airyard.server.idle_rounds import IdleRounds
from airyard.server.journal_place import journal_database
from airyard.server.judges import Judges
from airyard.server.leader_gate import LeaderGate
from airyard.server.lease_keeping import LeaseKeeper
from airyard.server.logins import LoginDesk
from airyard.server.mlflow_policy import AttemptScope
from airyard.server.notifying import notifier_of, signers_of
from airyard.server.pair_desk import PairDesk
from airyard.server.people_file import PeopleFile
from airyard.server.premises import Premises
from airyard.server.remedies import Remedies
from airyard.server.secret_rights import lookup
from airyard.server.standby import Inheritance
from airyard.server.succession import (
    address_of,
    addresses,
    endpoint_of,
    led_journal,
    led_logs,
    term_of,
    wait_to_lead,
)
from airyard.server.token_use import TokenUse
from airyard.server.tracking import TrackingParts
from airyard.server.tracking_rights import note_proxied, person_scope

FIRST_HELLO_S = 30.0
HOME_CHECK_S = 1.0
EXIT_HOME_REMOVED = 7

_log = structlog.get_logger("airyard.server")


class Server:
    """One server over one data folder. ``run`` returns when it has stopped."""

    def __init__(self, config: Config, home: Path, simulate: Mapping[str, int]) -> None:
        self._config = config
        self._home = home
        self._simulate = dict(simulate)
        self._declared = read_configured(config.policy.file)
        self._signers = signers_of(config.notify)
        self._database = journal_database(config, home)
        file = config.people.file
        self._people = PeopleFile(
            Path(file) if file is not None else None,
            owner=getpass.getuser(),
            run_as=RunAs(config.people.run_as),
            allow_root=config.people.allow_root,
        )
        shared = config.standby.shared
        self._premises = Premises(home, Path(shared) if shared is not None else None)
        self._data_home = self._premises.data.parent
        self._inherited: Inheritance | None = None
        self._clock = SystemClock()
        self._stop_asked = threading.Event()
        self._uvicorn: uvicorn.Server | None = None
        self._keeper: LeaseKeeper | None = None
        self._epoch = 0

    def run(self) -> None:
        """Serve until asked to stop. Raises: AiryardError when it cannot start; everything is closed then."""
        self._premises.open()
        with Doors.opened(self._premises, self._config.server) as doors:
            if self._premises.shared is None:
                self._run_on(doors)
            elif (inherited := self._stand_by(doors)) is not None:
                self._inherited = inherited
                try:
                    self._run_on(doors)
                finally:
                    inherited.leading.stop()

    def _stand_by(self, doors: Doors) -> Inheritance | None:
        find_people = self._people.current
        join_own_fleet(self._config.engine, self._engine_place(doors))
        return wait_to_lead(self._premises, self._database, self._config, doors, find_people)

    def _run_on(self, doors: Doors) -> None:
        self._doors = doors
        host, port, _ = address_of(doors.private)
        started_ms = self._clock.now_ms()
        self._premises.note_holder(started_ms, host, port)
        self._signers = signers_of(self._config.notify)  # a standby has waited since it read them
        place = self._engine_place(doors)
        url, folder, yard = place.url, self._premises.data, self._premises.yard_id()
        with contextlib.ExitStack() as parts:
            changes = ChangeFeed()
            tracking = TrackingParts(self._config.tracking.uri, folder / "mlflow")
            logs = led_logs(self._inherited, folder / "logs")
            gatekeeper = self._gatekeeper(parts)
            made = make_engine(self._config.engine, place)
            engine = made.engine
            effects = Effects(
                engine=engine,
                worker=tracking.worker,
                logs=logs,
                token_for=gatekeeper.attempt_token,
                yard=yard,
                temporary=folder / "tmp",
                find_diff=partial(sources.find, self._data_home / sources.FOLDER, sources.Kind.DIFF),
                remedies=Remedies(self._config.health.model_dump(exclude={"monitor", "idle"})),
                judges=Judges(logs, self._clock),
                test_python=str(self._default_base().get("python") or ""),
            )
            journal, warm = led_journal(self._inherited, self._database)
            loop = ControlLoop(
                journal=journal, clock=self._clock, do=effects.do, changes=changes, renew=engine.renew
            )
            reads = SqlReadStore(self._database)
            tracking.start(lambda attempt_key: real_ids_for(reads, yard, attempt_key))
            parts.callback(tracking.stop)
            loop.start(warm)
            parts.callback(loop.stop)
            self._epoch = loop.query(lambda control: control.state.epoch).result(timeout=30)
            if engine.is_fleet:
                _take_for_away(loop)
            leases = self._keep_leases(loop, changes, engine.lease_s, parts)
            effects.start(loop)
            parts.callback(effects.stop)
            context = self._context(
                url, started_ms, loop, journal, reads, logs, tracking, changes, effects, gatekeeper
            )
            threading.Thread(
                target=_teach, args=(loop, reads, self._clock), name="history", daemon=True
            ).start()
            self._await_first_hello(loop, effects, engine)
            with _stopping_the_agent_on_failure(loop, engine):
                begin_to_lead(loop, self._declared, context.owner)
            engine.warm(self._default_base())
            keeper = EstimateKeeper(loop, reads, SqlEstimateStore(self._database), self._clock)
            for part in (Housekeeper(context), keeper):
                part.start()
                parts.callback(part.stop)
            self._work_unasked(context, effects, parts)
            app = self._app(context, gatekeeper, tracking, url, leases)
            if made.routes is not None:
                app.include_router(made.routes(loop, self._clock, context.owner))
            collector = Collector()
            collector.start()
            parts.callback(collector.stop)
            self._serve(app, doors, started_ms, on_stopping=changes.close)
            if not loop.query(_has_live_runs).result(timeout=30):
                self._premises.forget_arguments()
            if not loop.query(_has_live_attempts).result(timeout=30):
                # Nobody is left to watch over: the agent goes, too.
                engine.stop_agent()

    def _work_unasked(self, context: ServerContext, effects: Effects, parts: contextlib.ExitStack) -> None:
        """Begin what nobody asks for: people are told what happens, and idle nodes are tested."""
        self._notify(context, parts)
        watch = GangWatch(context, self._inherited.leading.holds if self._inherited else lambda: True)
        watch.start()
        parts.callback(watch.stop)
        for tester in self._idle_tests(effects, context.loop):
            tester.start()
            parts.callback(tester.stop)

    def _notify(self, context: ServerContext, parts: contextlib.ExitStack) -> None:
        """Begin to tell people what happens; what happened since the last server is told, too."""
        context.notices = store = SqlNoticeStore(self._database)
        secret_of, inherited = lookup(context.secrets, self._audit), self._inherited
        leads = inherited.leading.holds if inherited is not None else lambda: True
        section, yard = self._config.notify, self._premises.yard_id()
        notifier = notifier_of(section, self._signers, store, context, yard, secret_of, leads)
        notifier.start()
        parts.callback(notifier.stop)

    def _idle_tests(self, effects: Effects, loop: ControlLoop) -> Sequence[IdleRounds]:
        """Return what tests nodes while nobody needs them, where that is wanted."""
        section, inherited = self._config.health.idle, self._inherited
        if not section.enabled:
            return ()
        leads = inherited.leading.holds if inherited is not None else lambda: True
        return (effects.idle_rounds(loop, self._clock.now_ms, section.settings(), leads),)

    def _keep_leases(
        self, loop: ControlLoop, changes: ChangeFeed, lease_s: float | None, parts: contextlib.ExitStack
    ) -> Leases | None:
        """Grant leases where the engine has one, before any runner is answered."""
        if lease_s is None:
            return None
        silent_ms = self._inherited.silent_ms if self._inherited is not None else None
        self._keeper = LeaseKeeper(loop, self._clock, changes, lease_s, silent_ms=silent_ms)
        self._keeper.start()
        parts.callback(self._keeper.stop)
        return self._keeper.leases

    def _servers(self, url: str) -> tuple[str, ...]:
        return addresses(url, self._config.standby)

    def _gatekeeper(self, parts: contextlib.ExitStack) -> Gatekeeper:
        """Make what callers are known by, and the audit of what they do."""
        folder = self._premises.data
        gatekeeper = Gatekeeper(
            owner=getpass.getuser(),
            token=self._premises.token(),
            attempt_key=self._premises.attempt_key(),
            people=self._people.current,
        )
        token_use = TokenUse(folder / "token-use.json", gatekeeper.used_ms)
        token_use.start()
        parts.callback(token_use.stop)
        self._audit = AuditLog(folder / "audit")
        parts.callback(self._audit.close)
        self._logins = LoginDesk(oidc) if (oidc := self._config.people.oidc) is not None else None
        if self._logins is not None:
            parts.callback(self._logins.close)
        return gatekeeper

    def _default_base(self) -> dict[str, Any]:
        """Return the environment of workloads that name none: the first run should not wait for it."""
        version = DEFAULT_ENVIRONMENT_VERSION
        packages = self._config.environments[version].packages
        return {
            "version": version,
            "python": self._python(version),
            "base_packages": list(packages),
        }

    def _bases(self) -> dict[str, BaseEnvironment]:
        return {
            version: BaseEnvironment(python=self._python(version), packages=section.packages)
            for version, section in self._config.environments.items()
        }

    def _python(self, version: str) -> str:
        """Return a base's interpreter; empty in a fleet, where each machine takes the one that runs its agent."""
        if self._config.engine.kind == "ray":
            return self._config.environments[version].python or ""
        return self._config.python_of(version)

    def _engine_place(self, doors: Doors) -> EnginePlace:
        host, _, url = address_of(doors.private)
        if doors.public_url is not None and self._config.engine.kind == "ray":
            # The machines of a fleet come as everybody else does.
            url = doors.public_url
            host = host if doors.public is None else named_host(self._config.server.host)
            keep_ca(self._config.server, self._home / "node")
        return EnginePlace(
            home=self._home,
            data_home=self._data_home,
            host=host,
            url=url,
            urls=",".join(self._servers(url)) if self._inherited is not None else url,
            standby=self._premises.shared is not None,
            simulate=self._simulate,
            monitor=self._config.health.monitor.model_dump(),
            epoch=lambda: self._epoch,
            now_ms=self._clock.now_ms,
        )

    def _context(
        self,
        url: str,
        started_ms: int,
        loop: ControlLoop,
        journal: Journal,
        reads: SqlReadStore,
        logs: FileLogStore,
        tracking: TrackingParts,
        changes: ChangeFeed,
        effects: Effects,
        gatekeeper: Gatekeeper,
    ) -> ServerContext:
        folder = self._premises.data
        bases = self._bases()

        def has_environment(workload: Workload) -> bool | None:
            order = environment_order(workload, bases)
            return effects.has_environment(order) if order is not None else None

        return ServerContext(
            home=self._data_home,
            url=self._doors.public_url or url,
            started_ms=started_ms,
            owner=getpass.getuser(),
            loop=loop,
            journal=journal,
            reads=reads,
            logs=logs,
            blobs=FileBlobStore(folder / "blobs" / "code", shared=self._inherited is not None),
            secrets=FernetSecretStore(folder, term_of(self._inherited)),
            tracker=tracking.tracker,
            changes=changes,
            clock=self._clock,
            retention=self._config.retention_policy(),
            tracking_off=tracking.off,
            environment_versions=frozenset(self._config.environments),
            engine_name=self._config.engine.kind,
            simulate=self._simulate,
            has_environment=has_environment,
            tidy_nodes=effects.tidy,
            rounds=effects.rounds(loop, self._clock.now_ms),
            pairs=PairDesk(effects.pairs),
            containment=lambda: effects.containment,
            access=self._access(gatekeeper, loop),
            shutdown=self.ask_to_stop,
            gauges=effects.gauges,
            signs=effects.signs,
            fleet=effects.fleet,
            throttles=effects.throttles,
            servers=self._servers(self._doors.public_url or url) if self._config.standby.servers else (),
        )

    def _access(self, gatekeeper: Gatekeeper, loop: ControlLoop) -> AccessParts:
        def find_token(token_id: str) -> Token | None:
            return loop.peek(lambda control: control.state.tokens.get(token_id))

        gatekeeper.connect(find_token, self._clock.now_ms)
        return AccessParts(
            authorise=gatekeeper.authorise,
            still=gatekeeper.still,
            proof=gatekeeper.proof,
            link=gatekeeper.one_time_link,
            redeem=gatekeeper.session_for,
            session=gatekeeper.session_of,
            logins=self._logins,
            people=self._people.current,
            audit=self._audit,
            used_ms=gatekeeper.used_ms,
            problem=lambda: self._people.problem,
            insecure=self._doors.insecure,
        )

    def _await_first_hello(self, loop: ControlLoop, effects: Effects, engine: Engine) -> None:
        """Wait until the machine's nodes as they are now are known, so that the first submit is judged by them.

        A fleet whose machines the journal knows is not waited for: its runners wait for this server.
        """
        known = loop.query(lambda control: bool(control.state.machines)).result(timeout=10)
        if (engine.is_fleet and known) or not engine.await_ready():
            return
        pause = threading.Event()
        for _ in range(int(FIRST_HELLO_S / 0.02)):
            if effects.greeted.is_set() and loop.query(_knows_a_live_machine).result(timeout=10):
                return
            if pause.wait(0.02):
                break
        raise Unavailable(
            f"the agent of this machine did not answer within {FIRST_HELLO_S:g} s",
            code="NO_AGENT",
            fix=f"look at {self._premises.folder / 'agent.log'}",
        )

    def _app(
        self,
        context: ServerContext,
        gatekeeper: Gatekeeper,
        tracking: TrackingParts,
        url: str,
        leases: Leases | None,
    ) -> FastAPI:
        """Put the application together; ``url`` is where runs reach it."""
        desk = OrderDesk(
            bases=self._bases(),
            secret=lookup(context.secrets, self._audit),
            tracking_uri=f"{url}/mlflow",
            yard=self._premises.yard_id(),
            allow_root=self._config.people.allow_root,
            asks_for_account=lambda pool: self._people.current().asks_for_account(pool),
            command_token=gatekeeper.command_token,
        )

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[None]:
            yield
            await tracking.aclose()

        app = create_app(context, lifespan=lifespan, runner=routes_runner.router(desk, leases))
        mlflow = tracking.routes(
            lambda request: _authorise(gatekeeper, request),
            _scopes(context, self._premises.yard_id()),
            lambda principal: person_scope(context, principal),
            partial(note_measured, context),
        )
        if mlflow is not None:
            app.include_router(mlflow)
        if self._inherited is not None:
            app.add_middleware(LeaderGate, leading=self._inherited.leading)
        return app

    def _serve(
        self,
        app: FastAPI,
        doors: Doors,
        started_ms: int,
        *,
        on_stopping: Callable[[], None],
    ) -> None:
        host, port, url = address_of(doors.private)
        server = AnnouncingServer(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=3,
                timeout_keep_alive=75,
                http="httptools" if _has("httptools") else "h11",
                loop="uvloop" if _has("uvloop") else "asyncio",
            ),
            on_started=lambda: self._premises.announce(endpoint_of(host, port, url, started_ms)),
            on_stopping=on_stopping,
            on_signal=self.ask_to_stop,
        )
        self._uvicorn = server
        threading.Thread(target=self._watch_home, name="home", daemon=True).start()
        if self._stop_asked.is_set():
            return
        _log.info("serving", url=url, public=doors.public_url, home=str(self._home), simulate=self._simulate)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve(server, doors, self._config.server))
        self._premises.withdraw()
        _log.info("stopped")

    def _watch_home(self) -> None:
        """End at once when the data folder is removed under the server: there is nothing left to close or to keep.

        MLflow ends with this process, the agent and the runners notice by themselves.
        """
        while not self._stop_asked.wait(HOME_CHECK_S):
            if self._premises.is_gone():
                _log.error("home_removed", home=str(self._home))
                os._exit(EXIT_HOME_REMOVED)

    def ask_to_stop(self) -> None:
        """Begin a clean stop: where there are leases, hold them first. Any thread."""
        self._stop_asked.set()
        if self._keeper is not None:
            threading.Thread(target=self._hold_and_end, args=(self._keeper,), name="hold").start()
        elif self._uvicorn is not None:
            self._uvicorn.should_exit = True

    def _hold_and_end(self, keeper: LeaseKeeper) -> None:
        try:
            keeper.hold()
        finally:
            if self._uvicorn is not None:
                self._uvicorn.should_exit = True


def _take_for_away(loop: ControlLoop) -> None:
    """Begin with no machine at hand: those of a fleet say hello as they are found, and some may never again."""
    for name in loop.query(lambda control: list(control.state.machines)).result(timeout=30):
        loop.submit(MachineAway(machine=name)).result(timeout=30)


def _knows_a_live_machine(control: Control) -> bool:
    return any(machine.alive for machine in control.state.machines.values())


def _teach(loop: ControlLoop, reads: SqlReadStore, clock: SystemClock) -> None:
    """Let the forecast learn from earlier runs. A forecast that knows less is no reason to stop."""
    try:
        count = teach(loop, reads, clock)
    except AiryardError as error:
        _log.warning("history_not_learnt", error=error.message)
    else:
        _log.info("history_learnt", runs=count)


def _has_live_runs(control: Control) -> bool:
    return any(run.state is not RunState.ENDED for run in control.state.runs.values())


def _has_live_attempts(control: Control) -> bool:
    return any(True for _ in control.state.live_attempts())


@contextlib.contextmanager
def _stopping_the_agent_on_failure(loop: ControlLoop, engine: Engine) -> Iterator[None]:
    """A start that is refused leaves no agent behind that nobody would stop, unless runs need it."""
    try:
        yield
    except AiryardError:
        if not loop.query(_has_live_attempts).result(timeout=30):
            engine.stop_agent()
        raise


def _authorise(gatekeeper: Gatekeeper, request: Request) -> Principal:
    principal = gatekeeper.authorise(
        request.headers.get("authorization"), request.cookies.get(SESSION_COOKIE)
    )
    note_proxied(request, principal)
    return principal


def _scopes(context: ServerContext, yard: str) -> Any:
    """Return what a member's token is bound to in MLflow; the owner is bound to nothing.

    Its command's, and its runner's: a runner of the release before gives its own to the command.
    """

    def scope_of(principal: Principal) -> AttemptScope | None:
        member = principal.member
        if member is None:
            return None
        key = AttemptKey(member.run_id, member.attempt)

        alias = alias_of(yard, str(key))

        def read(control: Control) -> AttemptScope:
            run = control.state.runs.get(key.run_id)
            if run is None or key.attempt >= len(run.attempts):
                return AttemptScope(key=str(key), run_id=None, experiment_id=None, alias=alias)
            tracking = run.attempts[key.attempt].tracking
            return AttemptScope(
                key=str(key),
                run_id=tracking.run_id or None,
                experiment_id=tracking.experiment_id or None,
                alias=alias,
            )

        return context.loop.query(read).result(timeout=10)

    return scope_of


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
