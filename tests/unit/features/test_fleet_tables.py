"""What sidecars and a trainer make of each other's windows, whatever is lost on the way.

Everything is in decayed calls and seconds: a window of n calls that ended dt seconds ago counts
n e^(-dt/10).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from tests.support.windows import CellSums, attributed, service_window

from attnroute.features.ledger import LEFT_OUT, Ledger
from attnroute.features.merge import FleetTable, Subscriber
from attnroute.features.view import LATE_WINDOWS, OwnWindow, SharedTable
from attnroute.features.window import FleetState, ServiceWindow

DECAY_S = 10.0
A, B = "10.0.0.1:1", "10.0.0.2:1"
GET, PUT = "/cart/Get;bytes=..1024", "/cart/Put;bytes=unknown"


def weight(age_s: float) -> float:
    return math.exp(-age_s / DECAY_S)


def view(now_s: float = 0.0) -> SharedTable:
    return SharedTable(sidecars=4, decay_s=DECAY_S, now_s=now_s)


def trainer(name: str = "trainer-one-----", now_s: float = 0.0, **limits: int) -> FleetTable:
    return FleetTable(
        trainer=name.encode(),
        now_s=now_s,
        classes_max=limits.get("classes_max", 64),
        endpoints_max=limits.get("endpoints_max", 64),
    )


def observe(
    table: SharedTable, cells: dict[tuple[str, str], CellSums], now_s: float, started_s: float = 0
) -> OwnWindow:
    window = service_window(cells, started_s=dict.fromkeys((A, B), started_s))
    return table.observe(window, attributed(window), now_s)[0]


def send(fleet: FleetTable, stream: Subscriber, own: OwnWindow, now_s: float) -> bool:
    return fleet.window(stream, own.number, now_s - own.ended_s, own.window, now_s)


def calls_of(table: SharedTable | FleetTable, now_s: float, name: str, address: str) -> float:
    sums = table.sums(now_s)
    ledger = table.ledger
    if name not in ledger.classes or address not in ledger.endpoints:
        return 0.0
    return float(sums.den[ledger.classes.index(name), ledger.endpoints.index(address)])


def endpoint_calls(table: SharedTable, now_s: float, address: str) -> float:
    sums = table.sums(now_s)
    return float(sums.calls[table.ledger.endpoints.index(address)])


def test_a_sidecar_alone_has_its_own_windows() -> None:
    table = view()
    observe(table, {(GET, A): (10, 0.1)}, 1.0)
    observe(table, {(GET, A): (5, 0.2), (PUT, B): (1, 0.3)}, 2.0)
    assert calls_of(table, 4.0, GET, A) == pytest.approx(10 * weight(3) + 5 * weight(2))
    assert calls_of(table, 4.0, PUT, B) == pytest.approx(weight(2))
    assert endpoint_calls(table, 4.0, A) == pytest.approx(10 * weight(3) + 5 * weight(2))
    sums = table.sums(4.0)
    assert sums.num_s.sum() == pytest.approx(0.1 * weight(3) + 0.5 * weight(2))


def test_what_the_trainer_has_and_what_came_since_count_once() -> None:
    mine, other, fleet = view(), view(), trainer()
    my_stream, other_stream = Subscriber(b"m", ""), Subscriber(b"o", "")
    for table in (mine, other):
        table.opened()
        state = fleet.update(my_stream if table is mine else other_stream, 0.0)
        assert table.update(state, 0.0)
    for second in range(1, 6):
        now_s = float(second)
        send(fleet, other_stream, observe(other, {(PUT, A): (3, 0.3)}, now_s), now_s)
        send(fleet, my_stream, observe(mine, {(GET, A): (7, 0.1)}, now_s), now_s)
        # One that the trainer gets only later.
        late = observe(mine, {(GET, B): (1, 0.1)}, now_s)
        fleet.tick(now_s)
        assert mine.update(fleet.update(my_stream, now_s), now_s)
        past = range(1, second + 1)
        assert calls_of(mine, now_s, GET, A) == pytest.approx(
            sum(7 * weight(second - then) for then in past), rel=1e-6
        )
        assert calls_of(mine, now_s, PUT, A) == pytest.approx(
            sum(3 * weight(second - then) for then in past), rel=1e-6
        )
        assert calls_of(mine, now_s, GET, B) == pytest.approx(
            sum(weight(second - then) for then in past), rel=1e-6
        )
        assert mine.sidecars == 2
        assert send(fleet, my_stream, late, now_s)
    # What is not sent any more decays at the receiver.
    assert calls_of(mine, 15.0, PUT, A) == pytest.approx(
        sum(3 * weight(15 - then) for then in range(1, 6)), rel=1e-6
    )


def test_an_update_after_the_first_has_only_what_changed() -> None:
    fleet, stream, other = trainer(), Subscriber(b"m", ""), Subscriber(b"o", "")
    own = observe(view(), {(GET, A): (1, 0.1), (PUT, B): (1, 0.1)}, 0.0)
    send(fleet, stream, own, 0.0)
    fleet.tick(0.0)
    first = fleet.update(stream, 0.0)
    assert first.full
    assert first.endpoints == (A, B)
    fleet.tick(1.0)
    assert fleet.update(stream, 1.0).classes == ()
    again = observe(view(), {(PUT, B): (1, 0.1)}, 1.5)
    fleet.window(other, 1, 0.0, again.window, 1.5)
    fleet.tick(2.0)
    third = fleet.update(stream, 2.0)
    assert not third.full
    assert (third.sequence, third.classes, third.endpoints) == (3, (PUT,), (B,))
    assert third.watermark == 1
    assert third.cell_calls[0] == pytest.approx(weight(2.0) + weight(0.5))
    assert third.calls[0] == pytest.approx(weight(2.0) + weight(0.5))


def test_a_lost_update_is_noticed_and_the_next_stream_mends_it() -> None:
    table, fleet, stream = view(), trainer(), Subscriber(b"m", "")
    table.opened()
    assert table.update(fleet.update(stream, 0.0), 0.0)
    for second in (1.0, 2.0):
        send(fleet, Subscriber(b"o", ""), observe(view(), {(GET, A): (4, 0.1)}, second), second)
        fleet.tick(second)
        lost_or_not = fleet.update(stream, second)
        fleet.window(Subscriber(f"{second}".encode(), ""), 1, 0.0, empty(), second)
    assert not table.update(lost_or_not, 2.0)  # the one of second 1 never came
    assert table.sums(2.0).is_empty()
    table.opened()
    assert not table.update(lost_or_not, 2.0)  # nothing but a whole state begins a stream
    assert table.update(fleet.update(Subscriber(b"m", ""), 2.0), 2.0)
    assert calls_of(table, 2.0, GET, A) == pytest.approx(4 * weight(1), rel=1e-6)


def empty() -> ServiceWindow:
    return service_window({}, extra_endpoints=(A,))


def test_an_update_that_comes_again_or_too_late_changes_nothing() -> None:
    table, fleet, stream, other = view(), trainer(), Subscriber(b"m", ""), Subscriber(b"o", "")
    table.opened()
    states = [fleet.update(stream, 0.0)]
    for second in (1.0, 2.0):
        fleet.window(other, int(second), 0.0, service_window({(GET, A): (4, 0.1)}), second)
        fleet.tick(second)
        states.append(fleet.update(stream, second))
    for state in states:
        assert table.update(state, 2.0)
    right = calls_of(table, 2.0, GET, A)
    for state in (states[1], states[2], states[0], states[1]):
        assert table.update(state, 2.0)
        assert calls_of(table, 2.0, GET, A) == right
    assert table.updates == 3


def test_a_window_that_comes_again_counts_once() -> None:
    fleet, stream = trainer(), Subscriber(b"m", "")
    own = observe(view(), {(GET, A): (4, 0.1)}, 0.0)
    assert send(fleet, stream, own, 0.0)
    assert not send(fleet, stream, own, 0.0)
    # Over another stream of the same sidecar, too.
    assert not send(fleet, Subscriber(b"m", ""), own, 0.0)
    assert calls_of(fleet, 0.0, GET, A) == 4


def test_a_window_that_is_late_weighs_less() -> None:
    fleet = trainer()
    own = observe(view(), {(GET, A): (4, 0.1)}, 0.0)
    send(fleet, Subscriber(b"m", ""), own, 5.0)
    assert calls_of(fleet, 5.0, GET, A) == pytest.approx(4 * weight(5))
    fleet.window(Subscriber(b"x", ""), 1, 1e9, own.window, 5.0)
    fleet.window(Subscriber(b"y", ""), 1, math.nan, own.window, 5.0)
    assert calls_of(fleet, 5.0, GET, A) == pytest.approx(4 * weight(5))


def test_without_its_trainer_a_sidecar_goes_on_with_its_own() -> None:
    table, fleet, stream = view(), trainer(), Subscriber(b"m", "")
    table.opened()
    table.update(fleet.update(stream, 0.0), 0.0)
    fleet.window(Subscriber(b"o", ""), 1, 0.0, service_window({(PUT, B): (100, 1.0)}), 1.0)
    send(fleet, stream, observe(table, {(GET, A): (4, 0.1)}, 1.0), 1.0)
    fleet.tick(1.0)
    table.update(fleet.update(stream, 1.0), 1.0)
    for second in range(2, 101):  # no update any more
        observe(table, {(GET, A): (4, 0.1)}, float(second))
    expected = sum(4 * weight(100 - then) for then in range(1, 101))
    assert calls_of(table, 100.0, GET, A) == pytest.approx(expected, rel=1e-6)
    assert calls_of(table, 100.0, PUT, B) == pytest.approx(100 * weight(99), rel=1e-6)
    assert table.sidecars == 2
    assert len(table.late(0)) == LATE_WINDOWS


def test_a_restarted_trainer_neither_loses_nor_doubles() -> None:
    first, second = trainer("trainer-one-----"), trainer("trainer-two-----", 3.0)
    mine, other = view(), view()
    sent: dict[int, list[int]] = {0: [], 1: []}
    streams = [Subscriber(b"m", ""), Subscriber(b"o", "")]
    for index, table in enumerate((mine, other)):
        table.opened()
        table.update(first.update(streams[index], 0.0), 0.0)

    def one_second(now_s: float, fleet: FleetTable) -> None:
        for index, table in enumerate((mine, other)):
            observe(table, {(GET, A): (4 + index, 0.1)}, now_s)
            for own in table.late(sent[index][-1] if sent[index] else 0):
                assert send(fleet, streams[index], own, now_s)
                sent[index].append(own.number)
        fleet.tick(now_s)
        for index, table in enumerate((mine, other)):
            assert table.update(fleet.update(streams[index], now_s), now_s)

    one_second(1.0, first)
    one_second(2.0, first)
    # The trainer dies; a window ends in the meantime, which nobody has.
    for index, table in enumerate((mine, other)):
        observe(table, {(GET, A): (4 + index, 0.1)}, 3.0)
        table.opened()
        streams[index] = Subscriber(streams[index].sidecar, "")
        assert table.update(second.update(streams[index], 3.0), 3.0)
    for now_s in (4.0, 5.0):
        one_second(now_s, second)
    expected = sum(9 * weight(5 - then) for then in range(1, 6))
    for table in (mine, other):
        assert calls_of(table, 5.0, GET, A) == pytest.approx(expected, rel=1e-6)
    # Back at the first one, which still has what it had: its sums are not counted twice.
    mine.opened()
    assert mine.update(first.update(Subscriber(b"m", ""), 5.0), 5.0)
    before = sum(9 * weight(5 - then) for then in (1, 2))
    after = sum(9 * weight(5 - then) for then in (3, 4, 5))
    assert calls_of(mine, 5.0, GET, A) == pytest.approx(before + after, rel=1e-6)


def test_two_trainers_do_not_mix() -> None:
    """Two sidecars, each at a trainer of its own: each has its own calls, nothing flips."""
    tables, fleets = [view(), view()], [trainer("trainer-one-----"), trainer("trainer-two-----")]
    streams = [Subscriber(b"m", ""), Subscriber(b"o", "")]
    for table, fleet, stream in zip(tables, fleets, streams, strict=True):
        table.opened()
        table.update(fleet.update(stream, 0.0), 0.0)
    for second in range(1, 20):
        now_s = float(second)
        for index, (table, fleet, stream) in enumerate(zip(tables, fleets, streams, strict=True)):
            send(fleet, stream, observe(table, {(GET, A): (index + 1, 0.1)}, now_s), now_s)
            fleet.tick(now_s)
            assert table.update(fleet.update(stream, now_s), now_s)
            expected = sum(weight(second - then) for then in range(1, second + 1)) * (index + 1)
            assert calls_of(table, now_s, GET, A) == pytest.approx(expected, rel=1e-6)
            assert table.sidecars == 1


def test_a_restarted_endpoint_starts_from_nothing_everywhere() -> None:
    mine, other, fleet = view(), view(), trainer()
    streams = {id(mine): Subscriber(b"m", ""), id(other): Subscriber(b"o", "")}
    for table in (mine, other):
        table.opened()
        table.update(fleet.update(streams[id(table)], 0.0), 0.0)

    def exchange(now_s: float, *, mine_started_s: float, other_started_s: float) -> None:
        for table, started_s in ((mine, mine_started_s), (other, other_started_s)):
            own = observe(table, {(GET, A): (4, 0.1), (GET, B): (1, 0.1)}, now_s, started_s)
            send(fleet, streams[id(table)], own, now_s)
        fleet.tick(now_s)
        for table in (mine, other):
            assert table.update(fleet.update(streams[id(table)], now_s), now_s)

    exchange(1.0, mine_started_s=0, other_started_s=0)
    exchange(2.0, mine_started_s=100, other_started_s=0)  # a first report is no restart
    assert calls_of(other, 2.0, GET, A) == pytest.approx(8 * (1 + weight(1)), rel=1e-6)
    exchange(3.0, mine_started_s=200, other_started_s=100)  # one sees it first
    # What the other one still measured of the old process does not count.
    for table in (mine, other):
        assert calls_of(table, 3.0, GET, A) == pytest.approx(4, rel=1e-6)
    exchange(4.0, mine_started_s=200, other_started_s=200)
    for table in (mine, other):
        assert calls_of(table, 4.0, GET, A) == pytest.approx(8 + 4 * weight(1), rel=1e-6)


def test_the_number_of_sidecars_is_that_of_those_who_call() -> None:
    fleet = trainer()
    streams = [Subscriber(bytes([index]), "") for index in range(3)]
    for second in range(1, 6):
        for index, stream in enumerate(streams):
            cells = {} if index == 2 or (index == 1 and second > 1) else {(GET, A): (1.0, 0.1)}
            fleet.window(stream, second, 0.0, service_window(cells), float(second))
        fleet.tick(float(second))
        assert fleet.sidecars == (2 if second <= 3 else 1)
    assert fleet.watching == 3


def test_names_beyond_the_limits_share_or_are_left_out() -> None:
    fleet = trainer(classes_max=2, endpoints_max=1)
    window = service_window(
        {(GET, A): (1, 0.1), (PUT, A): (2, 0.1), ("/x", A): (4, 0.1), ("/y", B): (8, 0.1)}
    )
    fleet.window(Subscriber(b"m", ""), 1, 0.0, window, 0.0)
    ledger = fleet.ledger
    assert ledger.classes == [GET, PUT, "other"]
    assert ledger.endpoints == [A]
    assert calls_of(fleet, 0.0, "other", A) == 4
    assert ledger.folded >= 2
    assert ledger.left_out == 1


def test_cells_that_cannot_be_true_are_dropped_alone() -> None:
    fleet = trainer()
    window = service_window({(GET, A): (1, 0.1), (PUT, A): (2, 0.1)})
    broken = replace(window, cells=replace(window.cells, estimated_s=np.array([math.nan, 0.1])))
    fleet.window(Subscriber(b"m", ""), 1, 0.0, broken, 0.0)
    assert calls_of(fleet, 0.0, GET, A) == 0
    assert calls_of(fleet, 0.0, PUT, A) == 2
    assert fleet.dropped_cells == 1
    assert np.isfinite(fleet.sums(1.0).num_s).all()


def test_time_that_goes_back_changes_nothing() -> None:
    table = view(10.0)
    observe(table, {(GET, A): (4, 0.1)}, 10.0)
    assert calls_of(table, 5.0, GET, A) == 4
    assert calls_of(table, 11.0, GET, A) == pytest.approx(4 * weight(1))


def test_round_trips_are_those_of_the_own_zone() -> None:
    fleet = trainer()
    for index, (zone, rtt_s) in enumerate([("x", 0.001), ("x", 0.002), ("y", 0.030)]):
        window = service_window({(GET, A): (1, 0.1)}, rtt_s={A: rtt_s})
        fleet.window(Subscriber(bytes([index]), zone), 1, 0.0, window, 0.0)
    fleet.tick(0.0)
    for zone, expected in (("x", 0.001), ("y", 0.030), ("z", math.nan)):
        state = fleet.update(Subscriber(b"new", zone), 0.0)
        assert state.rtt_s[0] == pytest.approx(expected, nan_ok=True)
    table = view()
    table.opened()
    table.update(fleet.update(Subscriber(b"new2", "y"), 0.0), 0.0)
    assert table.fleet_rtt_s(A) == 0.030
    assert math.isnan(table.fleet_rtt_s(B))


def test_concurrency_is_the_reported_one_else_learned_from_everybody() -> None:
    fleet, streams = trainer(), [Subscriber(b"m", ""), Subscriber(b"o", "")]
    for second in range(1, 9):
        for stream in streams:
            # Ten calls each: only together are they a window of 20.
            window = service_window(
                {(GET, A): (10, 0.1), (GET, B): (10, 0.1)}, inflight=4.0, concurrency={B: 8.0}
            )
            fleet.window(stream, second, 0.0, window, float(second))
        fleet.tick(float(second))
    state = fleet.update(streams[0], 9.0)
    assert dict(zip(state.endpoints, state.concurrency, strict=True)) == {A: 4.0, B: 8.0}
    table = view()
    table.opened()
    table.update(state, 9.0)
    assert table.fleet_concurrency(A) == 4.0


def test_names_that_have_decayed_go() -> None:
    table = view()
    observe(table, {(GET, A): (1, 0.1)}, 0.0)
    observe(table, {(PUT, B): (1, 0.1)}, 400.0)
    assert table.prune((), (A,)) is not None
    assert table.ledger.classes == [PUT]
    assert table.ledger.endpoints == [A, B]
    assert calls_of(table, 400.0, PUT, B) == 1
    assert table.prune((), (A,)) is None

    fleet, stream = trainer(), Subscriber(b"m", "")
    fleet.window(stream, 1, 0.0, service_window({(GET, A): (1, 0.1)}), 0.0)
    fleet.window(stream, 2, 0.0, service_window({(PUT, B): (1, 0.1)}), 400.0)
    for _ in range(60):
        fleet.tick(400.0)
    assert fleet.ledger.classes == [PUT]
    state = fleet.update(stream, 400.0)
    assert (state.classes, state.endpoints, list(state.cell_calls)) == ((PUT,), (B,), [1.0])
    for _ in range(60):
        fleet.tick(500.0)
    assert fleet.watching == 0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_lost_the_sums_are_never_more_than_the_calls(seed: int) -> None:
    """Three sidecars and two trainers; streams break, updates are lost, windows are late."""
    rng = random.Random(seed)
    fleets = [trainer("trainer-one-----"), trainer("trainer-two-----")]
    tables = [view() for _ in range(3)]
    at: list[tuple[FleetTable, Subscriber, int] | None] = [None] * 3
    ended: list[float] = []
    for second in range(1, 60):
        now_s = float(second)
        for index, table in enumerate(tables):
            observe(table, {(GET, A): (1, 0.01)}, now_s)
            ended.append(now_s)
            state = at[index]
            if state is None and rng.random() < 0.7:
                fleet = rng.choice(fleets)
                stream = Subscriber(bytes([index]) * 16, "")
                table.opened()
                assert table.update(fleet.update(stream, now_s), now_s)
                state = (fleet, stream, 0)
            if state is not None:
                fleet, stream, sent = state
                for own in table.late(sent):
                    fleet.window(stream, own.number, now_s - own.ended_s, own.window, now_s)
                    sent = own.number
                state = (fleet, stream, sent)
                if rng.random() < 0.15:
                    state = None  # before the trainer could say that it has them
            at[index] = state
        for fleet in fleets:
            fleet.tick(now_s)
        true = sum(weight(now_s - then) for then in ended)
        for index, table in enumerate(tables):
            state = at[index]
            if state is not None:
                fleet, stream, _ = state
                update = fleet.update(stream, now_s)
                if rng.random() < 0.1 or not table.update(update, now_s):
                    at[index] = None
            found = calls_of(table, now_s, GET, A)
            alone = sum(weight(now_s - then) for then in range(1, second + 1))
            assert alone * 0.99 <= found <= true * DOUBT, (seed, second, index)


DOUBT = 2.0
"""A window whose receipt got lost may stand in two trainers' sums until it has decayed; never in
more, and never does a sidecar lack its own."""


def test_a_ledger_leaves_out_what_another_incarnation_measured() -> None:
    ledger = Ledger("only", classes_max=4, endpoints_max=4)
    none, again = ledger.columns((A,), np.array([5.0]), 0.0, "newer")
    assert (list(none), again) == ([0], [])
    assert list(ledger.columns((A,), np.array([4.0]), 1.0, "newer")[0]) == [LEFT_OUT]
    assert list(ledger.columns((A,), np.array([6.0]), 1.0, "never")[0]) == [LEFT_OUT]
    assert ledger.columns((A,), np.array([6.0]), 1.0, "newer")[1] == [0]
    # Nobody has named 6 for 10 s: the endpoint's clock was set back.
    assert ledger.columns((A,), np.array([2.0]), 11.0, "newer")[1] == [0]
    assert ledger.columns((A,), np.array([1.0]), 11.0, "any")[1] == [0]
    for unknown in (0.0, math.nan, -1.0):
        assert list(ledger.columns((A,), np.array([unknown]), 12.0, "any")[0]) == [0]
    assert ledger.incarnation[0] == 1.0


def test_states_are_told_apart_by_their_trainer() -> None:
    table = view()
    state = FleetState(
        trainer=b"t", sequence=1, full=True, sidecars=0, watermark=0, classes=(), endpoints=(),
        started_s=np.zeros(0), busy_s=np.zeros(0), calls=np.zeros(0), rtt_s=np.zeros(0),
        concurrency=np.zeros(0), cell_class=np.zeros(0, np.intp),
        cell_endpoint=np.zeros(0, np.intp), cell_s=np.zeros(0), cell_calls=np.zeros(0),
    )  # fmt: skip
    assert not table.update(state, 0.0)  # no stream is open
    table.opened()
    assert table.update(state, 0.0)
    assert table.trainer == b"t"
    assert table.sidecars == 4  # nobody calls: what is known stays
