"""One side of a pair test as a program: small messages and blocks over TCP, then the all-reduce of both where torch is.

Owns: the order of the two, what the sides agree on, the ranks of the all-reduce. Must not know: who asks, what a figure
means. A wish in JSON comes on standard input, the token in it; every line of output is a JSON object: the port (of the
side that serves), ``stage`` when the second part begins, the result. Whoever starts it gives it a deadline and may kill
its process group at any time: all that it starts is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from airyard.checks import pair_child, pair_lanes
from airyard.checks.children import die_with_parent

CHILD = Path(__file__).with_name("preflight") / "torch_child.py"
GROUP_S = 60.0
"""The all-reduce, with the start of torch on every rank."""
SIZES = {"nccl": 1 << 30, "gloo": 32 << 20}
"""Octets of the all-reduce: large enough that the bus decides."""
_LOOK_S = 0.05
_FIND_S = 20.0
_OF_THE_WAY = ("NCCL", "DistBackendError", "DistNetworkError", "gloo", "onnection", "timed out")
"""What speaks of the other side in the last words of a rank; anything else is the environment's own fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What both sides do after the exchange by TCP; ``ranks`` a side, 0: nothing."""

    ranks: int = 0
    backend: str = ""
    rdma: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return what the caller says of it."""
        return {"ranks": self.ranks, "backend": self.backend, "rdma": self.rdma}


def agreed(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Plan:
    """Return what two sides can do together. Each says ``torch``, ``gpus`` and ``rdma``."""
    if not (mine.get("torch") and theirs.get("torch")):
        return Plan()
    gpus = int(mine.get("gpus") or 0), int(theirs.get("gpus") or 0)
    if bool(gpus[0]) != bool(gpus[1]):
        return Plan()
    rdma = bool(mine.get("rdma")) and bool(theirs.get("rdma"))
    return Plan(ranks=min(gpus) or 1, backend="nccl" if gpus[0] else "gloo", rdma=rdma)


def has_torch(python: str) -> bool:
    """Say whether an interpreter finds torch, without importing it."""
    words = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        done = subprocess.run(
            [python, "-c", words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_FIND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def serve(wish: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Be the side that is called."""
    torch = bool(wish.get("python")) and has_torch(str(wish["python"]))
    with (
        socket.create_server((options.host, 0)) as listener,
        contextlib.closing(pair_lanes.Answering(options.host, _token(wish), options)) as beside,
    ):
        pair_child.say({"port": listener.getsockname()[1], "lanes_port": beside.port, "torch": torch})
        heard: dict[str, Any] = {}

        def answer(said: bytes) -> bytes:
            heard.update(json.loads(said or b"{}"))
            if heard.get("ranks"):
                heard["store_port"] = _free_port(options.host)
            return json.dumps({"store_port": heard.get("store_port", 0)}).encode()

        faults = pair_child.Faults(options)
        said = pair_child.serve(listener, _token(wish), options.octets, faults, answer)
    if not heard.get("ranks"):
        return said
    plan = Plan(ranks=int(heard["ranks"]), backend=str(heard["backend"]), rdma=bool(heard["rdma"]))
    mine = str(said["address"])
    return _with_group(said, wish, plan, f"tcp://{mine}:{heard['store_port']}", mine, first=0)


def call(wish: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Be the side that calls, and say what is done after the exchange."""
    peer = wish["peer"]
    torch = bool(peer.get("torch") and wish.get("python")) and has_torch(str(wish["python"]))
    plan = agreed({**wish, "torch": torch, "gpus": len(wish.get("gpus") or ())}, peer)
    host, port = options.host, int(peer["port"])
    # First: the other side answers for its adapters until the exchange of the pair is over.
    lanes = wish.get("lanes") or ()
    read = pair_lanes.measure(lanes, int(peer["lanes_port"]), _token(wish), options) if lanes else []
    with pair_child.connected(host, port, _token(wish), options.connect_s) as link:
        faults, told = pair_child.Faults(options), json.dumps(plan.as_json()).encode()
        said = pair_child.call(link, options.octets, options.pings, options.seconds, faults, told)
    said["lanes"] = read
    if not plan.ranks:
        return said
    store = f"tcp://{host}:{json.loads(said['answer'])['store_port']}"
    return _with_group(said, wish, plan, store, str(said["address"]), first=plan.ranks)


def _with_group(
    said: dict[str, Any], wish: Mapping[str, Any], plan: Plan, store: str, address: str, *, first: int
) -> dict[str, Any]:
    """Add what the all-reduce came to: ``group`` ``{gb_s, wrong, backend}``, or ``problem`` or ``broken`` why not."""
    pair_child.say({"stage": "group"})
    before = pair_child.errors()
    found = group(wish, plan, store, address, first=first)
    grown = int(said["errors_grown"]) + max(pair_child.errors() - before, 0)
    return {**said, "errors_grown": grown, **found}


def group(wish: Mapping[str, Any], plan: Plan, store: str, address: str, *, first: int) -> dict[str, Any]:
    """Be half of the ranks of an all-reduce; ``address`` is the one by which the other half reaches this machine.

    Blocks until all are done, or one has failed, or ``GROUP_S`` is over: then ``late``.
    """
    gpus = [str(each) for each in wish.get("gpus") or ()]
    told = (wish.get("variables") or {}).get(address) or {}
    environ = {**os.environ, **(told.get("rdma" if plan.rdma else "tcp") or {})}
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[: plan.ranks])
    until = time.monotonic() + GROUP_S
    ranks: list[_Rank] = []
    with contextlib.ExitStack() as files:
        try:
            for index in range(plan.ranks):
                # Files without a name: nothing of them is left when all is killed.
                out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
                words = ["group", "--backend", plan.backend, "--store", store, "--rank", str(first + index)]
                words += ["--world", str(2 * plan.ranks), "--sizes", str(SIZES[plan.backend])]
                # In this process's own group: who kills that has killed them.
                process = subprocess.Popen(
                    [str(wish["python"]), str(CHILD), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**environ, "LOCAL_RANK": str(index)},
                )
                ranks.append(_Rank(process=process, out=out, err=err))
            while any(rank.process.poll() is None for rank in ranks):
                if any(rank.failed for rank in ranks):
                    break
                if time.monotonic() >= until:
                    return {"late": True}
                time.sleep(_LOOK_S)
            return _read_ranks(ranks, plan)
        except OSError as error:
            return {"broken": f"the all-reduce could not be started: {error}"}
        finally:
            for rank in ranks:
                rank.process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    @property
    def failed(self) -> bool:
        return self.process.poll() not in (None, 0)


def _read_ranks(ranks: list[_Rank], plan: Plan) -> dict[str, Any]:
    for rank in ranks:
        if rank.failed:
            rank.err.seek(0)
            last = (rank.err.read().decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[
                -1
            ]
            said = f"the all-reduce failed: {last[:200]}"
            return {"problem" if any(each in last for each in _OF_THE_WAY) else "broken": said}
    ranks[0].out.seek(0)
    try:
        told = json.loads(ranks[0].out.read().decode().strip().splitlines()[-1])
        if "skipped" in told:
            return {"broken": f"the all-reduce was not run: {told['skipped']}"}
        return {"group": {"gb_s": told["gb_s"], "wrong": told["wrong"], "backend": plan.backend}}
    except (ValueError, LookupError) as error:
        return {"broken": f"the all-reduce said nothing: {error}"}


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _token(wish: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(str(wish["token"]).encode()).digest()


def main() -> int:
    """Play the side that standard input asks for.

    ``{parent, nice, side, host, token, python, gpus, rdma, variables, lanes, peer?, words?}``; ``host`` to listen on or
    to call, ``words`` as on the command line of ``pair_child.py``.
    """
    wish = json.loads(sys.stdin.read())
    die_with_parent(int(wish.get("parent", os.getppid())))
    os.nice(int(wish.get("nice", 0)))
    words = [str(each) for each in wish.get("words") or ()]
    options = pair_child.parser().parse_args([str(wish["side"]), "--host", str(wish["host"]), *words])
    try:
        said = serve(wish, options) if options.side == "serve" else call(wish, options)
    except OSError as error:
        said = {"problem": f"{type(error).__name__}: {error}"}
    pair_child.say(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
