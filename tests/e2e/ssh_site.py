"""A real sshd on hosts made of namespaces: keys of its own, and an ssh configuration that touches nobody's home."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.yard import wait_for

SSHD = "/usr/sbin/sshd"


class Served(Protocol):
    """A host as far as sshd needs it."""

    name: str
    address: str

    def prefix(self) -> list[str]:
        """Return what makes a command run there."""
        ...


@dataclass
class Here:
    """This machine, without a namespace: it may reach a package index."""

    name: str = "here"
    address: str = "127.0.0.1"

    def prefix(self) -> list[str]:
        """See Served."""
        return []


def why_no_ssh() -> str | None:
    """Return why no SSH server can be started here; None when it can."""
    missing = [name for name in (SSHD, "ssh", "ssh-keygen") if shutil.which(name) is None]
    packages = "openssh-server, openssh-client; `make packages` installs them"
    return f"not installed: {', '.join(missing)} (packages {packages})" if missing else None


class SshSite:
    """Keys, and the files that sshd and ssh are given; ``variables`` are set for whoever logs in."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        for name in ("user", "stranger"):
            self._key(folder / name)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.touch()
        self.config = folder / "ssh_config"
        self.config.write_text(f"UserKnownHostsFile {self.known_hosts}\nGlobalKnownHostsFile /dev/null\n")
        # Ray's sockets need short paths, and what a power-off leaves is to be found again.
        self._temporary = Path(tempfile.mkdtemp(prefix="ayh", dir="/tmp"))
        variables["TMPDIR"] = str(self._temporary)
        self._variables = " ".join(f'"{name}={value}"' for name, value in variables.items())
        self._daemons: list[subprocess.Popen[bytes]] = []

    def _key(self, path: Path) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def serve(self, host: Served, *, port: int = 22, known: bool = True) -> None:
        """Start sshd on a host; ``known``: its key is in the list of known hosts."""
        key = self.folder / f"host-{host.name}"
        self._key(key)
        if known:
            self.know(host, port=port)
        config = self.folder / f"sshd-{host.name}"
        config.write_text(
            f"Port {port}\nListenAddress {host.address}\nHostKey {key}\n"
            f"AuthorizedKeysFile {self.folder}/user.pub\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\nUseDNS no\n"
            f"MaxStartups 50\nSetEnv {self._variables}\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        with (self.folder / f"sshd-{host.name}.log").open("wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*host.prefix(), SSHD, "-D", "-e", "-f", str(config)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
        wait_for(lambda: "Server listening" in self.log(host), what=f"sshd of {host.name}")

    def know(self, host: Served, *, as_of: str = "", port: int = 22) -> None:
        """Note a host's key, or, as a lie, that of another."""
        kind, key, *_ = (self.folder / f"host-{as_of or host.name}.pub").read_text().split()
        with self.known_hosts.open("a") as file:
            place = host.address if port == 22 else f"[{host.address}]:{port}"
            file.write(f"{place} {kind} {key}\n")

    def log(self, host: Served) -> str:
        """Return what a host's sshd wrote."""
        return (self.folder / f"sshd-{host.name}.log").read_text(errors="replace")

    def close(self) -> None:
        """End the daemons."""
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait(30)
        shutil.rmtree(self._temporary, ignore_errors=True)
