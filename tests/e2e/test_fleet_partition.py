"""Hosts of a fleet that are cut off in mid-run: nobody of the old attempt lives when the new one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.stories import StormyFleet, Story, boot_ns, stormy_fleet, told
from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
__all__ = ["told"]

Told = Callable[[str, float], None]


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[StormyFleet]:
    with stormy_fleet(3, tmp_path_factory.mktemp("partition"), environment_cache, make_yard) as fleet:
        yield fleet


@pytest.fixture
def fleet(whole: StormyFleet) -> Iterator[StormyFleet]:
    """The fleet, with all machines there; afterwards its journal must be right."""
    whole.await_all()
    yield whole
    assert whole.verified()


def test_a_host_that_is_cut_off_with_a_member_of_a_gang(fleet: StormyFleet, told: Told) -> None:
    """A gang on two of three hosts; its second member's host is cut off, and comes back when all is over."""
    story = Story(fleet=fleet, nodes=2)
    story.await_steps(3)
    cut = fleet.number(story.machines()[1])
    fleet.hosts.cut(cut)
    at_ns = boot_ns()
    try:
        story.await_attempt(1)
        first = story.run()["attempts"][0]
        story.assert_apart()
    finally:
        fleet.hosts.heal(cut)
    told("partition → old attempt gone", (story.span(0)[1] - at_ns) / 1e9)
    told("partition → running again", story.seconds_until(1, at_ns))
    assert (first["outcome"], first["cause"]) == ("LOST", "NODE"), first
    assert "lease ran out" in first["failure"]["message"]
    fleet.await_all()
    story.await_steps(story.steps() + 2)
    story.finish(2)
    assert fleet.said(story.run_id)[-1]["complete"], "also what the cut member had not delivered"


@pytest.mark.parametrize(
    "way", ["the server does not hear its runners", "the server does not hear it at all"]
)
def test_a_host_that_is_heard_no_more_but_hears(fleet: StormyFleet, told: Told, way: str) -> None:
    """What the host sends to the server is lost, and what the server sends arrives: only requests, or Ray's, too."""
    story = Story(fleet=fleet)
    story.await_steps(3)
    number = fleet.number(story.machines()[0])
    address, port = fleet.address().split(":")
    deaf = (number, address, int(port) if "runners" in way else None)
    fleet.hosts.deafen(*deaf)
    at_ns = boot_ns()
    try:
        story.await_attempt(1)
    finally:
        fleet.hosts.undeafen(*deaf)
    told("one-way partition → running again", story.seconds_until(1, at_ns))
    fleet.await_all()
    story.await_steps(story.steps() + 2)
    story.finish(2)
