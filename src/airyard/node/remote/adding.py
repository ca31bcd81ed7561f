"""Bringing a host into the fleet over SSH, step by step, and taking it out again.

Owns: the order of the steps on one host, what is done again and what is not. Must not know: the command line, ssh's
options, what each step does there (``steps``).
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airyard
from airyard.adapters import ray_command
from airyard.core.errors import AiryardError, Conflict, Fix, Unavailable, UserError
from airyard.node.remote import probe
from airyard.node.remote.payload import Payload, archive, own_uv
from airyard.node.remote.ssh import Access, Done, Ssh
from airyard.node.remote.target import Target

STEPS = Path(__file__).with_name("steps.py")
_RECEIVE_S = 3600.0
_INSTALL_S = 3600.0
_JOIN_S = 300.0
_LEAVE_S = 120.0
# Reads the program, so that it has not to lie there; the rest of stdin is the program's.
_BOOT = 'import sys;s=sys.stdin.buffer;exec(compile(s.read(int(s.readline())),"airyard-steps","exec"))'


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How hosts are to join."""

    server: str
    """HOST:PORT or URL, as the hosts reach it."""
    token: str
    ca: str = ""
    """The CA of the server's certificate (PEM), where it is a private one."""
    arguments: tuple[str, ...] = ()
    """More for ``airyard node join``."""
    home: str = "~/.airyard"
    python: str = ""
    use_airyard: str = ""
    """An Airyard that is there already, instead of an installation."""
    index_url: str = ""
    service: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What came of one host."""

    target: Target
    state: str
    """joined, rejoined, upgraded, unchanged."""
    machine: str
    address: str
    nodes: tuple[str, ...]
    home: str
    service: str


class Host:
    """One host during one command. Every method raises AiryardError with what is wrong there."""

    def __init__(self, ssh: Ssh, tell: Callable[[str], None]) -> None:
        self._ssh = ssh
        self._tell = tell
        self.name = ssh.target.host

    def first_look(self, wanted: Wanted) -> probe.Look:
        """Look at the host in its plainest shell."""
        text = probe.script(
            home=wanted.home, python=wanted.python, wanted_version=ray_command.python_version()
        )
        done = self._ssh.run("sh -s", [text.encode()], timeout_s=60)
        look = probe.read(done.out)
        if done.code != 0 or not look.home:
            raise UserError(
                f"{self.name} has no usual shell: {_said(done)}",
                code="HOST_SYSTEM",
                fix="The user needs a login shell that runs `sh -s`.",
            )
        return look

    def step(
        self,
        python: str,
        asked: Mapping[str, Any],
        *,
        timeout_s: float = 60,
        more: Iterable[bytes] = (),
    ) -> dict[str, Any]:
        """Run one of ``steps`` there and return its result."""
        program = STEPS.read_bytes()

        def stdin() -> Iterator[bytes]:
            yield f"{len(program)}\n".encode() + program + json.dumps(asked).encode() + b"\n"
            yield from more

        done = self._ssh.run(f"{shlex.quote(python)} -c {shlex.quote(_BOOT)}", stdin(), timeout_s=timeout_s)
        try:
            answer = json.loads(done.out.strip().splitlines()[-1])
        except (ValueError, IndexError):
            raise Unavailable(
                f"{self.name}: step {asked['step']} ended with {done.code}: {_said(done)}",
                code="REMOTE_FAILED",
            ) from None
        if "error" in answer:
            error = answer["error"]
            raise UserError(
                f"{self.name}: {error['message']}",
                code=error["code"],
                fix=Fix(text=error["fix"]) if error["fix"] else None,
            )
        return dict(answer["result"])

    def add(self, wanted: Wanted, payload: Payload | None) -> Added:
        """Bring the host into the fleet. What is so already is left as it is."""
        look = self.first_look(wanted)
        python = self._judged(look, wanted)
        folder = folder_of(payload)
        digest = hashlib.sha256(wanted.token.encode()).hexdigest()
        at = {"home": look.home, "folder": folder}
        asked = {"step": "look", **at, "token_digest": digest, "server": wanted.server}
        seen = self.step(python, asked)
        if seen["away"]:
            raise Unavailable(
                f"{self.name} cannot reach the server at {wanted.server}: {seen['away']}.",
                code="SERVER_UNREACHABLE",
                fix="Open the firewall between the two, or name the server as that host reaches it with --server.",
            )
        if seen["joined"] and not seen["same_yard"]:
            raise Conflict(
                f"{self.name} has joined another yard ({seen['server']}, as {seen['machine']}) with {look.home}.",
                code="HOST_IN_ANOTHER_YARD",
                fix=f"Take it out there first (`airyard fleet remove {self._ssh.target}`), or name another folder "
                "with --home: then its GPUs are shared by whoever is first.",
            )
        notes = {"folder": folder, "server": wanted.server, "arguments": list(wanted.arguments)}
        if wanted.ca:
            notes["ca"] = hashlib.sha256(wanted.ca.encode()).hexdigest()
        binary, fresh = wanted.use_airyard, False
        if payload is not None:
            binary, fresh = self.install(look, python, wanted, payload, there=bool(seen["installed"]))
        notes["bin"] = binary
        unchanged = seen["joined"] and seen["live"] and not fresh and seen["notes"] == notes
        joined: dict[str, Any] = {}
        service = "as it was"
        if not unchanged:
            joined, service = self._join(look, python, wanted, binary, notes, rejoin=seen["joined"])
        upgraded = seen["joined"] and seen["notes"].get("bin") not in (None, binary)
        return Added(
            target=self._ssh.target,
            state="unchanged"
            if unchanged
            else "upgraded"
            if upgraded
            else "rejoined"
            if seen["joined"]
            else "joined",
            machine=str(joined.get("name") or seen["machine"]),
            address=str(joined.get("address") or ""),
            nodes=tuple(joined.get("nodes") or ()),
            home=look.home,
            service=service,
        )

    def _judged(self, look: probe.Look, wanted: Wanted) -> str:
        python = probe.judge(
            look,
            name=self.name,
            python=wanted.python,
            wanted_version=ray_command.python_version(),
            to_install=False,
        )
        if isinstance(python, AiryardError):
            raise python
        return python

    def install(
        self, look: probe.Look, python: str, wanted: Wanted, payload: Payload, *, there: bool
    ) -> tuple[str, bool]:
        """Install what is carried, unless it is there; return the command, and whether it was installed just now."""
        at = {"home": look.home, "folder": folder_of(payload)}
        if not there:
            short = probe.judge(
                look,
                name=self.name,
                python=wanted.python,
                wanted_version=ray_command.python_version(),
                to_install=True,
            )
            if isinstance(short, AiryardError):
                raise short
            self._tell(f"{self.name}: Airyard {airyard.__version__} is sent and installed")
            uv = own_uv(look.os, look.arch)
            asked = {"step": "receive", **at}
            self.step(python, asked, timeout_s=_RECEIVE_S, more=archive(payload, uv))
        asked = {
            "step": "install",
            **at,
            "python": python,
            "wheel": payload.wheel_name,
            "index_url": wanted.index_url,
        }
        done = self.step(python, asked, timeout_s=_INSTALL_S)
        return str(done["bin"]), bool(done["fresh"])

    def _join(
        self,
        look: probe.Look,
        python: str,
        wanted: Wanted,
        binary: str,
        notes: Mapping[str, Any],
        *,
        rejoin: bool,
    ) -> tuple[dict[str, Any], str]:
        self._tell(f"{self.name}: {'joins again' if rejoin else 'joins'}")
        asked = {
            "step": "join",
            "home": look.home,
            "bin": binary,
            "version": airyard.__version__ if wanted.use_airyard else "",
            "server": wanted.server,
            "arguments": list(wanted.arguments),
            "token": wanted.token,
            "ca": wanted.ca,
            "rejoin": rejoin,
            "service": wanted.service,
            "notes": dict(notes),
        }
        done = self.step(python, asked, timeout_s=_JOIN_S)
        return dict(done["joined"]), str(done["service"])

    def remove(self, wanted: Wanted, *, within_s: int | None, force: bool, purge: bool) -> dict[str, Any]:
        """Take the host out of the fleet: its runs leave first when ``within_s`` is given."""
        look = self.first_look(wanted)
        fit = [path for path, version in look.pythons.items() if probe.new_enough(version)]
        if not fit:
            raise UserError(f"{self.name} has no Python 3.11 or newer.", code="HOST_PYTHON_MISSING")
        python = fit[0]
        asked = {
            "step": "leave",
            "home": look.home,
            "bin": wanted.use_airyard,
            "within_s": within_s,
            "force": force,
            "purge": purge,
        }
        return self.step(python, asked, timeout_s=_LEAVE_S + (within_s or 0))


def folder_of(payload: Payload | None) -> str:
    """Return the name of an installation: what is carried, and the Python it is made for."""
    return f"{airyard.__version__}-{payload.digest if payload else 'own'}-py{ray_command.python_version()}"


def add_host(
    target: Target, access: Access, wanted: Wanted, payload: Payload | None, tell: Callable[[str], None]
) -> Added:
    """Bring one host into the fleet. Raises: AiryardError. Cost: minutes for the first installation."""
    with Ssh(target, access) as ssh:
        return Host(ssh, tell).add(wanted, payload)


def remove_host(
    target: Target, access: Access, wanted: Wanted, *, within_s: int | None, force: bool, purge: bool
) -> dict[str, Any]:
    """Take one host out of the fleet. Raises: AiryardError."""
    with Ssh(target, access) as ssh:
        return Host(ssh, lambda _: None).remove(wanted, within_s=within_s, force=force, purge=purge)


def _said(done: Done) -> str:
    return " ".join((done.err or done.out).split())[-400:] or "nothing was said"
