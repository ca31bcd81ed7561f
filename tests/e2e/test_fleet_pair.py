"""Two nodes on two hosts tested against each other over the network between them, and with no way between them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.fleet import Fleet, fleet_on_hosts
from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_a_pair_meets_over_the_network_of_its_machines(
    make_yard: Callable[..., Yard], tmp_path: Path, environment_cache: Path
) -> None:
    with fleet_on_hosts(3, lambda hosts: Fleet(hosts, tmp_path, environment_cache), make_yard) as fleet:
        for number in (1, 2):
            fleet.join(fleet.hosts[number])
        one, other = "h1-cpu-0", "h2-cpu-0"
        assert {one, other} <= fleet.alive()
        told = json.loads(fleet.call("health", "pair", one, other, "-o", "json").stdout)["data"]
        assert (told["ok"], told["machines"], told["method"]) == (True, ["h1", "h2"], "tcp"), told
        assert told["correct"]
        # No way between the two: both agents are there, and the pair is what fails.
        fleet.hosts[2].run("ip", "route", "add", "blackhole", f"{fleet.hosts[1].address}/32")
        apart = fleet.call("health", "pair", one, other, "-o", "json")
        assert apart.returncode == 1, apart.stdout + apart.stderr
        assert json.loads(apart.stdout)["data"]["outcome"] == "FAIL"


def test_of_two_links_the_slow_one_is_named(
    make_yard: Callable[..., Yard], tmp_path: Path, environment_cache: Path
) -> None:
    with fleet_on_hosts(3, lambda hosts: Fleet(hosts, tmp_path, environment_cache), make_yard) as fleet:
        fleet.hosts.second_links()
        for number in (1, 2):
            fleet.join(fleet.hosts[number])
        words = ("health", "pair", "h1-cpu-0", "h2-cpu-0", "-o", "json")
        well = json.loads(fleet.call(*words).stdout)["data"]
        assert (well["ok"], {(each["a"], each["b"]) for each in well["adapters"]}) == (
            True,
            {("eth0", "eth0"), ("eth1", "eth1")},
        ), well
        assert len({each["rail"] for each in well["adapters"]} - {""}) == 2, well
        fleet.hosts.throttle(2, "100mbit", "eth1")
        slow = fleet.call(*words)
        assert slow.returncode == 1, slow.stdout + slow.stderr
        told = json.loads(slow.stdout)["data"]
        named = re.search(r"adapter eth1 of h1-cpu-0 with eth1 of h2-cpu-0: ([\d.]+) GB/s", told["why"])
        assert named is not None, told
        assert 0.004 < float(named[1]) < 0.016, "100 Mbit/s are 0.0125 GB/s"
        # One that nothing passes is told of as well, within the time of a test.
        fleet.hosts.throttle(2, "10kbit", "eth1")
        told = json.loads(fleet.call(*words).stdout)["data"]
        assert "adapter eth1 of h1-cpu-0 with eth1 of h2-cpu-0" in told["why"], told
        fleet.hosts.throttle(2, None, "eth1")
        assert json.loads(fleet.call(*words).stdout)["data"]["ok"]
