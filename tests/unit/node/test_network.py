"""Networks read from recorded trees of ``/sys`` and ``/proc``, and what is chosen from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.node.joining import wished_address
from airyard.node.network import Network, Wish, choose, collect, default_interfaces, variables, wish_problem

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
ROUTES = (
    HEAD
    + "eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    + "eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
)
IPV4 = {"lo": "127.0.0.1/8", "eth0": "10.0.0.2/24", "eth1": "10.1.0.2/16", "docker0": "172.17.0.1/16"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def interface(
    root: Path, name: str, *, state: str = "up", mtu: int = 1500, speed: int = -1, kind: str = ""
) -> None:
    folder = root / "sys/class/net" / name
    write(folder / "operstate", state)
    write(folder / "mtu", str(mtu))
    write(folder / "speed", str(speed))
    if kind:
        (folder / kind).mkdir()


def hca(
    root: Path,
    name: str,
    *,
    state: str = "4: ACTIVE",
    rate: str = "400 Gb/sec (4X NDR)",
    link: str = "InfiniBand",
) -> None:
    port = root / "sys/class/infiniband" / name / "ports" / "1"
    write(port / "state", state)
    write(port / "rate", rate)
    write(port / "link_layer", link)
    write(port / "gids/0", "fe80:0000:0000:0000:0002:c903:0000:1491")
    write(port / "gid_attrs/types/0", "IB/RoCE v1")
    write(port / "gids/1", "0000:0000:0000:0000:0000:0000:0000:0000")
    if link == "Ethernet":
        write(port / "gids/3", "0000:0000:0000:0000:0000:ffff:0a01:0002")
        write(port / "gid_attrs/types/3", "RoCE v2")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path / "proc/net/route", ROUTES)
    interface(tmp_path, "lo", state="unknown", mtu=65536)
    interface(tmp_path, "eth0", speed=10_000, kind="device")
    interface(tmp_path, "eth1", speed=100_000, mtu=9000, kind="device")
    interface(tmp_path, "docker0", kind="bridge")
    interface(tmp_path, "eth2", state="down", kind="device")
    write(tmp_path / "sys/class/net/bonding_masters", "bond0")
    return tmp_path


def found(tree: Path) -> Network:
    return collect(tree, IPV4)


def test_interfaces_are_read_with_speed_mtu_and_state(tree: Path) -> None:
    by_name = {each.name: each for each in found(tree).interfaces}
    assert set(by_name) == {"lo", "eth0", "eth1", "eth2", "docker0"}
    eth1 = by_name["eth1"]
    assert (eth1.address, eth1.mtu, eth1.speed_mbps, eth1.physical, eth1.default_route) == (
        "10.1.0.2/16", 9000, 100_000, True, False,
    )  # fmt: skip
    assert (by_name["eth2"].state, by_name["eth2"].address, by_name["docker0"].speed_mbps) == (
        "down",
        None,
        None,
    )
    assert by_name["eth0"].default_route


def test_default_routes() -> None:
    assert default_interfaces(ROUTES) == {"eth0"}
    assert default_interfaces("") == frozenset()


def test_the_known_address_comes_first_and_bridges_of_containers_never(tree: Path) -> None:
    choice = choose(found(tree), Wish(), "10.0.0.2")
    assert choice.addresses == ("10.0.0.2/24", "10.1.0.2/16")
    assert choice.summary == "TCP only: no RDMA adapter (eth0 10G, MTU 1500)"
    assert choose(found(tree), Wish(), "192.0.2.1").addresses[0] == "10.1.0.2/16"  # else the fastest


def test_a_wished_interface_is_the_only_one(tree: Path) -> None:
    assert choose(found(tree), Wish(interface="eth1"), "10.0.0.2").addresses == ("10.1.0.2/16",)
    assert wish_problem(found(tree), Wish(interface="eth1")) is None
    assert "no interface ib9 (it has: docker0, eth0" in str(wish_problem(found(tree), Wish(interface="ib9")))
    assert "eth2 is down" in str(wish_problem(found(tree), Wish(interface="eth2")))


def test_a_bridge_with_the_default_route_is_the_host_s_own(tree: Path) -> None:
    write(tree / "proc/net/route", ROUTES.replace("eth0", "docker0"))
    assert "172.17.0.1/16" in choose(found(tree), Wish(), "10.0.0.2").addresses


def test_eight_ports_of_infiniband(tree: Path) -> None:
    for number in range(10):
        hca(tree, f"mlx5_{number}", rate="25 Gb/sec (1X EDR)" if number == 9 else "400 Gb/sec (4X NDR)")
    hca(tree, "mlx5_8", state="1: DOWN")
    (tree / "dev/infiniband").mkdir(parents=True)
    assert choose(found(tree), Wish(), "10.0.0.2").summary.startswith("TCP only: RDMA adapters, but no /dev")
    (tree / "dev/infiniband/uverbs0").touch()
    choice = choose(found(tree), Wish(), "10.0.0.2")
    assert choice.summary == "RDMA 8 × 400G InfiniBand"
    assert choice.rdma == tuple(f"mlx5_{number}:1" for number in range(8))
    assert choose(found(tree), Wish(hcas=("mlx5_9", "mlx5_0:1")), "").rdma == ("mlx5_0:1", "mlx5_9:1")
    assert "none of the wished mlx4_0" in str(wish_problem(found(tree), Wish(hcas=("mlx4_0",))))


def test_roce_and_ports_that_are_down(tree: Path) -> None:
    (tree / "dev/infiniband").mkdir(parents=True)
    (tree / "dev/infiniband/uverbs0").touch()
    hca(tree, "mlx5_0", state="1: DOWN")
    assert "no RDMA port is active (mlx5_0:1 DOWN)" in choose(found(tree), Wish(), "").summary
    hca(tree, "mlx5_0", rate="200 Gb/sec (2X NDR)", link="Ethernet")
    assert choose(found(tree), Wish(), "").summary == "RDMA 1 × 200G RoCE v2"


def test_variables_follow_the_choice_and_leave_the_user_s_word(tree: Path) -> None:
    hca(tree, "mlx5_0")
    (tree / "dev/infiniband").mkdir(parents=True)
    (tree / "dev/infiniband/uverbs0").touch()
    choice = choose(found(tree), Wish(), "10.0.0.2")
    names = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert variables(choice, "10.1.0.2", rdma=True, own=()) == {**names, "NCCL_IB_HCA": "=mlx5_0:1"}
    assert variables(choice, "10.1.0.2", rdma=False, own=()) == {**names, "NCCL_IB_DISABLE": "1"}
    assert variables(choice, "10.1.0.2", rdma=False, own=["NCCL_IB_HCA"]) == names
    assert variables(choice, "10.9.9.9", rdma=False, own=["NCCL_NET"]) == {}


def test_this_machine_has_loopback() -> None:
    lo = next(each for each in collect().interfaces if each.name == "lo")
    assert lo.address == "127.0.0.1/8"


def test_a_wish_from_the_configuration() -> None:
    assert Wish.from_json(None) == Wish()
    assert Wish.from_json({"interface": "eth1", "hcas": ["mlx5_0"]}) == Wish(
        interface="eth1", hcas=("mlx5_0",)
    )
    with pytest.raises(ValueError, match="is a list"):
        Wish.from_json({"hcas": "mlx5_0"})


def test_a_wish_that_cannot_be_met_is_told_at_the_join(tree: Path) -> None:
    assert wished_address(found(tree), Wish(interface="eth1")) == "10.1.0.2"
    assert wished_address(found(tree), Wish()) == ""
    with pytest.raises(UserError, match="no interface ib9"):
        wished_address(found(tree), Wish(interface="ib9"))
