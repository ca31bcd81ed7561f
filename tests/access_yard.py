"""A yard with people of every role and a token for each, for tests of who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from airyard.core.access.people import People, Person
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Role, Scope
from airyard.core.access.tokens import Token
from airyard.core.commands import CancelRun, CreateToken, SubmitRun
from airyard.core.workload import Compute, Permission, Workload
from airyard.server.auth import digest_of, fresh_token
from server_yard import Yard

NAMES = {Role.VIEWER: "vic", Role.USER: "uma", Role.OPERATOR: "olga", Role.ADMIN: "adam"}


class AccessYard(Yard):
    """The owner is ``ada``; ``vic``, ``uma``, ``olga`` and ``adam`` have one role each, ``bob`` is another user."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        known = {name: Person(name=name, role=role) for role, name in NAMES.items()}
        known["bob"] = Person(name="bob", groups=frozenset({"vision"}))
        self.users = People(owner="ada", known=known, declared=True)
        self._count = 0

    def token(self, user: str, **changes: Any) -> str:
        """Give a user a token; return its text."""
        token_id, text = fresh_token()
        self._count += 1
        plain: dict[str, Any] = {
            "token_id": token_id,
            "digest": digest_of(text),
            "user": user,
            "name": f"t{self._count}",
            "scope": Scope.ADMIN,
            "kind": Kind.PERSON,
            "by": "ada",
            "created_ms": self.context.clock.now_ms(),
        }
        self.tell(CreateToken(token=Token(**{**plain, **changes})))
        return text

    def client_of(self, token: str) -> httpx.AsyncClient:
        """Return a client that sends this token."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://yard/api/v1",
            headers={"authorization": f"Bearer {token}"},
        )

    def as_user(self, user: str, **changes: Any) -> httpx.AsyncClient:
        """Return a client with a fresh token of this user."""
        return self.client_of(self.token(user, **changes))

    def principal(self, token: str) -> Principal:
        """Return who the server takes the holder of a token for."""
        return self.context.access.authorise(f"Bearer {token}", None)

    def run_of(self, owner: str, *grants: Permission, ended: bool = True, project: str | None = None) -> int:
        """Make a run that never starts; return its number."""
        self._count += 1
        workload = Workload(
            experiment="digits",
            command="echo hidden-command",
            name=f"run-{self._count}",
            project=project,
            compute=Compute(accelerator="CPU", nodes=1),
            permissions=grants,
        )
        reply = self.tell(
            SubmitRun(owner=owner, workload=workload, idempotency_key=f"k{self._count}", held=True)
        )
        run_id = int(reply.run_id)
        if ended:
            self.tell(CancelRun(run_id=run_id, by=owner))
        return run_id
