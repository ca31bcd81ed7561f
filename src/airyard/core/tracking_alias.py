"""The names an attempt's MLflow run goes by before it exists.

Owns: how the names are derived: from the yard and the attempt alone, so that nobody has to keep them. Must not
know: MLflow's API, who replaces the names and when.

An attempt that could not wait for MLflow gives its user code an alias as ``MLFLOW_RUN_ID`` and
``MLFLOW_EXPERIMENT_ID``. The proxy knows it and puts the real ids in its place, at once or in the replay.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedIds:
    """The ids of a tracked run and its experiment, real ones or an alias."""

    run_id: str
    experiment_id: str

    def named_in(self, text: bytes) -> bool:
        """Whether a query or a body names one of them."""
        return self.run_id.encode() in text or self.experiment_id.encode() in text

    def replaced_in(self, text: bytes, real: TrackedIds) -> bytes:
        """Put ``real`` in the place of these ids, wherever they stand: an alias is too long to be there by chance."""
        return text.replace(self.run_id.encode(), real.run_id.encode()).replace(
            self.experiment_id.encode(), real.experiment_id.encode()
        )


def alias_of(yard: str, attempt_key: str) -> TrackedIds:
    """Return the alias of an attempt: forms that MLflow's client accepts (32 hex characters, 18 digits)."""
    digest = hashlib.sha256(f"airyard tracking alias\n{yard}\n{attempt_key}".encode()).digest()
    number = 10**17 + int.from_bytes(digest[16:], "big") % (9 * 10**17)
    return TrackedIds(run_id=digest[:16].hex(), experiment_id=str(number))
