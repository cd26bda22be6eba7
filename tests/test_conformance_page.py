"""docs/conformance.md is there, of the current behaviour, and names every suite that exists."""

from __future__ import annotations

from tests.conformance.page import (
    FORWARD_BEHAVIOUR,
    ROOT,
    Row,
    page,
    read_results,
    recorded,
    suites,
)

RERUN = "run `make conformance` and commit docs/conformance.md"


def test_the_page_is_current() -> None:
    behaviour, passed = recorded((ROOT / "docs" / "conformance.md").read_text(encoding="utf-8"))
    assert behaviour == FORWARD_BEHAVIOUR, RERUN
    wanted = {(suite, check) for suite, checks in suites().items() for check in checks}
    assert wanted, "no suite was found: this test is void"
    assert wanted <= passed, f"missing or failed: {wanted - passed}; {RERUN}"


def test_a_page_says_what_the_results_say() -> None:
    xml = """<testsuites><testsuite>
        <testcase classname="tests.conformance.check_go_peer" name="test_a_b" time="1.5"/>
        <testcase classname="tests.conformance.check_go_peer" name="test_c" time="0.1">
          <failure message="no"/></testcase>
        <testcase classname="tests.conformance.check_js_peer" name="test_d"><skipped/></testcase>
    </testsuite></testsuites>"""
    rows = read_results(xml)
    assert rows == [
        Row("go_peer", "a b", passed=True, seconds=1.5),
        Row("go_peer", "c", passed=False, seconds=0.1),
        Row("js_peer", "d", passed=False, seconds=0.0),
    ]
    behaviour, passed = recorded(page(rows, {"FORWARD_BEHAVIOUR": "7"}))
    assert (behaviour, passed) == (7, {("go_peer", "a b")})
