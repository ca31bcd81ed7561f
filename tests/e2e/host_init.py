"""The first process of a host made of namespaces: names it, gives it a boot id, reaps what nobody waits for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def new_boot_id() -> None:
    """Let the host's processes read a boot id of their own: a host that was powered off is seen to have been."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(f"{uuid.uuid4()}\n")
        file.flush()
        os.chmod(file.name, 0o444)
        subprocess.run(["mount", "--bind", file.name, BOOT_ID], check=True)


def main() -> None:
    socket.sethostname(sys.argv[1])
    new_boot_id()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    print("up", flush=True)
    while True:
        signal.sigwait({signal.SIGCHLD})
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass


if __name__ == "__main__":
    main()
