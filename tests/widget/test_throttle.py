"""When to send, with a clock that only moves when told to."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cockpit_widget.throttle import Bucket, KeyframeSchedule, Limits, Throttle
from tests.widget.fakes import FakeClock


def send_times(
    throttle: Throttle, clock: FakeClock, seconds: float, size: int = 2_000, cost: float = 0.0
) -> list[float]:
    """Ask a thousand times a second, send whenever it is due."""
    times, end = [], clock.now + seconds
    while clock.now < end:
        if throttle.due():
            times.append(clock.now)
            clock.advance(cost)
            throttle.sent(size, cost, cost)
        clock.advance(0.001)
    return times


def test_five_messages_a_second_are_the_default() -> None:
    clock = FakeClock()
    assert 48 <= len(send_times(Throttle(clock=clock), clock, 10.0)) <= 50


def test_no_more_than_ten_a_second_are_sent_whatever_was_asked_for() -> None:
    clock = FakeClock()
    assert len(send_times(Throttle(1000.0, clock=clock), clock, 10.0)) <= 100


def test_a_long_run_is_shown_less_often() -> None:
    clock = FakeClock()
    throttle = Throttle(clock=clock)
    clock.advance(61)
    assert throttle.interval() == 1.0
    clock.advance(3600)
    assert throttle.interval() == 5.0


def test_a_rate_that_was_asked_for_does_not_back_off_with_age() -> None:
    clock = FakeClock()
    throttle = Throttle(2.0, clock=clock)
    clock.advance(7200)
    assert throttle.interval() == 0.5


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="refresh_rate must be positive"):
        Throttle(rate)


@pytest.mark.parametrize("cost", [0.002, 0.05])
def test_slow_sending_slows_the_pace_until_it_costs_one_percent(cost: float) -> None:
    clock = FakeClock()
    times = send_times(Throttle(10.0, clock=clock), clock, 120.0, cost=cost)
    assert 0.004 * 120 < len(times) * cost < 0.015 * 120


def test_start_is_not_much_dearer_than_the_rest() -> None:
    """The burst was a tenth of a second once: two percent of the first five seconds by itself."""
    clock = FakeClock()
    cost = 0.003
    assert len(send_times(Throttle(clock=clock), clock, 5.0, cost=cost)) * cost < 0.015 * 5


def test_what_a_message_costs_after_it_was_handed_over_counts_too() -> None:
    """The kernel's own thread sends them, and training finds cold caches."""
    clock, dear = FakeClock(), Limits(after_sending=4.0)
    assert len(send_times(Throttle(10.0, clock=clock, limits=dear), clock, 60.0, cost=0.002)) * 0.01 < 0.015 * 60


def test_sharing_the_machine_does_not_make_messages_cheaper() -> None:
    """Two on each core: training gets half the processor, so half the work is the same share of it."""
    clock = FakeClock()
    throttle, sent = Throttle(10.0, clock=clock), 0
    while clock.now < 120:
        if throttle.due():
            throttle.sent(2_000, 0.006, 0.003)
            sent += 1
        clock.advance(0.01)
    assert 0.004 * 120 < sent * 0.006 < 0.01 * 120


def test_others_on_the_machine_do_not_silence_the_cockpit() -> None:
    """A message that was interrupted for a tenth of a second once kept it quiet for eleven; now that counts a quarter."""
    clock = FakeClock()
    throttle = Throttle(clock=clock)
    throttle.sent(2_000, 0.1, 0.002)
    assert throttle.next < clock.now + 1.0
    throttle.sent(2_000, 10.0, 0.002)  # this is no interruption: whatever we wait for is slow
    assert throttle.next == pytest.approx(clock.now + throttle.limits.longest_pause)


def test_quick_sending_is_not_slowed() -> None:
    clock = FakeClock()
    assert len(send_times(Throttle(clock=clock), clock, 30.0, cost=0.0008)) > 140
    free = Limits(after_sending=0.0)
    assert len(send_times(Throttle(10.0, clock=clock, limits=free), clock, 30.0, cost=0.0001)) > 280


def test_records_count_before_there_is_any_message() -> None:
    """At 2,000 records a second, handing them over is most of what showing may cost; messages get the rest."""
    counts = {}
    for records in (0, 400):
        clock = FakeClock()
        throttle, counts[records] = Throttle(10.0, clock=clock), 0
        while clock.now < 30:
            if throttle.due():
                throttle.sent(2_000, 0.001, 0.001, records)
                counts[records] += 1
            clock.advance(0.01)
    assert counts[0] > 1.5 * counts[400]


def test_a_closed_tab_does_not_fill_the_servers_memory() -> None:
    """The server keeps every message for a tab that may come back: an hour of the largest ones stays under 200 MB."""
    clock = FakeClock()
    limits = Limits()
    throttle, sent = Throttle(10.0, clock=clock, limits=limits), 0
    while clock.now < 3600:
        if throttle.due():
            sent += limits.message_bytes
            throttle.sent(limits.message_bytes, 0.0, 0.0)
        clock.advance(0.05)
    assert sent < 200_000_000


def test_a_bucket_can_be_overdrawn_once_and_then_says_how_long_to_wait() -> None:
    clock = FakeClock()
    bucket = Bucket(rate=10.0, capacity=100.0, clock=clock)
    bucket.spend(150.0)
    assert bucket.wait() == pytest.approx(5.0)
    clock.advance(5.0)
    assert bucket.wait() == 0.0


def test_keyframes_get_rarer_as_the_run_gets_older() -> None:
    clock = FakeClock()
    schedule, times = KeyframeSchedule(Limits(), clock), []
    while clock.now < 7200:
        if schedule.due():
            times.append(clock.now)
            schedule.done()
        clock.advance(0.1)
    assert times[0] == pytest.approx(1.0, abs=0.2)
    assert sum(time < 60 for time in times) < 20
    assert len(times) < 50
    assert max(b - a for a, b in pairwise(times)) < 601
