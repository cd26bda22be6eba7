"""The control side's exposition: valid, complete, and without series of what is gone."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from attnroute.admin.metrics import ControlMetrics, join


def samples(page: bytes) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_every_family_has_help_and_no_creation_time() -> None:
    metrics = ControlMetrics("1.2.3")
    metrics.policy_reloaded("applied")
    metrics.source_failed("cart", "file", "error")
    metrics.source_state("cart", stale=True)
    families = list(text_string_to_metric_families(metrics.render().decode()))
    ours = [family for family in families if family.name.startswith("attnroute_")]
    assert all(family.documentation for family in ours)
    assert not [family.name for family in ours if family.name.endswith("_created")]
    assert {family.name for family in ours} == {
        "attnroute_admin_limit_hits",
        "attnroute_admin_watches",
        "attnroute_build_info",
        "attnroute_discovery_errors",
        "attnroute_discovery_stale",
        "attnroute_discovery_updates",
        "attnroute_out_of_band_endpoints",
        "attnroute_out_of_band_failures",
        "attnroute_out_of_band_left_out",
        "attnroute_out_of_band_reports",
        "attnroute_policy_applied_timestamp_seconds",
        "attnroute_policy_generation",
        "attnroute_policy_info",
        "attnroute_policy_rejected",
        "attnroute_policy_reloads",
        "attnroute_spans",
        "attnroute_tick_duration_seconds",
    }


def test_series_of_out_of_band_reports_leave_with_their_service() -> None:
    metrics = ControlMetrics("1.2.3")
    for service in ("cart", "shop"):
        metrics.out_of_band_followed(service, 2, 1)
        metrics.out_of_band_report(service)
        metrics.out_of_band_failure(service, "UNIMPLEMENTED")
        metrics.out_of_band_failure(service, "silent")
    metrics.out_of_band_gone("cart")
    values = {
        (name.removeprefix("attnroute_out_of_band_"), dict(labels)["service"]): value
        for (name, labels), value in samples(metrics.render()).items()
        if name.startswith("attnroute_out_of_band_")
    }
    assert values == {
        ("endpoints", "shop"): 2,
        ("left_out", "shop"): 1,
        ("reports_total", "shop"): 1,
        ("failures_total", "shop"): 1,
    }


def test_counters_exist_before_their_first_event() -> None:
    values = samples(ControlMetrics("1.2.3").render())
    for result in ("applied", "rejected", "unchanged"):
        assert values["attnroute_policy_reloads_total", (("result", result),)] == 0
    assert values["attnroute_admin_limit_hits_total", (("limit", "admin_watches"),)] == 0


def test_rejected_is_an_alarm_that_ends() -> None:
    metrics = ControlMetrics("1.2.3")
    seen = []
    for result in ("rejected", "applied", "rejected", "unchanged"):
        metrics.policy_reloaded(result)
        seen.append(samples(metrics.render())["attnroute_policy_rejected", ()])
    assert seen == [1, 0, 1, 0]


def test_only_the_hash_in_force_has_a_series() -> None:
    metrics = ControlMetrics("1.2.3")
    metrics.policy_applied("aa", 1, 100.0)
    metrics.policy_applied("bb", 2, 200.5)
    values = samples(metrics.render())
    assert values["attnroute_policy_info", (("sha256", "bb"),)] == 1
    assert ("attnroute_policy_info", (("sha256", "aa"),)) not in values
    assert values["attnroute_policy_generation", ()] == 2
    assert values["attnroute_policy_applied_timestamp_seconds", ()] == 200.5


def test_series_of_a_source_that_is_gone_go_too() -> None:
    metrics = ControlMetrics("1.2.3")
    for service in ("cart", "search"):
        metrics.source_updated(service, "file")
        metrics.source_failed(service, "file", "empty")
        metrics.source_state(service, stale=True)
    metrics.source_gone("cart", "file")
    values = samples(metrics.render())
    left = {labels for name, labels in values if name.startswith("attnroute_discovery")}
    assert {dict(labels)["service"] for labels in left} == {"search"}


def test_failures_of_a_source_are_told_apart_and_there_before_the_first() -> None:
    metrics = ControlMetrics("1.2.3")
    metrics.source_updated("cart", "dns")

    def errors() -> dict[str, float]:
        return {
            dict(labels)["reason"]: value
            for (name, labels), value in samples(metrics.render()).items()
            if name == "attnroute_discovery_errors_total"
        }

    assert errors() == {"error": 0, "empty": 0, "refused": 0}
    metrics.source_failed("cart", "dns", "empty")
    metrics.source_failed("cart", "dns", "empty")
    metrics.source_failed("cart", "dns", "refused")
    assert errors() == {"error": 0, "empty": 2, "refused": 1}


def test_stale_is_what_was_said_last() -> None:
    metrics = ControlMetrics("1.2.3")
    seen = []
    for stale in (False, True, False):
        metrics.source_state("cart", stale=stale)
        seen.append(samples(metrics.render())["attnroute_discovery_stale", (("service", "cart"),)])
    assert seen == [0, 1, 0]


def test_the_process_is_described() -> None:
    values = samples(ControlMetrics("1.2.3").render())
    assert values["process_resident_memory_bytes", ()] > 0


def test_watches_are_read_at_every_scrape() -> None:
    metrics, open_watches = ControlMetrics("1.2.3"), [3, 5]
    metrics.watch_streams(lambda: open_watches.pop(0))
    assert samples(metrics.render())["attnroute_admin_watches", ()] == 3
    assert samples(metrics.render())["attnroute_admin_watches", ()] == 5


def test_join_keeps_lines_apart() -> None:
    assert join([b"a 1", b"", b"b 2\n"]) == b"a 1\nb 2\n"
