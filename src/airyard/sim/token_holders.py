"""Tokens in a simulated yard: given out early, some with little to spend, some taken back while their runs go on.

Owns: which tokens there are, and when. Must not know: what follows, or how secrets are made.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256

from airyard.core.access.roles import Kind, Scope
from airyard.core.access.tokens import Token
from airyard.core.commands import CreateToken, RevokeToken
from airyard.sim.people import People
from airyard.sim.setting import Setting

TOKENS = ("tok-spare", "tok-rich")
EARLY_MS = 1_000


class TokenHolders:
    """Who gives out tokens and takes them back."""

    def __init__(self, setting: Setting, people: People) -> None:
        self._setting = setting
        self._people = people

    def begin(self, within_ms: int) -> None:
        """Now and then give out tokens that runs are submitted with, and take one back within a time."""
        chance = self._setting.chance
        if not chance.roll(0.3):
            return
        self._people.tokens = TOKENS
        for token_id in TOKENS:
            self._setting.later(chance.between(0, EARLY_MS), partial(self._give, token_id))
        if chance.roll(0.5):
            revoke = RevokeToken(token_id=chance.pick(TOKENS), by="op")
            self._setting.later(chance.between(EARLY_MS, within_ms), lambda: self._people.ask(revoke))

    def _give(self, token_id: str) -> None:
        token = Token(
            token_id=token_id,
            digest=sha256(token_id.encode()).hexdigest(),
            user="ada",
            name=token_id,
            scope=Scope.WRITE,
            kind=Kind.AGENT,
            by="ada",
            created_ms=self._setting.time.now_ms(),
            gpu_hours=0.05 if token_id == "tok-spare" else None,
        )
        self._people.ask(CreateToken(token=token))
