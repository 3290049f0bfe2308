"""Times of every host, and which hosts are stragglers."""

import pytest

from bert_jax.metrics import stragglers as hosts
from bert_jax.metrics.stragglers import HostTimes, StepTimer, fields, stragglers


def host(name: str, *, data: float = 0.01, device: float = 0.9, step: float = 1.0) -> HostTimes:
    return HostTimes(name, step, data, device)


def test_a_stretch_gives_means_of_its_steps_and_begins_anew():
    stretch = StepTimer("host-1")
    for data, device in ((0.1, 0.5), (0.3, 0.7)):
        stretch.add(data=data, device=device)
    times = stretch.take(1.0)
    assert times == HostTimes("host-1", 1.0, pytest.approx(0.2), pytest.approx(0.6))
    assert times.own == pytest.approx(0.4)
    assert stretch.take(1.0) == HostTimes("host-1", 1.0, 0.0, 0.0)


def test_times_travel_as_text():
    times = HostTimes('a "host"', 1.25, 0.125, 0.5)
    assert HostTimes.parse(times.text()) == times
    assert "\n" not in times.text()


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_host_that_waits_for_its_data_is_named(count):
    times = [host(f"host-{i}") for i in range(count - 1)]
    times.insert(1, host("slow", data=0.5, device=0.4))
    (line,) = stragglers(times)
    assert line == (
        "slow is a straggler: of 1 s per step it waits for data for 0.5 s (the others: 0.01 s)"
    )
    found = fields(times)
    assert found["hosts/slowest"] == "slow"
    assert found["hosts/stragglers"] == [line]
    assert found["hosts/data_wait_max"] == 0.5
    assert found["hosts/data_wait_median"] == (0.255 if count == 2 else 0.01)
    assert found["hosts/data_wait"][1] == 0.5
    assert found["hosts/own"][:2] == pytest.approx([0.1, 0.6])


def test_a_host_that_is_busy_with_something_else_is_named():
    (line,) = stragglers([host("a"), host("b", device=0.3), host("c")])
    assert line.startswith("b is a straggler: of 1 s per step it is busy on the host for 0.7 s")


@pytest.mark.parametrize(
    "times",
    [
        [host("a", data=0.9, device=0.05), host("b", data=0.6, device=0.35)],  # all wait
        [host("a", data=0.01), host("b", data=0.15, device=0.85)],  # too little to report
        [host("alone", data=0.9, device=0.0)],
        [host("a", device=1.2), host("b", device=1.2)],  # rounding: own time is not negative
    ],
)
def test_where_none_is_late_none_is_named(times):
    assert stragglers(times) == []
    assert "hosts/stragglers" not in fields(times)
    assert ("hosts/slowest" in fields(times)) == (len(times) > 1)
    assert min(fields(times)["hosts/own"]) >= 0


def test_two_late_hosts_are_both_named():
    times = [host("a"), host("b", data=0.5, device=0.4), host("c"), host("d", data=0.6, device=0.3)]
    assert [line.split()[0] for line in hosts.stragglers(times)] == ["b", "d"]
