"""The server's configuration: a TOML file, with defaults that serve one user on one machine.

Owns: the sections, their checks and defaults. Must not know: how the parts use them.
"""

from __future__ import annotations

import difflib
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from airyard.app.retention import DAY_MS, GIB, Keep, RetentionPolicy
from airyard.core.errors import UserError
from airyard.core.workload import parse_accelerator
from airyard.server.config_idle import IdleSection
from airyard.server.config_notify import NotifySection
from airyard.server.config_oidc import OidcSection

DEFAULT_SIMULATION = {"GPU_8xH100": 4, "GPU_1xH100": 2, "GPU_1xA10": 2}
MAX_SIMULATED_NODES = 4096


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _address(value: str) -> str:
    """Return an address of a server without its last slash. Raises: ValueError."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or "," in value or parts.path.strip("/"):
        raise ValueError("write it like https://HOST:PORT")
    return value.rstrip("/")


class TlsSection(_Section):
    """What the server proves itself with beyond this machine: PEM files, relative to the configuration file."""

    certificate: str
    key: str
    ca: str | None = None
    """The CA of the certificate, where it is a private one: what the runs on this machine trust in a fleet."""


class ServerSection(_Section):
    """Where the server listens. Beyond loopback it takes ``tls``, or ``insecure`` does without."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    tls: TlsSection | None = None
    insecure: bool = False
    url: str | None = None
    """What others are told to come by, where it is not host and port: a name, a proxy, a service of Kubernetes."""

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        return None if value is None else _address(value)


class RaySection(_Section):
    """The Ray cluster of a fleet. Without ``head`` and ``address`` the server keeps a head of its own."""

    head: str | None = None
    """HOST:PORT of a head that ``airyard node head`` keeps: this machine becomes a node of it by itself."""

    address: str | None = None
    """HOST:PORT, or ``auto`` for the one of this machine, which must be a node of it in any case."""
    token_file: str | None = None
    """The token of a head or cluster elsewhere; relative to the configuration file."""
    node_ip: str | None = None
    """This machine's address for the other machines; by default the server's host."""
    dashboard: bool = False
    here: bool = True
    """Whether the server's own machine runs members."""
    redis: str | None = None
    """HOST:PORT of a Redis in which the server's own head keeps its state."""
    redis_password_file: str | None = None
    """A file of its owner's alone; relative to the configuration file."""

    @model_validator(mode="after")
    def _one_head(self) -> RaySection:
        if self.head is not None and self.address is not None:
            raise ValueError("head and address exclude each other")
        if self.head is not None and self.token_file is None:
            raise ValueError("head needs token_file: a copy of the token that the head has made")
        if self.redis is not None and (self.head is not None or self.address is not None):
            raise ValueError("redis is for the server's own head; give it to `airyard node head`")
        return self


class EngineSection(_Section):
    """What runs members, and which nodes this machine offers."""

    kind: Literal["local", "ray", "dev"] = "local"
    """``dev``: the simulated machines of ``airyard dev fleet``."""
    ray: RaySection = RaySection()
    cpu_slots: Annotated[int, Field(ge=1, le=4096)] | None = None
    simulate: dict[str, Annotated[int, Field(ge=1)]] = {}
    system_gpu_lock_folder: str | None = None
    lease_seconds: Annotated[float, Field(ge=2, le=86_400)] | None = None
    """How long a runner goes on without the server; default: for ever on one machine, 600 in a fleet."""

    @field_validator("simulate")
    @classmethod
    def _types(cls, value: dict[str, int]) -> dict[str, int]:
        for accelerator in value:
            model, _ = parse_accelerator(accelerator)
            if model is None:
                raise ValueError("CPU slots are set by cpu_slots")
        if sum(value.values()) > MAX_SIMULATED_NODES:
            raise ValueError(f"at most {MAX_SIMULATED_NODES} nodes can be simulated")
        return value


class TrackingSection(_Section):
    """Where runs are tracked: ``embedded``, ``off``, or the URI of an MLflow server."""

    uri: str = "embedded"


class EnvironmentSection(_Section):
    """One base environment."""

    python: str | None = None
    packages: tuple[str, ...] = ("pip", "mlflow-skinny==3.17.2", "psutil")


class RetentionSection(_Section):
    """How long things are kept: ages in days, caps in GiB."""

    runs_days: Annotated[float, Field(gt=0)] = 180
    logs_days: Annotated[float, Field(gt=0)] = 30
    logs_cap_gib: Annotated[float, Field(gt=0)] = 50
    code_days: Annotated[float, Field(gt=0)] = 30
    environments_days: Annotated[float, Field(gt=0)] = 30
    environments_cap_gib: Annotated[float, Field(gt=0)] = 20


class PolicySection(_Section):
    """Where pools, projects and users are declared."""

    file: str | None = None
    """A yard.yaml; relative to the configuration file."""


class JournalSection(_Section):
    """Where the journal is kept: by default in a SQLite file of the data folder."""

    url: str | None = None
    """``postgresql://user@host:port/database?sslmode=verify-full``, or ``sqlite``."""
    password_file: str | None = None
    """A file of its owner's alone; relative to the configuration file."""

    @field_validator("url")
    @classmethod
    def _place(cls, value: str | None) -> str | None:
        if value is None or value == "sqlite":
            return value
        # What is wrong is told without the value: a password in it would be printed and logged.
        if not value.startswith(("postgresql://", "postgres://")):
            raise ValueError('write it like postgresql://user@host:5432/database, or "sqlite"')
        try:
            parts = urlsplit(value)
            secret = parts.password is not None or "password" in parse_qs(parts.query)
        except ValueError as error:
            raise ValueError("it cannot be read as an address") from error
        if secret:
            raise ValueError("no password in here; put it into password_file or AIRYARD_JOURNAL_PASSWORD")
        return value


class StandbySection(_Section):
    """Several equal servers over one PostgreSQL: one leads, the others wait to take over."""

    shared: str | None = None
    """The data folder that they share, on one machine or by NFS; each has its own ``--home`` beside it."""
    servers: tuple[str, ...] = ()
    """The addresses of all of them, which runners are told."""
    lease_s: Annotated[float, Field(ge=2, le=60)] = 4.0
    """A leader that has not renewed its lease for so long answers nobody."""

    @field_validator("servers")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_address(address) for address in value)


class MonitorSection(_Section):
    """How agents watch their machines' health, in seconds between two looks."""

    enabled: bool = True
    kernel_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    ports_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    gpus_s: Annotated[float, Field(ge=1, le=600)] = 5.0
    """Clocks, heat and power, while a run has a GPU of the machine."""
    gpus_idle_s: Annotated[float, Field(ge=1, le=3600)] = 60.0
    counters_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    host_s: Annotated[float, Field(ge=1, le=3600)] = 60.0


class HealthSection(_Section):
    """How broken nodes are mended and tested: commands that this server runs, told the node in AIRYARD_NODE."""

    gpu_reset_command: str | None = None
    reboot_command: str | None = None
    power_cycle_command: str | None = None
    reboot_changes_boot: bool = True
    """After these two the machine's boot id has to be another one; false where they start a container anew."""
    retest_command: str | None = None
    """Exits with 0 when the node is well, with 1 when it is not; anything else says nothing."""
    simulated_remedy_command: str | None = None
    """Mends simulated nodes, whatever the remedy; without it they are mended at once."""
    simulated_retest_command: str | None = None
    monitor: MonitorSection = MonitorSection()
    idle: IdleSection = IdleSection()


class PeopleSection(_Section):
    """Where users, their roles and groups are declared."""

    file: str | None = None
    """A users.yaml; relative to the configuration file. Without one the owner is the only user."""
    run_as: Literal["server", "user"] = "server"
    """``user``: every run has its user's Unix account, on nodes whose agents run as root."""
    allow_root: bool = False
    """Whether that account may be root."""
    oidc: OidcSection | None = None
    """A provider at which people log in; with it not everybody has to be in the file."""


def _environments() -> dict[str, EnvironmentSection]:
    return {version: EnvironmentSection() for version in ("4", "5", "6")}


class Config(_Section):
    """The whole file."""

    server: ServerSection = ServerSection()
    engine: EngineSection = EngineSection()
    tracking: TrackingSection = TrackingSection()
    environments: dict[str, EnvironmentSection] = Field(default_factory=_environments)
    retention: RetentionSection = RetentionSection()
    journal: JournalSection = JournalSection()
    standby: StandbySection = StandbySection()
    policy: PolicySection = PolicySection()
    people: PeopleSection = PeopleSection()
    health: HealthSection = HealthSection()
    notify: NotifySection = NotifySection()

    def retention_policy(self) -> RetentionPolicy:
        """Return the retention section as the rules of the application."""
        given = self.retention
        return RetentionPolicy(
            runs=Keep(age_ms=int(given.runs_days * DAY_MS)),
            logs=Keep(age_ms=int(given.logs_days * DAY_MS), cap_bytes=int(given.logs_cap_gib * GIB)),
            code=Keep(age_ms=int(given.code_days * DAY_MS)),
            environments=Keep(
                age_ms=int(given.environments_days * DAY_MS), cap_bytes=int(given.environments_cap_gib * GIB)
            ),
            journal=Keep(age_ms=int(given.runs_days * DAY_MS)),
        )

    def python_of(self, version: str) -> str:
        """Return the interpreter of a base environment: by default the one that runs the server."""
        return self.environments[version].python or sys.executable

    @field_validator("environments")
    @classmethod
    def _with_default(cls, value: dict[str, EnvironmentSection]) -> dict[str, EnvironmentSection]:
        """What the file leaves out keeps its shipped meaning."""
        return {**_environments(), **value}


def load_config(path: Path | None, *, home: Path) -> Config:
    """Read the file given, else ``<home>/config.toml`` if there is one, else the defaults.

    ``AIRYARD_TRACKING_SERVER`` (``off`` or a URI) wins over the file. ``[client]`` is the CLI's and is left out.
    Raises: UserError naming the file, the key and the reason.
    """
    given = path is not None
    file = path or home / "config.toml"
    data: dict[str, Any] = {}
    if given or file.exists():
        data = _read(file)
    data.pop("client", None)
    tracking = os.environ.get("AIRYARD_TRACKING_SERVER")
    if tracking:
        data["tracking"] = {**data.get("tracking", {}), "uri": tracking}
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems = [_problem(item) for item in error.errors()]
        raise UserError(
            f"{file} is not a valid configuration: " + "; ".join(problems),
            code="BAD_CONFIG",
            details={"problems": problems},
            fix="docs/operate/configuration.md lists every key",
        ) from error
    folder = file.absolute().parent
    return config.model_copy(
        update={
            "server": _tls_beside(folder, config.server),
            "engine": _ray_beside(folder, config.engine),
            "policy": PolicySection(file=_beside(folder, config.policy.file)),
            "people": _people_beside(folder, config.people),
            "notify": config.notify.beside(folder),
            "standby": config.standby.model_copy(update={"shared": _beside(folder, config.standby.shared)}),
            "journal": config.journal.model_copy(
                update={"password_file": _beside(folder, config.journal.password_file)}
            ),
        }
    )


def _tls_beside(folder: Path, section: ServerSection) -> ServerSection:
    if section.tls is None:
        return section
    found = TlsSection(
        certificate=str(folder / Path(section.tls.certificate).expanduser()),
        key=str(folder / Path(section.tls.key).expanduser()),
        ca=_beside(folder, section.tls.ca),
    )
    return section.model_copy(update={"tls": found})


def _ray_beside(folder: Path, section: EngineSection) -> EngineSection:
    found = {
        name: _beside(folder, getattr(section.ray, name)) for name in ("token_file", "redis_password_file")
    }
    return section.model_copy(update={"ray": section.ray.model_copy(update=found)})


def _people_beside(folder: Path, section: PeopleSection) -> PeopleSection:
    oidc = section.oidc.beside(folder) if section.oidc is not None else None
    return section.model_copy(update={"file": _beside(folder, section.file), "oidc": oidc})


def _beside(folder: Path, name: str | None) -> str | None:
    """Return a path that the file names relative to itself."""
    return None if name is None else str(folder / Path(name).expanduser())


def _problem(item: Mapping[str, Any]) -> str:
    """Say one problem in our words: where, what, and for an unknown key its near miss and the keys there are."""
    path = [str(part) for part in item["loc"]]
    where = ".".join(path)
    if item["type"] != "extra_forbidden":
        return f"{where}: {item['msg'].removeprefix('Value error, ')}"
    section: type[BaseModel] = Config
    for name in path[:-1]:
        field = section.model_fields.get(name)
        if field is not None and (inner := _section_in(field.annotation)) is not None:
            section = inner
        elif name in _environments() or section is Config:
            section = EnvironmentSection
    known = list(section.model_fields)
    near = difflib.get_close_matches(path[-1], known, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f"{where}: unknown key{hint} (known: {', '.join(known)})"


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, also where it may be left out or there may be several."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}", code="BAD_CONFIG") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not TOML: {error}", code="BAD_CONFIG") from error


def parse_simulation(text: str) -> Mapping[str, int]:
    """Read ``GPU_8xH100=4,GPU_1xA10=2``; ``default`` is the small yard of the documentation. Raises: UserError."""
    if text in ("", "default"):
        return dict(DEFAULT_SIMULATION)
    out: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition("=")
        try:
            model, _ = parse_accelerator(name)
            number = int(count or "1")
        except ValueError:
            model, number = None, 0
        if model is None or number < 1:
            raise UserError(
                f"{part.strip()!r} is no simulated node; write it like GPU_8xH100=4",
                code="BAD_SIMULATION",
            )
        out[name] = out.get(name, 0) + number
    return out
