"""A machine that is in the fleet already is taken over only by a join that wants the same of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airyard.cli.verbs.node import _allotment
from airyard.node.allotment import Allotment
from airyard.node.joining import Wanted, agrees
from airyard.node.network import Wish

WANTED = Wanted(server="yard:8080", token_file=Path("token"), home=Path("home"))
OFFER: dict[str, Any] = {
    "machine": "m1",
    "address": "192.0.2.7",
    "labels": {},
    "simulate": {},
    "cpu_slots": None,
    "network": asdict(Wish(interface="eth0", hcas=("mlx5_0",))),
    "allotment": asdict(Allotment(gpus=("0",), cpus=4.0)),
}


def test_what_is_named_anew_has_to_be_the_same() -> None:
    offer = json.loads(json.dumps(OFFER))
    same = replace(WANTED, network=Wish(interface="eth0", hcas=("mlx5_0",)))
    assert agrees(same, offer)
    assert agrees(replace(same, name="m1", address="192.0.2.7"), offer)
    assert agrees(replace(same, allotment=Allotment(gpus=("0",), cpus=8.0), said=("gpus",)), offer)
    for other in (
        replace(same, address="192.0.2.8"),
        replace(same, network=Wish(interface="eth1")),
        replace(same, allotment=Allotment(gpus=("1",)), said=("gpus",)),
        replace(same, allotment=Allotment(gpus=None), said=("gpus",)),
        replace(same, allotment=Allotment(gpus=("0",), cpus=8.0), said=("gpus", "cpus")),
        replace(same, labels={"pool": "a"}),
    ):
        assert not agrees(other, offer), other


def test_an_offer_of_an_older_release_names_no_network() -> None:
    offer = {name: value for name, value in OFFER.items() if name not in ("network", "allotment")}
    assert agrees(WANTED, offer)


@pytest.mark.parametrize(("gpus", "found"), [(None, None), ("0", ("0",))])
def test_without_options_the_join_finds_the_allotment(gpus: str | None, found: object) -> None:
    made = _allotment(gpus, None, None)
    assert (made and made.gpus) == found
