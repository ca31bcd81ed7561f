"""``/metrics``: what Prometheus reads, with a token only; names and labels are right, old samples are gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.app.metrics_text import Beside, metrics_text
from airyard.core.commands import CordonNodes, HealthReported, IdleTestDone, SweepDone
from airyard.core.health.facts import CheckStatus, Component, HealthEvent, Severity, Source
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.ids import MemberKey
from airyard.core.state import ClusterState
from airyard.ports.engine import Sample, Samples
from airyard.server.gauges import FRESH_MS, MOST_SERIES, Gauges
from server_yard import HEADERS, Yard

LINE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (-?[0-9.e+-]+)')
NODE = "sim-1xa10-0"
ALL_OF_A_GPU = (
    "temperature_celsius",
    "utilization_percentage",
    "power_usage_watts",
    "ecc_uncorrected_errors",
    "clock_event_reasons",
    "slowdown_margin_celsius",
    "remapped_rows_failure",
    "nvlink_errors",
    "pcie_receive_megabytes_per_second",
    "pcie_transmit_megabytes_per_second",
)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def scraped(yard: Yard, headers: dict[str, str] | None = None) -> httpx.Response:
    async def scene() -> httpx.Response:
        transport = httpx.ASGITransport(yard.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://yard") as client:
            return await client.get("/metrics", headers=headers or {})

    return asyncio.run(scene())


def series(text: str) -> dict[str, float]:
    """Return every line; fail for one that is not of the text form."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line)
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        name = f"{match[1]}{{{match[2] or ''}}}"
        assert name not in found
        found[name] = float(match[3])
    return found


def event(rule: str, machine: str = "host", **more: Any) -> HealthEvent:
    return HealthEvent(
        event_id=f"{rule}{machine}",
        rule=rule,
        machine=machine,
        at_ms=1,
        component=Component.GPU,
        severity=Severity.CRITICAL,
        source=Source.KERNEL,
        message="x",
        **more,
    )


def test_it_needs_a_token(yard: Yard) -> None:
    assert scraped(yard).status_code == 401
    assert scraped(yard, {"authorization": "Bearer ayt_wrong"}).status_code == 401
    assert scraped(yard, yard.as_attempt()).status_code in (401, 403)


def test_nodes_their_health_and_what_was_sampled(yard: Yard) -> None:
    now_ms = yard.context.clock.now_ms()
    fault = event("xid.79", node=NODE, code=79)
    yard.tell(HealthReported(events=(HealthEvent(**{**_fields(fault), "at_ms": now_ms}),)))
    yard.tell(CordonNodes(nodes=("host-cpu-0",), by="ada", reason="a test"))
    yard.context.gauges.reported([fault, event("xid.79")])
    values = {"gpu_0_temperature_celsius": 71.0, "disk_usage_megabytes": 3_406_213.5}
    sample = Sample(key=MemberKey(1, 0, 0), node=NODE, time_ms=now_ms, values=values)
    yard.context.gauges.sampled(Samples(samples=(sample,)), now_ms)
    answer = scraped(yard, HEADERS)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = series(answer.text)
    assert found['airyard_node_up{node="host-cpu-0",machine="host",accelerator="CPU"}'] == 1
    assert found['airyard_node_cordoned{node="host-cpu-0"}'] == 1
    assert found['airyard_node_cordoned{node="host-cpu-1"}'] == 0
    assert found['airyard_node_health{node="host-cpu-0",state="healthy"}'] == 1
    assert found[f'airyard_node_health_score{{node="{NODE}"}}'] >= 6
    assert [name for name in found if name.startswith(f'airyard_node_health{{node="{NODE}"')] != [
        f'airyard_node_health{{node="{NODE}",state="healthy"}}'
    ]
    assert found['airyard_health_events_total{machine="host",rule="xid.79",severity="critical"}'] == 2
    assert found[f'airyard_gpu_temperature_celsius{{node="{NODE}",gpu="0"}}'] == 71
    assert found[f'airyard_node_disk_usage_megabytes{{node="{NODE}"}}'] == 3_406_213.5
    pool = yard.loop.peek(lambda control: control.state.policy.pool_of(control.state.nodes[NODE]))
    assert found[f'airyard_runs{{pool="{pool}",state="queued"}}'] == 0
    assert found[f'airyard_nodes{{pool="{pool}",state="HEALTHY"}}'] == 1
    assert found[f'airyard_breaker_open{{pool="{pool}"}}'] == 0
    assert found["airyard_journal_available{}"] == 1
    assert found["airyard_journal_events_total{}"] > 2


def test_what_rules_and_dashboard_use_is_there(yard: Yard) -> None:
    deploy = Path(__file__).resolve().parents[3] / "deploy" / "monitoring"
    wanted = {
        name
        for file in ("alerts.yaml", "dashboard.json")
        for name in re.findall(r"\bairyard_[a-z_]+\b(?![\"':]*job)", (deploy / file).read_text())
    }
    values = {f"gpu_0_{name}": 50.0 for name in ALL_OF_A_GPU}
    sample = Sample(key=MemberKey(1, 0, 0), node=NODE, time_ms=1, values=values)
    yard.context.gauges.sampled(Samples(samples=(sample,)), yard.context.clock.now_ms())
    text = scraped(yard, HEADERS).text
    there = {name.partition("{")[0] for name in series(text)}
    assert wanted - there == set()
    assert series(text)[f'airyard_gpu_utilization_ratio{{node="{NODE}",gpu="0"}}'] == 0.5


def test_why_a_gpu_is_slow_is_a_series_a_reason_and_what_was_not_told_is_not_there(yard: Yard) -> None:
    values = {
        "gpu_3_clock_event_reasons": float(0x0C4),
        "gpu_3_pcie_receive_megabytes_per_second": 1_500.0,
        "gpu_3_ecc_lifetime_uncorrected_errors": 0.0,
    }
    sample = Sample(key=MemberKey(1, 0, 0), node=NODE, time_ms=1, values=values)
    yard.context.gauges.sampled(Samples(samples=(sample,)), yard.context.clock.now_ms())
    text = scraped(yard, HEADERS).text
    found = {name: value for name, value in series(text).items() if name.startswith("airyard_gpu_")}
    on = {name.split('reason="')[1][:-2] for name, value in found.items() if "reason=" in name and value == 1}
    off = {
        name.split('reason="')[1][:-2] for name, value in found.items() if "reason=" in name and value == 0
    }
    assert on == {"sw_power_cap", "hw_thermal", "hw_power_brake"}
    assert {"idle", "hw_slowdown", "sw_thermal"} <= off
    labels = f'{{node="{NODE}",gpu="3"}}'
    assert {name: value for name, value in found.items() if "reason=" not in name} == {
        f"airyard_gpu_pcie_receive_bytes_per_second{labels}": 1.5e9,
        f"airyard_gpu_ecc_lifetime_uncorrected_total{labels}": 0,
    }
    assert "# TYPE airyard_gpu_ecc_lifetime_uncorrected_total counter" in text
    assert "# TYPE airyard_gpu_clock_event gauge" in text


def _fields(one: HealthEvent) -> dict[str, Any]:
    return {name: getattr(one, name) for name in HealthEvent.__dataclass_fields__}


def test_ages_of_passes_and_what_sweeps_found(yard: Yard) -> None:
    now_ms = yard.context.clock.now_ms()
    note = TestNote(kind=IdleTest.LIGHT, at_ms=now_ms - 60_000, status=CheckStatus.PASS)
    yard.tell(IdleTestDone(node=NODE, test=note))
    sweep = SweepNote(number=0, at_ms=now_ms, tests=9, certified=(NODE,), edges=(("a", "b"),))
    yard.tell(SweepDone(pool="GPU_1xA10", sweep=sweep))
    found = series(scraped(yard, HEADERS).text)
    assert 60 <= found[f'airyard_node_passed_age_seconds{{node="{NODE}"}}'] < 160
    assert found[f'airyard_node_paired_age_seconds{{node="{NODE}"}}'] < 100
    assert 'airyard_node_passed_age_seconds{node="sim-1xa10-1"}' not in found
    assert found['airyard_sweeps_total{pool="GPU_1xA10",found="edge"}'] == 1
    assert found['airyard_sweeps_total{pool="GPU_1xA10",found="node"}'] == 0
    assert found['airyard_fabric_faults{pool="GPU_1xA10",what="edge"}'] == 1
    assert found['airyard_fabric_faults{pool="GPU_1xA10",what="leaf"}'] == 0


def test_samples_that_are_old_are_gone() -> None:
    gauges = Gauges()
    sample = Sample(key=MemberKey(1, 0, 0), node="n", time_ms=0, values={"x": 1.0})
    gauges.sampled(Samples(samples=(sample,)), 1_000)
    assert len(gauges.fresh(1_000 + FRESH_MS - 1)) == 1
    assert gauges.fresh(1_000 + FRESH_MS) == []
    assert gauges.fresh(1_000) == []


def test_series_do_not_grow_without_bound() -> None:
    gauges = Gauges()
    gauges.reported([event(f"xid.{number}") for number in range(MOST_SERIES + 10)])
    found = dict(gauges.events())
    assert len(found) == MOST_SERIES + 1
    assert found["", "other", "CRITICAL"] == 10


def test_names_of_others_cannot_break_the_form() -> None:
    odd = 'a"b\\c\nd'
    samples = [(odd, "gpu_1_odd name-é", 1.5), (odd, "x", float(1 << 40))]
    text = metrics_text(ClusterState(), Beside(samples=samples, events=[(("m", odd, "INFO"), 1)]), 0)
    found = series(text)
    assert found['airyard_gpu_odd_name__{node="a\\"b\\\\c\\nd",gpu="1"}'] == 1.5
    assert found['airyard_node_x{node="a\\"b\\\\c\\nd"}'] == 1 << 40
