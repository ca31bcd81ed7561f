"""Joining a fleet and leaving it, from the machine's side: the checks before Ray is started here, and its keeper.

Owns: what ``airyard node`` does, its files in ``<home>/node/ray``. Must not know: runs, Ray's inside, the command line.

Whatever would make a first gang hang is looked for here: other versions, clocks apart, a name that is taken, an address
that the server cannot reach, a server or Ray head that this machine cannot reach.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import secrets
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import airyard
from airyard.adapters import ray_command, ray_node
from airyard.adapters.ray_keeper import end_keeper, keeper_pid, start_keeper
from airyard.core.errors import AiryardError, Conflict, Denied, Fix, Unavailable, UserError, from_json
from airyard.node.allotment import Allotment, own
from airyard.node.inventory import Offer, host_name
from airyard.node.network import Network, Wish, choose, collect, wish_problem
from airyard.node.trust import certificate_problem, context_of, keep_ca

MAX_OFFSET_S = 5.0
PORTS = ("node_manager", "object_manager")
_ANSWER_S = 30.0
_CONNECT_S = 5.0
_ARRIVE_S = 120.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a machine wants to join. Empty and None mean: found out here."""

    server: str
    """HOST:PORT or a URL of the Airyard server; of several, with commas between them, one leads."""
    token_file: Path
    home: Path
    name: str = ""
    address: str = ""
    network: Wish = field(default_factory=Wish)
    labels: Mapping[str, str] = field(default_factory=dict)
    simulate: Mapping[str, int] = field(default_factory=dict)
    cpu_slots: int | None = None
    until_ms: int | None = None
    allotment: Allotment | None = None
    """How much of the machine it offers; None: what this process was given (``allotment.own``)."""
    said: tuple[str, ...] = ()
    """The fields of ``allotment`` that somebody named; the others were found, and may differ at the next start."""
    ca_file: Path | None = None
    """The CA of the server's certificate (PEM), kept for the runs here; None: the system's."""


def join(wanted: Wanted) -> dict[str, Any]:
    """Check everything, start Ray here, and return {name, address, server, nodes} once the server has this machine.

    Raises: AiryardError that names what is wrong; nothing is left running then.
    """
    ray_command.check_ray()
    name = wanted.name or host_name()
    folder = wanted.home / "node" / "ray"
    _check_home(wanted.home, folder)
    desk = Desk(wanted.server, read_token(wanted.token_file), wanted.ca_file)
    desk.check()
    address = wanted.address or wished_address(collect(), wanted.network) or desk.own_address()
    machine_id = ray_node.machine_id(folder)
    offer = {
        "id": machine_id,
        "machine": name,
        "address": address,
        "labels": dict(wanted.labels),
        "simulate": dict(wanted.simulate),
        "cpu_slots": wanted.cpu_slots,
        "server_url": desk.urls,
        "until_ms": wanted.until_ms,
        "network": asdict(wanted.network),
        "allotment": asdict(wanted.allotment if wanted.allotment is not None else own()),
    }
    try:
        Offer.from_json(offer)
    except ValueError as error:
        raise UserError(f"{error}.", code="BAD_SIMULATION") from None
    head = _apply(desk, name, address, wanted.home, machine_id)
    offer["server_url"] = desk.urls
    _check_reach(head)
    (folder / "offer.json").write_text(json.dumps(offer))
    keep_ca(folder.parent, wanted.ca_file)
    _start_ray(folder, wanted, head, address)
    nodes = _await_arrival(desk, f"machines/{name}?machine_id={machine_id}", folder)
    desk.post("until", {"name": name, "until_ms": wanted.until_ms or 0})
    return {
        "name": name,
        "address": address,
        "server": desk.url,
        "nodes": nodes,
        "allotment": offer["allotment"],
    }


def adopt(wanted: Wanted) -> dict[str, Any] | None:
    """Return what ``join`` would, if this data folder is in that very fleet already, by the same offer; else None."""
    folder = wanted.home / "node" / "ray"
    try:
        offer = json.loads((folder / "offer.json").read_text())
    except (OSError, ValueError):
        return None
    desk = Desk(wanted.server, read_token(wanted.token_file), wanted.ca_file)
    elsewhere = {*desk.urls.split(",")}.isdisjoint(str(offer["server_url"]).split(","))
    if keeper_pid(folder) is None or elsewhere or not agrees(wanted, offer):
        return None
    desk.check()
    keep_ca(folder.parent, wanted.ca_file)
    found = desk.get(f"machines/{offer['machine']}?machine_id={offer['id']}")
    desk.post("until", {"name": offer["machine"], "until_ms": wanted.until_ms or 0})
    return {
        "name": offer["machine"],
        "address": offer["address"],
        "server": desk.url,
        "nodes": found["nodes"],
        "allotment": offer.get("allotment"),
    }


def agrees(wanted: Wanted, offer: Mapping[str, Any]) -> bool:
    """Return whether a machine that joined by ``offer`` is as ``wanted``: what is found out at a join is not. Pure."""
    asked = (dict(wanted.labels), dict(wanted.simulate), wanted.cpu_slots, wanted.network)
    kept = (offer["labels"], offer["simulate"], offer["cpu_slots"], Wish.from_json(offer.get("network")))
    named = ((wanted.name, offer["machine"]), (wanted.address, offer["address"]))
    before = Allotment.from_json(offer.get("allotment"))
    return (
        asked == kept
        and all(new in ("", old) for new, old in named)
        and all(getattr(wanted.allotment, each) == getattr(before, each) for each in wanted.said)
    )


def wished_address(network: Network, wish: Wish) -> str:
    """Return the address of the wished interface, empty without one. Raises: UserError for what cannot be met."""
    if (problem := wish_problem(network, wish)) is not None:
        raise UserError(
            f"{problem[0].upper()}{problem[1:]}.",
            code="BAD_NETWORK",
            fix="Name what `ip -4 addr` and `rdma link` show with --interface and --hca, or leave them out.",
        )
    addresses = choose(network, wish, "").addresses if wish.interface else ()
    return addresses[0].partition("/")[0] if addresses else ""


def is_joined(home: Path) -> bool:
    """Return whether a keeper has Ray running for this data folder."""
    return keeper_pid(home / "node" / "ray") is not None


class Desk:
    """The server's desk for joining machines, asked over HTTP with the fleet's token."""

    def __init__(self, server: str, token: str, ca_file: Path | None = None) -> None:
        """``server``: one or, with commas between them, several; with a ``ca_file`` they speak TLS unless they say so.

        Raises: UserError for what is no address, and for a file that is no CA's.
        """
        plain = "http" if ca_file is None else "https"
        self._urls = [_url(each.strip(), plain) for each in server.split(",") if each.strip()] or [
            _url("", plain)
        ]
        self._trust = context_of(ca_file)
        self.url = self._urls[0]
        self._token = token
        self._proved: set[str] = set()
        """Servers that have shown that they know the token: no other is sent it."""

    @property
    def urls(self) -> str:
        """All servers that are known, the leader first, with commas between them."""
        return ",".join(dict.fromkeys((self.url, *self._urls)))

    def learn(self, urls: Sequence[str]) -> None:
        """Note what the leader says where servers are."""
        self._urls += [str(url) for url in urls if url not in self._urls]

    def check(self) -> None:
        """Find the server that leads; make sure that it is the fleet's, and its clock ours. Raises: AiryardError."""
        nonce = secrets.token_hex(16)
        before_ns = time.time_ns()
        answer = self._ask("GET", f"identify?nonce={nonce}", None, with_token=False)
        after_ns = time.time_ns()
        self._judge(self.url, nonce, answer)
        offset_s = (int(answer["time_ns"]) - (before_ns + after_ns) // 2) / 1e9
        doubt_s = (after_ns - before_ns) / 2e9
        if abs(offset_s) - doubt_s > MAX_OFFSET_S:
            raise Conflict(
                f"The clock of this machine is {abs(offset_s):.1f} s {'behind' if offset_s > 0 else 'ahead of'} "
                f"the server's; at most {MAX_OFFSET_S:g} s are allowed.",
                code="CLOCK_OFFSET",
                fix="Set both by NTP (`timedatectl set-ntp true`, chrony), then join.",
                details={"offset_s": round(offset_s, 3)},
            )

    def _judge(self, url: str, nonce: str, answer: Mapping[str, Any]) -> None:
        """Note that the server at ``url`` knows the token. Raises: Denied when its answer does not show it."""
        proof = hmac.new(self._token.encode(), nonce.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(str(answer.get("proof")).encode(), proof.encode()):
            raise Denied(
                f"The server at {url} does not know the token of this file: it is another fleet's, or an old one.",
                code="WRONG_FLEET_TOKEN",
                fix="Copy server/ray/token from the server's data folder.",
            )
        self._proved.add(url)

    def _prove(self, url: str) -> None:
        if url not in self._proved:
            nonce = secrets.token_hex(16)
            self._judge(
                url, nonce, self._ask_one(url, "GET", f"identify?nonce={nonce}", None, with_token=False)
            )

    def own_address(self) -> str:
        """Return this machine's address on the way to the server."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((str(parts.hostname), port), timeout=_CONNECT_S) as stream:
            return str(stream.getsockname()[0])

    def post(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Ask with a body. Raises: the server's own error, Unavailable."""
        return self._ask("POST", what, body, with_token=True)

    def get(self, what: str) -> dict[str, Any]:
        """Ask without a body. Raises: the server's own error, Unavailable."""
        return self._ask("GET", what, None, with_token=True)

    def _ask(
        self, method: str, what: str, body: Mapping[str, Any] | None, *, with_token: bool
    ) -> dict[str, Any]:
        """Ask the server that answered last, then the others: one of them leads. Raises: what the last one said."""
        candidates = list(dict.fromkeys((self.url, *self._urls)))
        problem: AiryardError | None = None
        for url in candidates:
            try:
                if with_token:
                    self._prove(url)
            except (Denied, Unavailable) as error:
                problem = error  # another may be the fleet's
                continue
            try:
                found = self._ask_one(url, method, what, body, with_token=with_token)
            except Unavailable as error:
                problem = error
                self._proved.discard(url)  # another process may have its address next
                leader = error.details.get("leader")
                if leader and not with_token and leader not in candidates:
                    candidates.append(str(leader))  # it has to prove itself before it gets the token
                continue
            self.url = url
            return found
        assert problem is not None
        raise problem

    def _ask_one(
        self, url: str, method: str, what: str, body: Mapping[str, Any] | None, *, with_token: bool
    ) -> dict[str, Any]:
        request = urllib.request.Request(f"{url}/fleet/v1/{what}", method=method)
        if with_token:
            request.add_header("Authorization", f"Bearer {self._token}")
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        # A fleet's server is inside: no proxy between two machines of one yard.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._trust)
        )
        try:
            with opener.open(request, timeout=_ANSWER_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise _refused(url, error) from None
        except (OSError, ValueError) as error:
            # An error of TLS itself has a reason, too, which is a word.
            reason = error if isinstance(error, ssl.SSLError) else getattr(error, "reason", error)
            problem = certificate_problem(url, str(urlsplit(url).hostname), reason)
            if problem is not None:
                raise problem from None
            raise Unavailable(
                f"The server at {url} cannot be reached from this machine: {reason}.",
                code="SERVER_UNREACHABLE",
                fix="Check HOST:PORT (https://HOST:PORT where it has TLS), the firewall, and that it listens on that "
                "address (`airyard server --host`).",
            ) from None


def _refused(url: str, error: urllib.error.HTTPError) -> AiryardError:
    try:
        body = json.loads(error.read())
    except (OSError, ValueError):
        body = {}
    if error.code == 404 and "error" not in body:
        return UserError(
            f"The server at {url} has no fleet: it runs its own machine only, or is no Airyard server.",
            code="NO_FLEET",
            fix=Fix(text="Start it as a fleet's.", command="airyard server --engine ray --host ADDRESS"),
        )
    return from_json(error.code, body)


def _url(server: str, scheme: str) -> str:
    url = (server if "://" in server else f"{scheme}://{server}").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{server!r} is not the address of a server: it looks like HOST:PORT.", code="BAD_HOST"
        )
    return url


def _check_home(home: Path, folder: Path) -> None:
    if keeper_pid(folder) is not None:
        raise Conflict(
            f"This machine has joined a fleet already ({home}).",
            code="ALREADY_JOINED",
            fix=Fix(text="Leave it first.", command="airyard node leave"),
        )
    with contextlib.suppress(OSError), open(home / "server" / "lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"An Airyard server uses the data folder {home}: its machine is in its fleet by itself.",
                code="ALREADY_SERVED",
                fix="Give this node a folder of its own with --home.",
            ) from None


def read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The token file {path} cannot be read: {error}.", code="BAD_TOKEN_FILE") from None
    if len(token) < ray_command.TOKEN_BYTES:
        raise UserError(
            f"{path} holds no token of a fleet: {len(token)} characters.",
            code="BAD_TOKEN_FILE",
            fix="Copy server/ray/token from the server's data folder.",
        )
    return token


def _apply(desk: Desk, name: str, address: str, home: Path, machine_id: str) -> str:
    """Have the server check this machine, and reach it; return the address of Ray's head."""
    nonce = secrets.token_hex(16)
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise UserError(
            f"{address} is no address of this machine: {error.strerror}.",
            code="BAD_ADDRESS",
            fix="Name one with --address.",
        ) from None
    with listener:
        listener.settimeout(_ANSWER_S)
        threading.Thread(target=_answer_probe, args=(listener, nonce), daemon=True).start()
        answer = desk.post(
            "join",
            {
                "name": name,
                "machine_id": machine_id,
                "version": airyard.__version__,
                "ray": ray_command.RAY_VERSION,
                "python": ray_command.python_version(),
                "address": address,
                "port": listener.getsockname()[1],
                "nonce": nonce,
            },
        )
    desk.learn(answer.get("servers") or [])
    # Members that only the true machine of this name can hold: another one would seem to prove their death.
    missing = [key for key in answer["members"] if not (home / "node" / "attempts" / key).is_dir()]
    if missing:
        raise Conflict(
            f"The fleet's machine {name} still has live members that are not in {home}: {', '.join(missing[:10])}.",
            code="NAME_TAKEN",
            fix=f"Join with the data folder of that machine, choose another --name, or say that it is dead: "
            f"`airyard confirm-dead {name}`.",
            details={"members": missing},
        )
    return str(answer["ray_address"])


def _answer_probe(listener: socket.socket, nonce: str) -> None:
    with contextlib.suppress(OSError):
        stream, _ = listener.accept()
        with stream:
            stream.sendall(nonce.encode())


def _check_reach(head: str) -> None:
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise Unavailable(
            f"The Ray head at {head} cannot be reached from this machine: {error.strerror or error}.",
            code="RAY_HEAD_AWAY",
            fix="Open the firewall for that port; docs/operate/fleet.md lists what a fleet needs.",
        ) from None


def _start_ray(folder: Path, wanted: Wanted, head: str, address: str) -> None:
    temporary = ray_command.temporary_folder(folder)
    token = ray_command.token_file(folder, wanted.token_file)
    command = ray_command.node_command(
        head=head, address=address, ports=ray_command.kept_ports(folder, PORTS, address), temporary=temporary
    )
    environment = {**ray_command.ray_environment(token), ray_command.HOME_VARIABLE: str(wanted.home)}
    plan = {"command": command, "environment": environment, "temporary": str(temporary)}
    start_keeper(folder, plan)


def _await_arrival(desk: Desk, question: str, folder: Path) -> list[str]:
    """Wait until the server speaks with this machine's agent; else take everything back. Raises: Unavailable."""
    deadline = time.monotonic() + _ARRIVE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Unavailable):
            found = desk.get(question)
            if found["joined"] and found["nodes"]:
                return [str(node) for node in found["nodes"]]
        if keeper_pid(folder) is None:
            break
        time.sleep(_POLL_S)
    log = folder / "keeper.log"
    tail = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
    end_keeper(folder)
    raise Unavailable(
        f"This machine did not arrive in the fleet within {_ARRIVE_S:g} s: {' | '.join(tail)}",
        code="NOT_ARRIVED",
        fix=f"See {log}, and server/ray/bridge.log on the server.",
    )
