"""Limits of health checks: whose they are, and what is wrong with a file of a site's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airyard.checks.thresholds import generation_of, limits, load, of_pool, packaged
from airyard.core.errors import UserError
from airyard.core.health.limit_names import NAMES, TABLES


@pytest.mark.parametrize(
    ("product", "generation"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 PCIe", ""),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB300", "B300"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A1000", ""),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GeForce RTX 4090", ""),
        ("", ""),
    ],
)
def test_generations_by_product_names(product: str, generation: str) -> None:
    assert generation_of(product) == generation


def test_a_generation_has_its_own_limits_over_those_of_all() -> None:
    h100, unknown = limits(packaged(), "H100"), limits(packaged(), "")
    assert h100["nvlinks"] == 18
    assert unknown.get("nvlinks") is None
    assert h100["ecc_corrected_fail"] == unknown["ecc_corrected_fail"] == 50_000_000
    assert all(h100.sources.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[H100]\nnvlinks = 12\n", "it does not say its version; this release reads 1"),
        ("version = 2\n", "its version is 2; this release reads 1"),
        ("version = 1\n[H100]\nnvlinks = 'x'\n", "[H100] nvlinks is no number: 'x' (line 3)"),
        ("version = 1\n[H100]\nnvlinks = true\n", "[H100] nvlinks is no number: True"),
        ("version = 1\n[H100]\nnvlinks = -1\n", "[H100] nvlinks is no number from 0: -1"),
        ("version = 1\n[H100]\nnvlinks = nan\n", "[H100] nvlinks is no number from 0: nan"),
        ("version = 1\n[h100]\nnvlinks = 1\n", "A10, A100, H100, H200, GH200, B200, GB200, B300) (line 2)"),
        ("version = 1\n[all]\ncpus_least = 2\n# x\n[H100] # one\ncpus_least = -1\n", "-1 (line 6)"),
        ("version = 1\n[all]\ndisk_free_share_fail = 5\n", "is no share: those are 0 to 1: 5 (line 3)"),
        ("version = 1\n[all]\ncpus_least = { value = -1, source = 'x' }\n", "from 0: -1 (line 3)"),
        ("version = 1\n[H100]\nnvlink = 12\n", "[H100] nvlink: no check asks for it (line 3)"),
        ("version = 1\nnvlinks = 12\n", "nvlinks is no table"),
        ("version = 1\n[H100\n", "line 2"),
        (f"version = 1\n[all]\ncpus_least = {'9' * 400}\n", "cpus_least is no number up to 1e15: 999"),
        (f"version = 1\n[all]\ncpus_least = {'9' * 9000}\n", "cannot be used: "),
        ("version = 1\n[all]\ncpus_least = inf\n", "no number up to 1e15: inf"),
        ("version = 1\nx = " + "[" * 100_000, "cannot be used: "),
        ("version = 1\n[all]\ncpus_least = " + repr("x" * 5_000), "(cut: 5002 characters)"),
        ('version = 1\n["\\u001b[31m"]\n', "[\\x1b[31m] is neither"),
        ("# " + "x" * (1 << 20) + "\nversion = 1\n", "it has more than 1 MiB"),
    ],
)
def test_a_file_with_an_error_is_refused_by_table_and_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load(path)
    assert caught.value.code == "BAD_THRESHOLDS"
    assert words in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("text", ["[H100]\nnvlinks = 12\n", "version = '1'\n", "[all]\nversion = 1\n"])
def test_the_next_step_for_a_version_mends_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load(path)
    assert "Begin the file with the line `version = 1`" in str(caught.value.fix)
    path.write_text("version = 1\n[H100]\nnvlinks = 12\n")
    assert limits(load(path), "H100")["nvlinks"] == 12


def test_a_pipe_in_place_of_a_file_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "limits.toml")
    with pytest.raises(UserError, match="it does not say its version"):
        load(tmp_path / "limits.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory$") as refused:
        load(tmp_path / "none.toml")
    assert refused.value.fix is not None
    assert refused.value.fix.text == "Check its path and its rights."


def test_own_limits_change_what_they_name_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("version = 1\n[all]\ndisk_free_gib_warn = 5\n[GH200]\nnvlinks = 0\n")
    table = load(path)
    assert limits(table, "GH200")["nvlinks"] == 0
    assert limits(table, "H100")["disk_free_gib_warn"] == 5
    assert limits(table, "H100").sources["disk_free_gib_warn"] == "site"
    assert limits(table, "H100")["nvlinks"] == 18


def test_the_names_and_tables_known_without_the_file_are_those_of_the_file() -> None:
    table = packaged()
    assert {name for values in table.values() for name in values} == NAMES
    assert set(table) <= set(TABLES)


def test_an_upper_layer_goes_before_a_lower_one_whatever_its_table(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("version = 1\n[all]\nnvlinks = 4\ncopy_gb_s = 30\n[A100]\nnvlinks = 6\n")
    table = of_pool(load(path), {"all": {"copy_gb_s": 20}, "H100": {"nvlinks": 10}}, "train")
    h100, a100 = limits(table, "H100"), limits(table, "A100")
    assert (h100["nvlinks"], h100.sources["nvlinks"]) == (10, "pool train")
    assert (h100["copy_gb_s"], a100["copy_gb_s"], limits(table, "")["copy_gb_s"]) == (20, 20, 20)
    assert (a100["nvlinks"], a100.sources["nvlinks"]) == (6, "site")
    assert limits(table, "H200")["nvlinks"] == 4, "the machine's [all] goes before the packaged [H200]"


def test_what_a_newer_server_says_of_limits_that_this_release_has_not_is_left_out() -> None:
    told = {"all": {"not_yet": 3, "cpus_least": 2}, "H900": {"nvlinks": 99}}
    assert limits(of_pool(packaged(), told, "p"), "H100")["cpus_least"] == 2
    assert of_pool(packaged(), {"H900": {"nvlinks": 99}}, "p") == packaged()
