"""The names of the limits of health checks, for whoever declares limits without the checks at hand.

Owns: which tables and names there are. Must not know: values, what a limit is for (``checks/data/thresholds.toml``).
"""

from __future__ import annotations

EVERYWHERE = "all"
TABLES = (EVERYWHERE, "A10", "A100", "H100", "H200", "GH200", "B200", "GB200", "B300")
"""``all``, and the generations of GPUs that are told apart: each board counts as one of them, or only has ``all``."""

NAMES = frozenset(
    {
        "all_reduce_gb_s",
        "cache_free_gib_fail",
        "cache_free_gib_warn",
        "clock_drift_mhz_fail",
        "clock_drift_mhz_warn",
        "clock_skew_ms_fail",
        "clock_skew_ms_warn",
        "copy_gb_s",
        "cpus_least",
        "disk_free_gib_warn",
        "disk_free_share_fail",
        "disk_free_share_warn",
        "disk_sync_ms_fail",
        "ecc_corrected_fail",
        "ecc_corrected_warn",
        "foreign_memory_mib_fail",
        "gdr_gbit_s",
        "gemm_fleet_share",
        "gemm_spread_warn",
        "gemm_tflops",
        "idle_power_w_least",
        "idle_power_w_most",
        "idle_temperature_warn",
        "load_corrected_fail",
        "margin_c_least",
        "memory_gb_s",
        "memory_gib_least",
        "memory_share_warn",
        "mount_ms_fail",
        "mtu_least",
        "nodes_gb_s",
        "nofile_warn",
        "nproc_warn",
        "nvlink_mb_s",
        "nvlink_share_fail",
        "nvlinks",
        "nvme_least",
        "nvswitch",
        "pcie_replays_fail",
        "pcie_width",
        "peer_gb_s",
        "peer_share_fail",
        "power_limit_share",
        "power_limit_w",
        "rdma_gbit_s_least",
        "rdma_ports_least",
        "remapped_uncorrected_fail",
        "resolve_ms_fail",
        "retired_pages_fail",
        "shm_free_share_warn",
        "shm_mib_least",
        "shm_mib_per_gpu",
        "small_message_share",
        "sram_corrected_fail",
        "storage_mb_s",
        "storage_share_warn",
        "subnet_manager",
    }
)
"""A test holds them against the packaged file."""

Limit = tuple[str, str, float]
"""Table, name, value."""


_MOST = 1e15


def wrong_with(name: str, value: object) -> str:
    """Return why a limit cannot have a value; empty: it can."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return "no number from 0"
    if value > _MOST:
        return "no number up to 1e15"
    return "no share: those are 0 to 1" if "_share" in name and value > 1 else ""
