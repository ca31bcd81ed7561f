"""Connections to the journal in PostgreSQL: a writer behind a row lock, read-only ones for everybody else.

Owns: sessions and their time limits on both ends, the lock, what PostgreSQL's errors mean to us. Must not know: tables,
but for the one row that every writer locks.

The password comes beside the address, never in it: the address is printed and logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from airyard.adapters.journal_tables import metadata
from airyard.adapters.sql_database import ANSWER_S
from airyard.core.errors import Fix, Unavailable, UserError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    from airyard.adapters.postgres_patience import Limited
except ImportError as missing:
    raise UserError(
        "The journal is configured to be in PostgreSQL, and the package that speaks to it is not installed.",
        code="POSTGRES_NOT_INSTALLED",
        fix=Fix(text="Install it beside the server.", command="pip install 'airyard[server,postgres]'"),
    ) from missing

PASSWORD_VARIABLE = "AIRYARD_JOURNAL_PASSWORD"
_READERS = 16
_CONNECT: Mapping[str, Any] = {
    "connect_timeout": 5,
    "application_name": "airyard",
    # A peer that is gone without a word is noticed in ten seconds, on whichever end waits.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SESSION: Mapping[str, Any] = {
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # A server that stopped in the middle of a commit must not keep the next one waiting; longer than the one below is
    # the wait for it.
    "idle_in_transaction_session_timeout": 5_000,
    "lock_timeout": 10_000,
}
_FENCE = "SELECT version_num FROM alembic_version FOR UPDATE"
_SCHEMA_LOCK = 0x61697279  # any number that means us among advisory locks
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
_FULL = "53100"
_READ_ONLY = "25006"


class PostgresDatabase:
    """The tables in the default schema of one PostgreSQL database."""

    def __init__(self, url: str, password: str | None = None) -> None:
        try:
            self._target = {**_CONNECT, **conninfo_to_dict(url)}
        except psycopg.Error as error:
            raise UserError(
                f"[journal] url is no address of a PostgreSQL database: {_first_line(error)}",
                code="BAD_CONFIG",
            ) from error
        self._password = password

    @property
    def name(self) -> str:
        """Return ``postgresql://user@host:port/database`` as far as it is known."""
        get = self._target.get
        user = f"{get('user')}@" if get("user") else ""
        return f"postgresql://{user}{self._where()}/{get('dbname') or get('user') or ''}"

    def write_engine(self, *, durable: bool = True, answer_s: float | None = ANSWER_S) -> Engine:
        """Open connections to a server that takes writes; a broken one is replaced at its next use."""
        session = {**_SESSION, **({} if durable else {"synchronous_commit": "off"})}
        target = {"target_session_attrs": "read-write", **self._target}
        engine = self._engine(target, session, answer_s, poolclass=NullPool)
        if durable:
            # A cluster that acknowledges before the disk has it would lose what we promised.
            @event.listens_for(engine, "connect")
            def connect(connection: Any, record: object) -> None:
                connection.execute(_DURABLE)
                connection.commit()

        return engine

    def read_engine(self, *, answer_s: float | None = ANSWER_S) -> Engine:
        """Open a pool of connections that cannot write; each transaction sees one state."""
        return self._engine(
            self._target,
            {**_SESSION, "default_transaction_read_only": "on"},
            answer_s,
            poolclass=QueuePool,
            pool_size=4,
            max_overflow=_READERS - 4,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
        )

    def _engine(
        self, target: Mapping[str, Any], session: Mapping[str, Any], answer_s: float | None, **settings: Any
    ) -> Engine:
        ours = " ".join(f"-c {name}={value}" for name, value in session.items())
        options = " ".join(filter(None, (ours, target.get("options"))))
        password = {} if self._password is None else {"password": self._password}

        def connect() -> Any:
            connection = Limited.connect(**{**target, "options": options, **password})
            connection.answer_s = answer_s
            return connection

        return create_engine(
            "postgresql+psycopg://", creator=connect, paramstyle="format", use_native_hstore=False, **settings
        )

    def fence(self, writer: Connection) -> None:
        """Lock the row of the schema's version: every writer does, so they go one by one."""
        writer.exec_driver_sql(_FENCE)

    def lock_schema(self, writer: Connection) -> None:
        """Take an advisory lock: there may be no table yet."""
        writer.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")

    def back_up(self, schema: int) -> Path | None:
        """Leave that to the administrator: a migration here is one transaction, and changes all or nothing."""
        return None

    def is_lost(self, error: Exception) -> bool:
        """True for a broken or refused connection, and for a server that has become read-only."""
        if not isinstance(error, DBAPIError):
            return False
        state = getattr(error.orig, "sqlstate", None)
        unreachable = isinstance(error.orig, psycopg.OperationalError) and state is None
        return error.connection_invalidated or unreachable or state == _READ_ONLY

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Say what PostgreSQL said, where it is, and what to do."""
        try:
            yield
        except (DBAPIError, psycopg.Error) as error:
            raise self._unavailable(error) from error

    def size_bytes(self) -> int:
        """Return what tables and indexes take; 0 where nobody answers."""
        names = ", ".join(f"'{table}'" for table in metadata.tables)
        engine = self._engine(self._target, _SESSION, ANSWER_S, poolclass=NullPool)
        try:
            with engine.connect() as reader:
                total = reader.exec_driver_sql(
                    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
                    f" WHERE relnamespace = current_schema()::regnamespace AND relname IN ({names})"
                ).scalar_one()
        except DBAPIError:
            return 0
        return int(total)

    def _where(self) -> str:
        hosts = str(self._target.get("host") or self._target.get("hostaddr") or "localhost").split(",")
        ports = str(self._target.get("port") or "5432").split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        return ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))

    def _unavailable(self, error: Exception) -> Unavailable:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        text, state = _first_line(cause), getattr(cause, "sqlstate", None)
        details = {"database": self.name, "cause": text, "sqlstate": state}
        if state == _FULL:
            return Unavailable(
                f"The disk of {self.name} is full, so nothing new can be recorded. Nothing that was recorded is lost.",
                code="JOURNAL_FULL",
                fix="Free space on PostgreSQL's disk; `airyard admin gc --dry-run` shows what Airyard can remove.",
                details=details,
            )
        return Unavailable(
            f"The journal {self.name} cannot be read or written: {text}.",
            code="JOURNAL_BROKEN",
            fix=self._next_step(text),
            details=details,
            retry_after_ms=1000,
        )

    def _next_step(self, text: str) -> Fix:
        get = self._target.get
        if "password" in text or "authentication" in text:
            return Fix(
                text=f"Give the password of {get('user') or 'its user'} in {PASSWORD_VARIABLE}, in the file that "
                "[journal] password_file names, or in ~/.pgpass; pg_hba.conf says who may come from where."
            )
        host, port = get("host") or "localhost", get("port") or "5432"
        if "does not exist" in text:
            return Fix(
                text="Create it, or correct [journal] url.",
                command=f"createdb -h {host} -p {port} -O {get('user') or 'airyard'} {get('dbname') or 'airyard'}",
            )
        return Fix(
            text=f"Start PostgreSQL on {host}, or correct [journal] url; the server goes on by itself once it answers.",
            command=f"pg_isready -h {host} -p {port}",
        )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
