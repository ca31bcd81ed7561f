"""Checks of a gang's nodes with each other: members that differ, ranks that hang, crash or never come.

A script stands in for the environment's interpreter: what torch does there is tried on hosts (``e2e/test_fleet_ddp``).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from airyard.checks.preflight import ways
from airyard.checks.thresholds import limits, of_pool, packaged
from airyard.node import gang_ranks
from airyard.node.gang_checks import GangChecks, GangUnfit, others
from airyard.node.gang_gate import GangGate
from airyard.node.gang_ranks import Part
from airyard.node.machine_events import LaunchFailed
from airyard.node.meeting import MeetingPlace
from airyard.node.network import Wish

ARGUMENT = 'while [ "$1" != --joined ]; do shift; done; fd=$2\n'
SUMS = ARGUMENT + 'echo joined >&$fd; echo \'{"wrong": WRONG, "gb_s": {"4096": 0.1, "16777216": 2.0}}\'\n'


class Gang:
    """Members on nodes n0, n1, ...; ``scripts`` are what their interpreters do."""

    def __init__(
        self, folder: Path, count: int, script: str, *, strict: bool = True, generation: str = ""
    ) -> None:
        self.generation = generation
        self.gpus = 0
        self.limits: dict[str, dict[str, float]] = {}
        self.others: tuple[str, ...] = ()
        self.is_alone = False
        self.folder = folder
        self.count = count
        self.strict = strict
        self.stopped = threading.Event()
        self.notes: list[str] = []
        self.said: dict[int, GangUnfit | None] = {}
        folder.mkdir(exist_ok=True)
        self.python = folder / "python"
        self.write(script)

    def write(self, script: str) -> None:
        self.python.write_text(f"#!/bin/bash\n{script}")
        self.python.chmod(0o755)

    def checks(self, member: int) -> GangChecks:
        return GangChecks(
            node=f"n{member}",
            node_folder=self.folder / f"n{member}",
            note=self.notes.append,
            should_stop=self.stopped.is_set,
        )

    def order(self, member: int) -> dict[str, Any]:
        """What a member is told: its GPUs, and which its node has."""
        mine = [f"GPU-{member}-{index}" for index in range(self.gpus)]
        asked = {"profile": "fast", "strict": self.strict, "uuids": [*mine, *self.others]}
        devices = list(range(4, 4 + self.gpus))
        return {"member": member, "preflight": asked, "devices": devices, "visible_devices": ",".join(mine)}

    def run(self, **odd: dict[int, str]) -> dict[int, GangUnfit | None]:
        """Have all members check; ``odd``: other facts of some. One refusal stops the others, as a server does."""
        facts = []
        for member in range(self.count):
            told = dict(self.checks(member).facts(self.order(member))["facts"])
            told.update({fact: values[member] for fact, values in odd.items() if member in values})
            facts.append(told)
        go: dict[str, Any] = {"gang_checks": {"store_port": 1, "facts": facts}}
        if self.is_alone:
            go["gang_checks"]["address"] = "127.0.0.1"
        else:
            go["peers"] = [{"address": "127.0.0.1"}]

        def check(member: int) -> None:
            part = Part(
                python=self.python,
                environment=dict(os.environ),
                before_exec=lambda: None,
                limits=limits(of_pool(packaged(), self.limits, "big"), self.generation),
            )
            try:
                self.checks(member).check(self.order(member), go, part)
            except GangUnfit as unfit:
                self.said[member] = unfit
                if unfit.fault or unfit.cause == "NETWORK":
                    self.stopped.set()
            else:
                self.said[member] = None

        threads = [threading.Thread(target=check, args=(member,)) for member in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return self.said

    def causes(self) -> dict[int, tuple[str, str] | None]:
        return {member: (one.cause, one.fault) if one else None for member, one in self.said.items()}


def test_like_nodes_that_sum_rightly_are_certified_and_the_next_start_starts_nothing(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 3, SUMS.replace("WRONG", "[]"))
    assert gang.run() == dict.fromkeys(range(3))
    assert len([line for line in gang.notes if "net.all_reduce over 3 nodes, 3 ranks" in line]) == 3
    assert [len(list((tmp_path / f"n{member}/certificates").glob("gang-*.json"))) for member in range(3)] == [
        1
    ] * 3
    gang.notes.clear()
    gang.write("exit 70\n")
    assert gang.run() == dict.fromkeys(range(3))
    assert gang.notes == []
    # One node forgets it, as after its disk was replaced: all sum again, and nobody waits for anybody.
    for path in (tmp_path / "n1/certificates").glob("gang-*.json"):
        path.unlink()
    gang.write(SUMS.replace("WRONG", "[]"))
    gang.run()
    assert len(gang.notes) == 3


def test_the_node_that_differs_refuses_and_the_others_are_stopped(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 3, SUMS.replace("WRONG", "[]"))
    driver = {0: "570.1", 1: "575.9", 2: "570.1"}
    gang.run(driver=driver)
    assert gang.causes() == {0: ("PLATFORM", ""), 1: ("NODE", "preflight"), 2: ("PLATFORM", "")}
    refused = gang.said[1]
    assert refused is not None
    assert refused.message.startswith(
        "preflight: node n1 failed card.driver: the driver is 575.9, on node n0 570.1"
    )


def test_of_two_nodes_that_differ_nobody_is_blamed(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 2, SUMS.replace("WRONG", "[]"))
    gang.run(image={0: "sha256:a", 1: "sha256:b"})
    assert gang.causes() == {0: ("NODE", ""), 1: ("NODE", "")}


def test_where_nobody_asked_only_the_driver_counts(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 2, SUMS.replace("WRONG", "[]"), strict=False)
    assert gang.run(image={0: "sha256:a", 1: "sha256:b"}) == {0: None, 1: None}
    assert any("warn host.image" in line for line in gang.notes)
    assert gang.run(driver={0: "1", 1: "2"}) != {0: None, 1: None}


def test_the_node_whose_clock_is_off_refuses_where_the_pool_asked(tmp_path: Path) -> None:
    clocks = {"clock_ms": {0: "0.1", 1: "-2000", 2: "0.3"}, "clock_error_ms": dict.fromkeys(range(3), "0.4")}
    gang = Gang(tmp_path, 3, SUMS.replace("WRONG", "[]"))
    gang.run(**clocks)
    assert gang.causes() == {0: ("PLATFORM", ""), 1: ("NODE", "preflight"), 2: ("PLATFORM", "")}
    assert "node n1 failed net.clock: the clock of node n1" in str(gang.said[1])
    easy = Gang(tmp_path / "easy", 3, SUMS.replace("WRONG", "[]"), strict=False)
    assert easy.run(**clocks) == dict.fromkeys(range(3))
    assert len([line for line in easy.notes if "warn net.clock" in line]) == 3


def test_a_wrong_sum_takes_out_the_node_that_has_it(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 3, SUMS.replace("WRONG", "[2]"))
    gang.run()
    causes = gang.causes()
    assert causes.pop(2) == ("NODE", "preflight")
    # The others wait to be stopped, or are stopped while they sum still; none starts, none is blamed.
    assert all(one is not None and one[1] == "" for one in causes.values())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (ARGUMENT + "echo joined >&$fd; sleep 600\n", "was not done"),
        (ARGUMENT + "echo joined >&$fd; echo 'connection reset'; exit 1\n", "connection reset"),
    ],
)
def test_a_sum_that_does_not_end_is_the_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(gang_ranks, "SUM_S", 0.5)
    gang = Gang(tmp_path, 2, script)
    gang.run()
    assert any(
        one is not None and one.cause == "NETWORK" and words in one.message for one in gang.said.values()
    )
    assert list(tmp_path.rglob("gang-*.json")) == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sleep 600\n", "did not come together"),
        ("echo 'No module named torch'; exit 1\n", "No module named torch"),
        ('echo \'{"skipped": "this environment has no torch"}\'\n', "has no torch"),
    ],
)
def test_what_is_not_known_lets_the_gang_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(gang_ranks, "JOIN_S", 0.5)
    gang = Gang(tmp_path, 2, script)
    assert gang.run() == {0: None, 1: None}
    assert all(words in line for line in gang.notes)
    assert list(tmp_path.rglob("gang-*.json")) == []


@pytest.mark.parametrize(("strict", "cause"), [(True, "NETWORK"), (False, None)])
def test_a_sum_that_is_too_slow_is_the_networks_where_the_pool_asked(
    tmp_path: Path, strict: bool, cause: str | None
) -> None:
    gang = Gang(tmp_path, 2, SUMS.replace("WRONG", "[]"), strict=strict, generation="H200")
    gang.gpus = 2
    gang.run()
    first = next(iter(one for one in gang.said.values() if one is not None), None)
    assert (first.cause if first is not None else None) == cause
    if not strict:
        assert any("warn net.all_reduce: all-reduce of 16 MiB at 2.0 GB/s" in line for line in gang.notes)


def test_a_way_that_swallows_large_packets_is_the_networks_where_the_pool_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways.call, "__kwdefaults__", {"load": 0, "within_s": 0.5})
    with socket.socket() as narrow:  # takes next to nothing, as a way whose switches drop what is large
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        narrow.bind(("127.0.0.1", 0))
        narrow.listen(4)
        peers = [
            {
                "member": member,
                "machine": f"m{member}",
                "address": "127.0.0.1",
                "port": narrow.getsockname()[1],
            }
            for member in range(2)
        ]
        part = Part(python=None, environment={}, before_exec=lambda: None, limits=limits(packaged(), ""))
        for strict in (True, False):
            gang = Gang(tmp_path, 2, "exit 1\n", strict=strict)
            told = gang.checks(0).facts(gang.order(0))["facts"]
            go = {"gang_checks": {"store_port": 1, "facts": [told, told]}, "peers": peers}
            order = {"member": 0, "preflight": {"strict": strict}}
            if not strict:
                gang.checks(0).check(order, go, part)
                assert "net.peers: 127.0.0.1:" in gang.notes[0]
                assert "large packets did not arrive" in gang.notes[0]
                continue
            with pytest.raises(
                GangUnfit, match=r"from n0 net\.peers: .* large packets did not arrive"
            ) as unfit:
                gang.checks(0).check(order, go, part)
            assert (unfit.value.cause, unfit.value.fault) == ("NETWORK", ""), "nobody is blamed"


def test_each_calls_those_that_come_next_on_other_machines() -> None:
    peers = [
        {
            "member": member,
            "machine": f"m{member // 2}",
            "address": f"10.0.0.{member // 2}",
            "port": 70 + member,
        }
        for member in range(8)
    ]
    assert others(peers, 2) == ["10.0.0.2:74", "10.0.0.3:76", "10.0.0.0:70"]
    assert others(peers, 7) == ["10.0.0.0:70", "10.0.0.1:72", "10.0.0.2:74"]
    many = [{"member": n, "machine": f"m{n}", "address": f"h{n}", "port": 7} for n in range(100)]
    assert others(many, 90) == [f"h{n % 100}:7" for n in range(91, 107)]
    assert others([], 0) == []


def test_the_pools_own_limit_is_named_and_kept(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 2, SUMS.replace("WRONG", "[]"))
    gang.gpus, gang.limits = 2, {"all": {"nodes_gb_s": 10.0}}
    gang.run()
    told = [one.message for one in gang.said.values() if one is not None and one.cause == "NETWORK"]
    assert "16 MiB at 2.0 GB/s, 7 GB/s are the least (nodes_gb_s of pool big); next:" in told[0]
    gang.stopped.clear()
    gang.limits = {"all": {"nodes_gb_s": 2.5}}
    assert gang.run() == {0: None, 1: None}, "0.7 of it for a message as small as this"


def test_half_a_node_is_not_measured_by_what_whole_ones_have(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 2, SUMS.replace("WRONG", "[]"), generation="H200")
    gang.gpus, gang.others = 2, ("GPU-x",)
    assert gang.run() == {0: None, 1: None}
    assert not any("GB/s" in line for line in gang.notes)


def test_each_gpu_has_a_rank_and_the_one_with_a_wrong_sum_is_named(tmp_path: Path) -> None:
    script = f'echo "$LOCAL_RANK $*" >> {tmp_path}/asked\n' + SUMS.replace("WRONG", "[3]")
    gang = Gang(tmp_path, 3, script)
    gang.gpus = 2
    gang.run()
    lines = (tmp_path / "asked").read_text().splitlines()
    asked = {(line.split()[0], line.split(" --rank ")[1].split()[0]) for line in lines}
    assert asked >= {("0", "2"), ("1", "3")}
    assert all("--world 6" in line and ("--no-look" in line) == (line[0] == "1") for line in lines)
    refused = gang.said[1]
    assert refused is not None
    assert (refused.cause, refused.fault) == ("NODE", "preflight")
    assert "came out wrong on its GPU 5;" in refused.message
    assert all(one is not None and one.fault == "" for member, one in gang.said.items() if member != 1)


def test_one_rank_that_fails_ends_those_beside_it_and_is_told(tmp_path: Path) -> None:
    script = ARGUMENT + 'echo joined >&$fd; [ "$LOCAL_RANK" = 1 ] || exec sleep 600; echo broken; exit 3\n'
    gang = Gang(tmp_path, 2, script)
    gang.gpus = 3
    began = time.monotonic()
    gang.run()
    assert time.monotonic() - began < 20, "the others had a moment, not their deadline"
    told = [one.message for one in gang.said.values() if one is not None and one.cause == "NETWORK"]
    assert any(
        "did not end: rank 1: broken;" in each or "did not end: rank 4: broken;" in each for each in told
    )


def test_a_member_whose_rank_sees_nothing_lets_others_speak_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_ranks, "SUM_S", 1.0)
    look = '{"stuck": ["joined", "joined"], "quiet": [0], "moved": false}'
    case = f"case \"$*\" in *'--rank 1'*) echo '{look}';; esac\n"
    gang = Gang(tmp_path, 2, case + ARGUMENT + "echo joined >&$fd; exec sleep 600\n")
    gang.run()
    assert gang.causes() == {0: ("CANCELLED", ""), 1: ("NETWORK", "")}
    assert "rank 0 on node n0 told that it joined the others, and then nothing more" in str(gang.said[1])


def test_a_gang_on_one_machine_sums_there_and_is_not_measured_as_nodes_are(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 2, SUMS.replace("WRONG", "[]"), generation="H200")
    gang.gpus, gang.is_alone = 2, True
    assert gang.run() == {0: None, 1: None}
    assert len(gang.notes) == 2
    assert all("net.all_reduce over 2 nodes, 4 ranks, in " in line for line in gang.notes)


def test_a_machine_that_meets_no_other_tells_facts_only(tmp_path: Path) -> None:
    order = {"members": 2, "member": 0, "preflight": {"uuids": ["GPU-a"]}, "visible_devices": "GPU-a"}
    place = MeetingPlace("127.0.0.1", Wish())

    def told(order: dict[str, Any]) -> dict[str, Any] | None:
        return GangGate(order, "n0", tmp_path, lambda line: None, lambda: False).announced(place)

    said = told(order)
    assert said is not None
    assert (said["addresses"], said["port"], said["store_port"] > 0) == ([], 0, True)
    assert [said["facts"][name] for name in ("node", "ranks", "whole")] == ["n0", "1", "1"]
    assert told({**order, "preflight": None}) is None
    assert told({**order, "members": 1}) is None


def test_a_bug_between_go_and_the_command_is_told(tmp_path: Path) -> None:
    """On a thread of its own nobody else would hear of it, and the member would wait for ever."""
    gate = GangGate({"members": 2}, "n0", tmp_path, lambda line: None, lambda: False)
    told: SimpleQueue[LaunchFailed] = SimpleQueue()

    def broken() -> None:
        raise TypeError("a bug")

    gate.open({"gang_checks": {"facts": []}}, broken, told.put)
    failed = told.get(timeout=30)
    assert (failed.cause, failed.fault) == ("PLATFORM", "")
    assert "TypeError: a bug" in failed.message


def test_a_member_that_is_to_end_leaves_no_rank_behind(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 2, f"echo $$ > {tmp_path}/pid; exec sleep 600\n")
    stop = threading.Timer(0.5, gang.stopped.set)
    stop.start()
    began = time.monotonic()
    gang.run()
    assert gang.causes() == {0: ("CANCELLED", ""), 1: ("CANCELLED", "")}
    assert time.monotonic() - began < 30, "it was stopped, and did not wait for its deadline"
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nothing_is_said_where_nothing_was_asked(tmp_path: Path) -> None:
    gang = Gang(tmp_path, 1, "exit 1\n")
    assert gang.checks(0).facts({}) == {}
    part = Part(python=None, environment={}, before_exec=lambda: None, limits=limits(packaged(), ""))
    gang.checks(0).check({"member": 0}, {"peers": []}, part)
    assert gang.notes == []
