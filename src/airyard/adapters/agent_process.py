"""The agent of this machine as a process: started when it is not there, reached through its socket.

Owns: the detached start, the socket's place. Must not know: what is said over the socket, who asks (the local engine,
or the relay of a fleet). The agent outlives its starter on purpose. Standard library only.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from airyard.core.errors import Unavailable


def start_agent(home: Path, environment: Mapping[str, str] | None = None) -> None:
    """Start the agent of this home in a session of its own; it detaches itself. Two at once are harmless.

    ``environment`` takes the place of this process's own. Raises: OSError, Unavailable when it ends at once.
    """
    log_folder = home / "server"
    log_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(log_folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        starter = subprocess.Popen(
            [sys.executable, "-m", "airyard.node.agent", "--home", str(home), "--detach"],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
            cwd="/",
            env=environment,
        )
    finally:
        os.close(fd)
    # It forks itself away, so this end comes at once and leaves no zombie.
    code = starter.wait()
    if code != 0:
        raise Unavailable(
            f"The agent of {home} could not be started: exit code {code}.",
            fix=f"See {log_folder / 'agent.log'}.",
        )


def connected(home: Path) -> socket.socket:
    """Connect to the agent's socket, whose path may be longer than the kernel takes. Raises: OSError."""
    folder = os.open(home / "node", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(f"/proc/self/fd/{folder}/agent.sock")
    except OSError:
        stream.close()
        raise
    finally:
        os.close(folder)
    return stream
