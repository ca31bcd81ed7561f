"""A round of the soak that pytest did not end well is no good round, whatever its report says."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from tests.soak import Seen, judge


def test_a_round_is_judged_by_its_cases_and_by_how_pytest_ended(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert judge(report, 0, defaultdict(Seen)) == ["pytest wrote no report"]
    report.write_text("<testsuites><testsuite/></testsuites>")
    assert judge(report, 5, defaultdict(Seen)) == ["pytest ended with 5"]
    report.write_text(
        '<testsuites><testsuite><testcase name="test_a_story" time="1"/></testsuite></testsuites>'
    )
    seen: dict[str, Seen] = defaultdict(Seen)
    assert judge(report, 0, seen) == []
    assert judge(report, 2, seen) == ["pytest ended with 2"]
    assert seen["a story"].passes == 2
