"""The words of authorisation: roles, kinds of principal, scopes of tokens, rights on a run, verbs, kinds of object.

Owns: these closed sets and their order. Must not know: who has what.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """What a person is in this yard; each may all that the ones before it may.

    ``VIEWER`` looks at what was opened to it, ``USER`` runs things, ``OPERATOR`` sees and steers all runs, nodes and
    policies, ``ADMIN`` also gives out tokens for others, stops the server and reads the audit.
    """

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return _ROLES.index(self)


class Kind(Enum):
    """What acts: a person, an agent on a person's behalf, or a service with a name of its own."""

    PERSON = "person"
    AGENT = "agent"
    SERVICE = "service"


class Scope(Enum):
    """How far a token reaches at most, whatever its user's role.

    ``READ`` only looks. ``WRITE`` changes what a user may change. ``ADMIN`` does all that the role may.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Right(Enum):
    """What somebody may do with one run; each includes the ones before it."""

    NONE = "NONE"
    CAN_VIEW = "CAN_VIEW"
    CAN_MANAGE_RUN = "CAN_MANAGE_RUN"
    CAN_MANAGE = "CAN_MANAGE"

    @property
    def rank(self) -> int:
        """Its place in the order."""
        return _RIGHTS.index(self)


class Verb(Enum):
    """What a request does to an object."""

    VIEW = "view"
    CREATE = "create"
    MANAGE = "manage"
    DELETE = "delete"
    USE = "use"
    STOP = "stop"


class Thing(Enum):
    """The kinds of object that requests are about."""

    RUN = "run"
    LOG = "log"
    OUTPUT = "output"
    CODE = "code"
    QUEUE = "queue"
    NODE = "node"
    POOL = "pool"
    POLICY = "policy"
    RESERVATION = "reservation"
    SECRET = "secret"
    TOKEN = "token"
    SERVER = "server"
    AUDIT = "audit"
    TRACKING = "tracking"


_ROLES = list(Role)
_RIGHTS = list(Right)
