"""The first process of a host made of namespaces: names it, brings its network up, reaps what nobody waits for."""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> None:
    socket.sethostname(sys.argv[1])
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
