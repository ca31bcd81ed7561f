"""The system's OpenSSH client: one connection a host, commands over it, and what its refusals mean.

Owns: ssh's options, its error texts. Must not know: what the commands do.

Nothing is asked for: a password or an unknown host key is an error that says what to do. Host keys, jump hosts and
whatever else ``~/.ssh/config`` says are ssh's business.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from airyard.core.errors import AiryardError, Denied, Fix, NotFound, Unavailable, UserError
from airyard.node.remote.target import Target

CONNECT_S = 10
_FAILED = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How hosts are logged in to."""

    identity: Path | None = None
    config: Path | None = None
    """Instead of ``~/.ssh/config``."""
    accept_new_host_keys: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command on the host came to."""

    code: int
    out: str
    err: str


class Ssh:
    """A connection to one host; a context manager. Commands share one connection, which is opened by the first."""

    def __init__(self, target: Target, access: Access) -> None:
        """Raises: UserError without an ssh client."""
        if shutil.which("ssh") is None:
            raise UserError(
                "This machine has no `ssh`.",
                code="SSH_MISSING",
                fix="Install OpenSSH's client; on Debian and Ubuntu the package openssh-client.",
            )
        self.target = target
        self._access = access
        # Sockets need short paths.
        self._folder = Path(tempfile.mkdtemp(prefix="ays", dir="/tmp"))

    def __enter__(self) -> Ssh:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*self._command(), "-O", "exit", *self.target.arguments()],
                capture_output=True,
                timeout=10,
                check=False,
            )
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, command: str, stdin: Iterable[bytes] = (), *, timeout_s: float = 120) -> Done:
        """Run one line of the host's shell to its end, with ``stdin`` written to it.

        Raises: AiryardError when the host cannot be reached or logged in to, or when it takes too long.
        """
        # A file, for the connection's master keeps stderr open after the command.
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [*self._command(), *self.target.arguments(), command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the one who asked, not for every connection
            )
            threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
            late = threading.Event()

            def give_up() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(timeout_s, give_up)
            timer.start()
            assert process.stdout is not None
            out = process.stdout.read()
            code = process.wait()
            timer.cancel()
            errors.seek(0)
            err = errors.read().decode(errors="replace")
        if late.is_set():
            raise Unavailable(
                f"{self.target} did not answer within {timeout_s:g} s.",
                code="HOST_SLOW",
                fix="Look at its load and its disk, then run the same command again.",
            )
        if code == _FAILED:
            raise refusal(self.target, err)
        return Done(code=code, out=out.decode(errors="replace"), err=err)

    def _command(self) -> list[str]:
        access = self._access
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_S),
            "ServerAliveInterval": "15",
            "ServerAliveCountMax": "4",
            "ControlMaster": "auto",
            "ControlPath": str(self._folder / "c"),
            "ControlPersist": "60",
            "LogLevel": "ERROR",
        }
        if access.accept_new_host_keys:
            options["StrictHostKeyChecking"] = "accept-new"
        if access.identity is not None:
            options["IdentitiesOnly"] = "yes"
        return [
            "ssh",
            "-T",
            *(["-F", str(access.config)] if access.config is not None else []),
            *(["-i", str(access.identity)] if access.identity is not None else []),
            *(part for name, value in options.items() for part in ("-o", f"{name}={value}")),
        ]


def _feed(process: subprocess.Popen[bytes], stdin: Iterable[bytes]) -> None:
    assert process.stdin is not None
    # A host that ends early says why on its own.
    with contextlib.suppress(OSError), process.stdin:
        for piece in stdin:
            process.stdin.write(piece)


def refusal(target: Target, said: str) -> AiryardError:
    """Return what ssh's last words mean. Pure."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "ssh said nothing"
    by_hand = f"ssh {'-p ' + str(target.port) + ' ' if target.port else ''}" + (
        f"{target.user}@{target.host}" if target.user else target.host
    )
    if "IDENTIFICATION HAS CHANGED" in said:
        place = f"[{target.host}]:{target.port}" if target.port else target.host
        return Denied(
            f"{target} has another host key than the one that is known: it was installed anew, or it is not that host.",
            code="HOST_KEY_CHANGED",
            fix=Fix(
                text="Find out which. If it was installed anew, forget the old key, then accept the new one.",
                command=f"ssh-keygen -R '{place}'",
            ),
        )
    if "Host key verification failed" in said:
        return Denied(
            f"The host key of {target} is not known here.",
            code="HOST_KEY_UNKNOWN",
            fix=Fix(
                text="Log in once by hand and compare the key's fingerprint with the host's "
                "(`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), or take new keys on trust with "
                "--accept-new-host-keys.",
                command=by_hand,
            ),
        )
    if "Permission denied" in said or "Too many authentication failures" in said:
        return Denied(
            f"{target} did not accept the key: {last}",
            code="SSH_DENIED",
            fix=Fix(
                text="Name the key with --identity, load it into the agent (`ssh-add`), or put it there once: "
                f"{by_hand.replace('ssh ', 'ssh-copy-id ', 1)}",
                command=by_hand,
            ),
        )
    if "Could not resolve hostname" in said:
        return NotFound(
            f"{target}: no host of this name is known: {last}",
            code="HOST_UNKNOWN",
            fix="Check the name; a short one may need `~/.ssh/config` or the full domain.",
        )
    return Unavailable(
        f"{target} cannot be reached: {last}",
        code="HOST_UNREACHABLE",
        fix=Fix(text="Check address, port, firewall, and that sshd runs there.", command=f"{by_hand} true"),
    )
