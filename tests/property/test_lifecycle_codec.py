"""Any event at all survives the journal's encoding, through JSON text and back."""

from __future__ import annotations

import json
import typing
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airyard.core import codec, events
from airyard.core.workload import Workload
from core_samples import RUN

st.register_type_strategy(Workload, st.just(RUN.workload))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))

EVENTS = st.one_of([st.from_type(kind) for kind in typing.get_args(events.Event)])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(EVENTS)
def test_any_event_reads_back_equal(event: Any) -> None:
    kind, tree = codec.encode_event(event)
    assert codec.decode_event(kind, json.loads(json.dumps(tree))) == event
