"""Several hosts on one machine: each a network, PID, UTS and mount namespace, all on one bridge of their own.

Everything a host starts dies with its first process, so a power-off is one kill, and so is the cleaning up.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

NETWORK = "10.77.0"
SECOND_NETWORK = "10.78.0"
FIRST_ADDRESS = 10
TOOLS = ("ip", "tc", "unshare", "nsenter", "ps")
PREFIX = "ayh"


def why_not() -> str | None:
    """Return why hosts cannot be made here; None when they can."""
    if os.getuid() != 0:
        return "namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (packages iproute2, util-linux, procps)"
    for command in (["unshare", "-n", "-u", "-p", "-f", "--mount-proc", "true"], ["ip", "netns", "list"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"`{' '.join(command)}` fails: {done.stderr.strip()}"
    return None


class Host:
    """One host; ``address`` is how the others reach it."""

    def __init__(self, name: str, namespace: str, address: str) -> None:
        self.name = name
        self.namespace = namespace
        self.address = address
        self._holder: subprocess.Popen[str] | None = None
        self._init = 0

    def power_on(self) -> None:
        """Start its first process."""
        script = str(Path(__file__).with_name("host_init.py"))
        self._holder = subprocess.Popen(
            [
                *("ip", "netns", "exec", self.namespace, "unshare", "--kill-child"),
                *("--pid", "--fork", "--mount-proc", "--uts"),
                *(sys.executable, script, self.name),
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n", f"host {self.name} did not start"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self._init = int(children[0])

    def power_off(self) -> None:
        """Kill every process of it at once."""
        if self._holder is not None:
            try:
                os.kill(self._init, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._holder.wait(30)
            self._holder = None

    def prefix(self) -> list[str]:
        """Return what makes a command run on this host."""
        return ["nsenter", "--target", str(self._init), "--net", "--pid", "--uts", "--mount", "--"]

    def run(self, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end."""
        return subprocess.run(
            [*self.prefix(), *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def pids(self, pattern: str) -> list[int]:
        """Return the host's processes, by the pids they have there, whose command line matches."""
        listed = self.run("ps", "-ewwo", "pid=,args=").stdout.splitlines()
        found = [line.strip().partition(" ") for line in listed]
        return [int(pid) for pid, _, line in found if re.search(pattern, line) and " -ewwo pid=" not in line]

    def kill(self, pattern: str) -> list[int]:
        """SIGKILL what matches, which must be there; return the pids, as they were on the host."""
        pids = self.pids(pattern)
        assert pids, f"nothing like {pattern!r} runs on {self.name}"
        self.run("kill", "-9", *map(str, pids))
        return pids

    def stop_all(self) -> None:
        """SIGSTOP everything but the first process: the host hangs, and its kernel still answers the network."""
        self.run("kill", "-STOP", *map(str, self._all()))

    def go_on(self) -> None:
        """SIGCONT everything."""
        self.run("kill", "-CONT", *map(str, self._all()))

    def _all(self) -> list[int]:
        return [pid for pid in self.pids("") if pid != 1]


class Hosts:
    """Hosts h0, h1, ... on one bridge."""

    def __init__(self, count: int) -> None:
        _remove_stale()
        self._mark = f"{PREFIX}{os.getpid()}"
        self._switch = f"{self._mark}-sw"
        self.hosts: list[Host] = []
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "br0", "up")
            for number in range(count):
                self._add(number)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def _add(self, number: int) -> None:
        host = Host(f"h{number}", f"{self._mark}-h{number}", f"{NETWORK}.{FIRST_ADDRESS + number}")
        _ip("netns", "add", host.namespace)
        self.hosts.append(host)
        peer = ["peer", "name", "eth0", "netns", host.namespace]
        _ip("link", "add", f"v{number}", "netns", self._switch, "type", "veth", *peer)
        _ip("-n", self._switch, "link", "set", f"v{number}", "master", "br0", "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.namespace, "link", "set", "eth0", "up")
        host.power_on()

    def second_links(self) -> list[str]:
        """Give each host another link, eth1, on a bridge of its own; return their addresses."""
        _ip("-n", self._switch, "link", "add", "br1", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br1", "up")
        addresses = []
        for number, host in enumerate(self.hosts):
            peer = ["peer", "name", "eth1", "netns", host.namespace]
            _ip("link", "add", f"w{number}", "netns", self._switch, "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", f"w{number}", "master", "br1", "up")
            addresses.append(f"{SECOND_NETWORK}.{FIRST_ADDRESS + number}")
            _ip("-n", host.namespace, "addr", "add", f"{addresses[-1]}/24", "dev", "eth1")
            _ip("-n", host.namespace, "link", "set", "eth1", "up")
        return addresses

    def cut(self, number: int) -> None:
        """Take a host off the network."""
        _ip("-n", self._switch, "link", "set", f"v{number}", "down")

    def part(self, number: int, *, apart: bool) -> None:
        """Keep a host from all others that are kept so; those that are not still reach it."""
        words = ["type", "bridge_slave", "isolated", "on" if apart else "off"]
        _ip("-n", self._switch, "link", "set", f"v{number}", *words)

    def heal(self, number: int) -> None:
        """Put it back, and return once its packets pass: the kernel may take a second or more to open the port."""
        port = ["-n", self._switch, "-d", "link", "show", f"v{number}"]
        _ip("-n", self._switch, "link", "set", f"v{number}", "up")
        deadline = time.monotonic() + 30
        while " state forwarding " not in _ip(*port):
            assert time.monotonic() < deadline, f"the port of h{number} does not open"
            time.sleep(0.02)
        _ip("-n", self.hosts[number].namespace, "neigh", "flush", "all")

    def lose_power(self, number: int) -> None:
        """Take a host off the network, then kill it: so no peer hears of the end of a connection."""
        self.cut(number)
        self.hosts[number].power_off()

    def restore_power(self, number: int) -> None:
        """Start it again, with another boot id, on the network."""
        self.heal(number)
        self.hosts[number].power_on()

    def deafen(self, number: int, address: str, port: int | None = None) -> None:
        """Drop what a host sends to an address (and port); what comes from there still arrives."""
        _ip("-n", self.hosts[number].namespace, "rule", "add", *_sent_to(address, port))

    def undeafen(self, number: int, address: str, port: int | None = None) -> None:
        """Let it send again."""
        _ip("-n", self.hosts[number].namespace, "rule", "delete", *_sent_to(address, port))

    def throttle(self, number: int, rate: str | None, device: str = "eth0") -> None:
        """Let a host send so much, like ``200kbit``, and queue what is more for up to 1 s; None: as ever."""
        namespace = self.hosts[number].namespace
        subprocess.run(["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"], capture_output=True)
        if rate is not None:
            shape = ["tbf", "rate", rate, "burst", "16kb", "latency", "1s"]
            subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *shape], check=True)

    def close(self) -> None:
        """Power everything off and remove every trace."""
        for host in self.hosts:
            host.power_off()
        for name in [*(host.namespace for host in self.hosts), self._switch]:
            _remove(name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def _sent_to(address: str, port: int | None) -> list[str]:
    to_port = [] if port is None else ["ipproto", "tcp", "dport", str(port)]
    return ["to", address, *to_port, "blackhole"]


def _remove(namespace: str) -> None:
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _remove_stale() -> None:
    """Remove what a killed test session left: its first processes and namespaces."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        found = re.match(rf"({PREFIX}(\d+)-\w+)", line)
        if found is None or Path(f"/proc/{found[2]}").exists():
            continue
        inside = subprocess.run(
            ["ip", "netns", "pids", found[1]], capture_output=True, text=True, check=False
        )
        for pid in inside.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        _remove(found[1])


def wait_until_gone(host: Host, pid: int, timeout: float = 20) -> None:
    """Wait until a process of a host has ended."""
    deadline = time.monotonic() + timeout
    while host.run("kill", "-0", str(pid)).returncode == 0:
        assert time.monotonic() < deadline, f"pid {pid} lives on {host.name}"
        time.sleep(0.1)
