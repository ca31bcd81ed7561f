"""What each route does to which kind of object: with the table in ``core.access`` this is all of the authorisation.

Owns: that list. Must not know: who may do it. A route that is not here is refused, and a test names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from airyard.core.access.roles import Thing, Verb

PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Access:
    """What a request does. ``audited``: it is written to the audit also when it only looks."""

    verb: Verb
    thing: Thing
    audited: bool = False


class Gateless(Enum):
    """Routes that are not for people with rights."""

    OPEN = "open to everybody"
    ATTEMPT = "for an attempt's own token"
    FLEET = "for machines, by the fleet's own token"
    PROXY = "checked where it is forwarded"


Entry = Access | Gateless

_VIEW_RUN = Access(Verb.VIEW, Thing.RUN)
_MANAGE_RUN = Access(Verb.MANAGE, Thing.RUN)
_VIEW_LOG = Access(Verb.VIEW, Thing.LOG, audited=True)
_VIEW_POLICY = Access(Verb.VIEW, Thing.POLICY)
_MANAGE_NODE = Access(Verb.MANAGE, Thing.NODE)
_VIEW_SERVER = Access(Verb.VIEW, Thing.SERVER)
_MANAGE_SERVER = Access(Verb.MANAGE, Thing.SERVER)

_NATIVE: Mapping[str, Entry] = {
    "GET /identify": Gateless.OPEN,
    "GET /login": Gateless.OPEN,
    "POST /login/browser": Gateless.OPEN,
    "POST /login/device": Gateless.OPEN,
    "POST /login/finish": Gateless.OPEN,
    "POST /login/poll": Gateless.OPEN,
    "POST /login/service": Gateless.OPEN,
    "GET /whoami": _VIEW_SERVER,
    "GET /openapi.json": _VIEW_SERVER,
    "GET /status": _VIEW_SERVER,
    "POST /runs": Access(Verb.CREATE, Thing.RUN),
    "GET /runs": _VIEW_RUN,
    "GET /wait": _VIEW_RUN,
    "GET /runs/{ref}": _VIEW_RUN,
    "GET /runs/{ref}/explain": _VIEW_RUN,
    "GET /runs/{ref}/source": _VIEW_RUN,
    "GET /runs/{ref}/metrics": Access(Verb.VIEW, Thing.TRACKING),
    "POST /runs/{ref}/page": Access(Verb.VIEW, Thing.TRACKING, audited=True),
    "GET /runs/{ref}/files": Access(Verb.VIEW, Thing.OUTPUT, audited=True),
    "GET /runs/{ref}/triage": _VIEW_LOG,
    "GET /runs/{ref}/logs": _VIEW_LOG,
    "GET /runs/{ref}/logs/raw": _VIEW_LOG,
    "GET /runs/{ref}/stream": _VIEW_LOG,
    "POST /runs/{ref}/cancel": _MANAGE_RUN,
    "POST /runs/{ref}/update": _MANAGE_RUN,
    "POST /runs/{ref}/resume": _MANAGE_RUN,
    "DELETE /runs/{ref}": Access(Verb.DELETE, Thing.RUN),
    "HEAD /code/{tree_hash}": Access(Verb.VIEW, Thing.CODE),
    "PUT /code/{tree_hash}": Access(Verb.CREATE, Thing.CODE),
    "GET /queue": Access(Verb.VIEW, Thing.QUEUE),
    "GET /nodes": Access(Verb.VIEW, Thing.NODE),
    "GET /nodes/{name}": Access(Verb.VIEW, Thing.NODE),
    "POST /nodes/cordon": _MANAGE_NODE,
    "POST /nodes/uncordon": _MANAGE_NODE,
    "POST /nodes/drain": _MANAGE_NODE,
    "POST /nodes/{name}/confirm-dead": _MANAGE_NODE,
    "GET /health/events": Access(Verb.VIEW, Thing.NODE),
    "POST /health/report": _MANAGE_NODE,
    "POST /health/check": _MANAGE_NODE,
    "GET /health/check/{name}": Access(Verb.VIEW, Thing.NODE),
    "POST /health/pair": _MANAGE_NODE,
    "GET /health/pair/{name}": Access(Verb.VIEW, Thing.NODE),
    "POST /health/maintenance": _MANAGE_NODE,
    "POST /health/acquit": _MANAGE_NODE,
    "POST /health/breaker/reset": _MANAGE_NODE,
    "GET /pools": Access(Verb.VIEW, Thing.POOL),
    "GET /policy": _VIEW_POLICY,
    "PUT /policy": Access(Verb.MANAGE, Thing.POLICY),
    "GET /policy/history": _VIEW_POLICY,
    "GET /projects": _VIEW_POLICY,
    "GET /quota": _VIEW_POLICY,
    "GET /reservations": Access(Verb.VIEW, Thing.RESERVATION),
    "POST /reservations": Access(Verb.CREATE, Thing.RESERVATION),
    "DELETE /reservations/{number}": Access(Verb.DELETE, Thing.RESERVATION),
    "GET /secrets": Access(Verb.VIEW, Thing.SECRET, audited=True),
    "PUT /secrets/{scope}/{key}": Access(Verb.CREATE, Thing.SECRET),
    "DELETE /secrets/{scope}/{key}": Access(Verb.DELETE, Thing.SECRET),
    "GET /tokens": Access(Verb.VIEW, Thing.TOKEN),
    "POST /tokens": Access(Verb.CREATE, Thing.TOKEN),
    "DELETE /tokens/{token_id}": Access(Verb.DELETE, Thing.TOKEN),
    "POST /admin/gc": _MANAGE_SERVER,
    "POST /admin/verify": _MANAGE_SERVER,
    "GET /admin/notifications": _MANAGE_SERVER,
    "POST /admin/shutdown": Access(Verb.STOP, Thing.SERVER),
    "GET /admin/audit": Access(Verb.VIEW, Thing.AUDIT, audited=True),
    "GET /runner/orders": Gateless.ATTEMPT,
    "POST /runner/reports": Gateless.ATTEMPT,
    "POST /runner/logs": Gateless.ATTEMPT,
    "POST /runner/looks": Gateless.ATTEMPT,
    "GET /runner/code/{tree_hash}": Gateless.ATTEMPT,
}

ROUTES: Mapping[str, Entry] = {
    **{
        f"{name.partition(' ')[0]} {PREFIX}{name.partition(' ')[2]}": entry for name, entry in _NATIVE.items()
    },
    "GET /metrics": Access(Verb.VIEW, Thing.NODE),
    "GET /open": Gateless.OPEN,
    "GET /login": Gateless.OPEN,
    "GET /login/callback": Gateless.OPEN,
    "GET /fleet/v1/identify": Gateless.OPEN,
    "POST /fleet/v1/join": Gateless.FLEET,
    "GET /fleet/v1/machines/{name}": Gateless.FLEET,
    "POST /fleet/v1/until": Gateless.FLEET,
    "POST /fleet/v1/leave": Gateless.FLEET,
}
"""``METHOD /path`` as the routes are declared → what it does."""

PROXIES = ("/mlflow",)
"""Whatever lies below is forwarded, and checked by its own route."""


def entry_of(method: str, path: str) -> Entry | None:
    """Return what a route does; None for one that nobody entered, which is refused."""
    if any(path == proxy or path.startswith(f"{proxy}/") for proxy in PROXIES):
        return Gateless.PROXY
    return ROUTES.get(f"{method} {path}")
