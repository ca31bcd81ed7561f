"""``python -m airyard.sim.fleet``: the process that plays all machines of a fleet.

Owns: its arguments, its machines, what it says on stdout and takes on stdin. Must not know: the server's insides.

On stdout a JSON object a line: ``{"event":"joined","machines":N}`` once all have said hello, then each thing that is
done to a machine, ``{"event":"fault","what","machine","time_ms",...}``. On stdin it takes entries of a faults file, as
JSON, one a line, to be done at once; it ends with its stdin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airyard.adapters.dev_engine import SOCKET
from airyard.core.errors import AiryardError
from airyard.core.workload import parse_accelerator
from airyard.node.health_simulated import FAULT_FILE
from airyard.node.health_watch import FOLDER as HEALTH
from airyard.sim.fleet import FOLDER
from airyard.sim.fleet.asked import ASKED, Asked
from airyard.sim.fleet.faults import Faults, Injector, machine_name, read_fault, read_faults
from airyard.sim.fleet.machine import Machine, Model

_RACK, _FABRIC = 8, 32
_LOOK_S = 0.05
_AT_ONCE = 64


def say(event: str, **about: Any) -> None:
    """Write one line for whoever started the process."""
    sys.stdout.write(json.dumps({"event": event, **about}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _note(what: str, **about: Any) -> None:
    say("fault", what=what, time_ms=time.time_ns() // 1_000_000, **about)


def make_machines(model: Model, count: int) -> list[Machine]:
    """Return the machines: racks of 8, fabrics of 32, an address each."""
    machines = []
    for index in range(count):
        address = f"10.{77 + (index >> 16)}.{index >> 8 & 255}.{index & 255}"
        machine = Machine(model, machine_name(index), address, _note)
        machine.place(fabric=f"f{index // _FABRIC}", rack=f"r{index // _RACK}")
        machines.append(machine)
    return machines


async def play(model: Model, machines: list[Machine], faults: Faults) -> None:
    """Be the machines until stdin ends."""
    tasks = []
    for index, machine in enumerate(machines):
        tasks += [asyncio.create_task(machine.serve()), asyncio.create_task(machine.sample())]
        if index % _AT_ONCE == 0:
            await asyncio.sleep(0)
    injector = Injector(machines, faults.seed)
    told = asyncio.create_task(_listen(injector, len(machines)))
    asked = Asked(machines, injector, faults=model.faults, entries=model.folder / ASKED, refuse=_refuse)
    while not all(machine.joined for machine in machines) and not told.done():
        await asyncio.sleep(_LOOK_S)
    say("joined", machines=len(machines))
    tasks += [asyncio.create_task(injector.follow(fault)) for fault in faults.faults]
    tasks.append(asyncio.create_task(asked.follow()))
    await told


async def _listen(injector: Injector, machines: int) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        try:
            injector.strike(read_fault(json.loads(line), machines))
        except (ValueError, AiryardError) as error:
            _refuse(str(error))


def _refuse(problem: str) -> None:
    say("refused", message=problem)


def main() -> int:
    """Play a fleet for the server of a data folder."""
    parser = argparse.ArgumentParser(prog="airyard.sim.fleet")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpu", default="GPU_8xH100")
    parser.add_argument("--run-seconds", type=float, default=60.0)
    parser.add_argument("--faults", type=Path, default=None)
    given = parser.parse_args()
    os.umask(0o077)
    _allow_open_files()
    name, devices = parse_accelerator(given.gpu)
    try:
        faults = read_faults(given.faults, given.nodes) if given.faults is not None else Faults()
    except AiryardError as error:
        say("failed", error=error.as_json())
        return error.exit_code
    model = Model(
        accelerator=given.gpu,
        model=str(name),
        devices=devices,
        run_seconds=given.run_seconds,
        folder=given.home.absolute() / FOLDER,
        socket=given.home.absolute() / "server" / SOCKET,
        faults=given.home.absolute() / "node" / HEALTH / FAULT_FILE,
    )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(play(model, make_machines(model, given.nodes), faults))
        except KeyboardInterrupt:
            pass
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _allow_open_files() -> None:
    """Every runner keeps up to three connections open, as real ones do."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
