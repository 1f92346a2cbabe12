"""
What the example Dags give, run as their readers would run them, against the same computed in a few lines of Python.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from math import cos, pi
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from scripts.example_data import deliver
from tests.airflow.example_data import few_flights, hour_of
from tests.airflow.examples import Examples

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.soak]

SUCCESS = "success"


@pytest.fixture(scope="module")
def examples(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    running = Examples(airflow_db, tmp_path_factory.mktemp("examples"))
    yield running
    running.close()


def by_aircraft() -> dict[str, list[dict[str, str]]]:
    """Return the flights of each aircraft in their order."""
    legs: dict[str, list[dict[str, str]]] = defaultdict(list)
    for flight in few_flights():
        legs[flight["tailnum"]].append(flight)
    return legs


def number(text: str) -> float | None:
    return None if text == "NA" else float(text)


def as_set(rows: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Return rows without an order, each of which may be there once only."""
    counted = Counter(tuple(row.values()) for row in rows)
    assert [row for row, count in counted.items() if count > 1] == []
    return set(counted)


def test_running_delays_give_each_flight_with_what_its_aircraft_went_through_before(examples: Examples) -> None:
    assert examples.run("example_running_delays") == SUCCESS, examples.log
    assert as_set(examples.rows("running_delays")) == set(expected_delays())


def expected_delays() -> Iterator[tuple[Any, ...]]:
    for tailnum, legs in by_aircraft().items():
        last, lost = None, 0.0
        for count, leg in enumerate(legs):
            yield tailnum, hour_of(leg), int(leg["flight"]), count, last, lost
            delay = number(leg["arr_delay"])
            if delay is not None:
                last, lost = delay, lost + max(0.0, delay)


def test_sessions_go_on_with_the_month_that_failed_and_each_stay_is_given_once(examples: Examples) -> None:
    assert examples.run("example_sessions", failing=4) == SUCCESS, examples.log
    assert as_set(examples.rows("stays")) == set(expected_stays())
    attempts = examples.job("example_sessions/2026-01-01T00:00:00+00:00").attempts
    assert [attempt.status for attempt in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert attempts[1].restored_from is not None


def expected_stays() -> Iterator[tuple[Any, ...]]:
    for tailnum, legs in by_aircraft().items():
        stays: list[list[datetime]] = []
        for hour in map(hour_of, legs):
            if stays and (hour - stays[-1][-1]).total_seconds() < 24 * 3600:
                stays[-1].append(hour)
            else:
                stays.append([hour])
        for stay in stays:
            yield tailnum, stay[0], stay[-1], len(stay)


def test_slowly_changing_dimension_has_one_version_for_each_operator_and_an_end_where_the_next_begins(
    examples: Examples,
) -> None:
    assert examples.run("example_slowly_changing_dimension") == SUCCESS, examples.log
    found = examples.table("select tailnum, valid_from, valid_to, carrier from aircraft_operators")
    assert as_set(found) == set(expected_versions())


def expected_versions() -> Iterator[tuple[Any, ...]]:
    for tailnum, legs in by_aircraft().items():
        begins = [leg for i, leg in enumerate(legs) if i == 0 or leg["carrier"] != legs[i - 1]["carrier"]]
        ends = [in_sqlite(leg) for leg in begins[1:]]
        for leg, end in zip(begins, [*ends, None], strict=True):
            yield tailnum, in_sqlite(leg), end, leg["carrier"]


def in_sqlite(flight: dict[str, str]) -> str:
    return hour_of(flight).strftime("%Y-%m-%d %H:%M:%S.%f")


def test_deduplication_lets_each_flight_through_once_and_reads_each_file_once(examples: Examples) -> None:
    deliveries = examples.data / "deliveries"
    deliver(deliveries, "1.csv", few_flights()[:300])
    assert examples.run("example_deduplication", "2013-01-10") == SUCCESS, examples.log
    deliver(deliveries, "2.csv", few_flights()[250:500])
    assert examples.run("example_deduplication", "2013-01-20") == SUCCESS, examples.log
    assert as_set(examples.rows("flights_once")) == {delivered(flight) for flight in few_flights()[:500]}
    assert "'rows': 250" in examples.log

    deliver(deliveries, "3.csv", few_flights()[280:320])
    assert examples.run("example_deduplication", "2013-03-15") == SUCCESS, examples.log
    # What came with the first run is forgotten after sixty days, what came with the second not yet.
    twice = Counter(tuple(row.values()) for row in examples.rows("flights_once"))
    assert {row for row, count in twice.items() if count > 1} == {
        delivered(flight) for flight in few_flights()[280:300]
    }


def delivered(flight: dict[str, str]) -> tuple[Any, ...]:
    delay = number(flight["arr_delay"])
    return flight["carrier"], int(flight["flight"]), flight["origin"], flight["dest"], hour_of(flight), delay


def test_running_balances_go_on_from_day_to_day(examples: Examples) -> None:
    days = [date(1993, 7, 15), date(1993, 7, 16), date(1993, 8, 4)]
    for day in days:
        assert examples.run("example_running_balances", day.isoformat()) == SUCCESS, examples.log
    assert as_set(examples.rows("balances")) == set(expected_balances(examples, days))


def expected_balances(examples: Examples, days: list[date]) -> Iterator[tuple[Any, ...]]:
    orders = pq.read_table(examples.data / "tpch" / "orders.parquet").to_pylist()
    spent: dict[int, list[Decimal]] = defaultdict(list)
    for day in days:
        of_the_day = [order for order in orders if order["o_orderdate"] == day]
        for order in of_the_day:
            spent[order["o_custkey"]].append(order["o_totalprice"])
        for customer in {order["o_custkey"] for order in of_the_day}:
            yield customer, day, len(spent[customer]), sum(spent[customer])


def test_balances_are_put_back_to_the_savepoint_of_friday_and_go_on_from_there(examples: Examples) -> None:
    before, after = date(1993, 8, 5), date(1993, 8, 6)
    assert examples.run("example_running_balances", before.isoformat(), failing=1) == SUCCESS, examples.log
    tries = examples.job("customer_balances").attempts[-2:]
    assert [each.status for each in tries] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert examples.run("example_friday_savepoint", "1993-08-06") == SUCCESS, examples.log
    [savepoint] = [c for c in examples.job("customer_balances").checkpoints if c.properties.is_savepoint]
    assert savepoint.location.startswith(f"file://{examples.data}/savepoints/")
    assert examples.run("example_running_balances", after.isoformat()) == SUCCESS, examples.log
    expected = examples.rows("balances")

    told = examples.statecheck("restore", "test/customer_balances", "--from", savepoint.location, "--yes")
    assert "airflow tasks clear example_running_balances" in told
    assert examples.run("example_running_balances", after.isoformat()) == SUCCESS, examples.log
    assert f"restored in place from {savepoint.location}" in examples.log
    assert as_set(examples.rows("balances")) == as_set(expected)
    assert {
        "CheckpointCoordinator.tick",
        "CheckpointCoordinator.receive_acknowledge_message",
        "CompletedCheckpointStore.add_checkpoint_and_subsume_oldest",
        "StateHandleStore.add_and_lock",
    } <= examples.entered()


@pytest.fixture(scope="module")
def three_months(examples: Examples) -> Examples:
    for month in (1, 2, 3):
        assert examples.run("example_backfill_year", f"2013-{month:02}-01") == SUCCESS, examples.log
    return examples


def test_months_of_a_backfill_go_on_from_each_other(three_months: Examples) -> None:
    assert hours_flown(three_months, "hours_flown") == pytest.approx(expected_hours((1, 2, 3)))


def test_a_month_is_rehearsed_on_a_copy_of_the_state(three_months: Examples) -> None:
    assert three_months.run("example_rehearsal", "2013-03-01") == SUCCESS, three_months.log
    third = {row: hours for row, hours in expected_hours((1, 2, 3)).items() if row[1] == 3}
    assert hours_flown(three_months, "rehearsal") == pytest.approx(third)
    assert hours_flown(three_months, "hours_flown") == pytest.approx(expected_hours((1, 2, 3)))


def test_a_month_before_the_last_one_is_refused_and_the_last_one_is_not_counted_twice(three_months: Examples) -> None:
    assert three_months.run("example_backfill_year", "2013-03-01") == SUCCESS, three_months.log
    assert three_months.run("example_backfill_year", "2013-02-01") == "failed"
    assert "RunSupersededError" in three_months.log
    assert hours_flown(three_months, "hours_flown") == pytest.approx(expected_hours((1, 2, 3)))


def hours_flown(examples: Examples, output: str) -> dict[tuple[str, int, int], float]:
    rows = [tuple(row.values()) for row in examples.rows(output)]
    found = {row[:3]: row[3] for row in rows}
    assert len(found) == len(rows)
    return found


def expected_hours(months: tuple[int, ...]) -> dict[tuple[str, int, int], float]:
    hours = {}
    for tailnum, legs in by_aircraft().items():
        for month in months:
            flown = [leg for leg in legs if int(leg["month"]) <= month and leg["air_time"] != "NA"]
            if any(int(leg["month"]) == month for leg in flown):
                hours[tailnum, month, len(flown)] = sum(int(leg["air_time"]) for leg in flown) / 60
    return hours


def test_mapped_stages_have_a_state_and_an_output_each(examples: Examples) -> None:
    assert examples.run("example_mapped_stages") == SUCCESS, examples.log
    for airport in ("EWR", "JFK", "LGA"):
        assert as_set(examples.rows(f"routes/origin={airport}")) == set(expected_routes(airport))
    operators = {
        attempt.operator_id for attempt in examples.job("example_mapped_stages/2026-01-01T00:00:00+00:00").attempts
    }
    assert len(operators) == 3


def expected_routes(airport: str) -> Iterator[tuple[Any, ...]]:
    delays: dict[str, list[float | None]] = defaultdict(list)
    for flight in few_flights():
        if flight["origin"] == airport:
            delays[flight["dest"]].append(number(flight["arr_delay"]))
    for dest, of_dest in delays.items():
        known = [delay for delay in of_dest if delay is not None]
        yield dest, len(of_dest), sum(delay > 15 for delay in known), max(known, default=None)


def test_pagerank_ends_with_the_ranks_that_change_no_more(examples: Examples) -> None:
    assert examples.run("example_pagerank") == SUCCESS, examples.log
    files = (examples.data / "airport_ranks").glob("*.parquet")
    found = {row["airport"]: row["rank"] for file in files for row in pq.read_table(file).to_pylist()}
    assert found == pytest.approx(expected_ranks(), abs=0.02)
    assert next(iter(found)) == max(found, key=lambda airport: found[airport])


def expected_ranks() -> dict[str, float]:
    links: Counter[tuple[str, str]] = Counter()
    for legs in by_aircraft().values():
        links.update((leg["origin"], leg["dest"]) for leg in legs)
        links.update((leg["dest"], after["origin"]) for leg, after in pairwise(legs))
    given: Counter[str] = Counter()
    for (source, _), count in links.items():
        given[source] += count
    ranks = {target: 1.0 for _, target in links}
    for _ in range(200):
        received: dict[str, float] = defaultdict(float)
        for (source, target), count in links.items():
            received[target] += ranks.get(source, 0.0) * count / given[source]
        ranks = {airport: 0.15 + 0.85 * received[airport] for airport in ranks}
    return ranks


def test_flights_are_scored_in_parts_and_a_retry_scores_only_the_rest(examples: Examples) -> None:
    assert examples.run("example_scored_flights", failing=4) == SUCCESS, examples.log
    [file] = (examples.data / "late_carriers").glob("*.parquet")
    found = {row.pop("carrier"): tuple(row.values()) for row in pq.read_table(file).to_pylist()}
    wanted = expected_carriers()
    assert found.keys() == wanted.keys()
    for carrier, (flights, risk, late) in wanted.items():
        assert found[carrier] == (flights, pytest.approx(risk, abs=0.005), pytest.approx(late))
    first, second = examples.job("example_scored_flights/2026-01-01T00:00:00+00:00").attempts
    assert (first.status, second.status) == (AttemptStatus.FAILED, AttemptStatus.FINISHED)
    assert re.search(r"Step scored computed in .* parts, [1-9]\d* of them restored", examples.log)


def expected_carriers() -> dict[str, tuple[int, float, float]]:
    """Return the flights of each carrier, the mean of their estimated risks, and the part of them that was late."""
    from sklearn.linear_model import LogisticRegression

    known = [leg for leg in few_flights() if number(leg["arr_delay"]) is not None]
    sample = [leg for leg in known if int(leg["day"]) % 10 == 0]
    model = LogisticRegression().fit([features(leg) for leg in sample], [is_late(leg) for leg in sample])
    legs: dict[str, list[dict[str, str]]] = defaultdict(list)
    for leg in few_flights():
        legs[leg["carrier"]].append(leg)
    risks = {carrier: model.predict_proba([features(leg) for leg in of])[:, 1].mean() for carrier, of in legs.items()}
    late: dict[str, list[bool]] = defaultdict(list)
    for leg in known:
        late[leg["carrier"]].append(is_late(leg))
    return {carrier: (len(of), risks[carrier], fmean(late[carrier])) for carrier, of in legs.items()}


def features(flight: dict[str, str]) -> tuple[float, float, float]:
    return int(flight["hour"]) / 24, int(flight["distance"]) / 1000, cos(int(flight["month"]) * pi / 6)


def is_late(flight: dict[str, str]) -> bool:
    return float(flight["arr_delay"]) > 15


def test_features_of_a_year_of_flights_are_reported_month_by_month(examples: Examples) -> None:
    assert examples.run("example_resume_flights") == SUCCESS, examples.log
    reported: Counter[tuple[str, ...]] = Counter()
    for file in (examples.data / "flights_report").glob("month=*/*.json"):
        month = file.parent.name.removeprefix("month=").lstrip("0")
        for row in map(json.loads, file.read_text().splitlines()):
            reported[month, row["origin"], row["dest"], row["carrier"]] += row["flights"]
    assert reported == Counter((leg["month"], leg["origin"], leg["dest"], leg["carrier"]) for leg in few_flights())


def test_delays_are_added_up_by_airport_and_by_carrier_from_the_same_checkpoint(examples: Examples) -> None:
    # The carrier of the third month fails after its airport was added.
    assert examples.run("example_aligned_checkpoints", failing=6) == SUCCESS, examples.log
    expected: dict[str, Counter[str]] = {"by_airport": Counter(), "by_carrier": Counter()}
    for flight in few_flights():
        for uid, by, minutes in (("by_airport", "origin", "dep_delay"), ("by_carrier", "carrier", "arr_delay")):
            expected[uid][flight[by]] += max(0, int(number(flight[minutes]) or 0))
    assert json.loads((examples.data / "delays.json").read_text()) == expected
    job = examples.job("example_aligned_checkpoints/2026-01-01T00:00:00+00:00")
    # The retry restored the second month: no month has two checkpoints.
    assert job.job.next_checkpoint_id == 13
    assert {
        "CheckpointCoordinator.restore_latest_checkpointed_state",
        "CheckpointCoordinator.trigger_checkpoint",
        "CheckpointCoordinator.shutdown_store",
    } <= examples.entered()


def test_state_of_a_few_aircraft_is_queried_by_the_task_after_the_stage(examples: Examples) -> None:
    assert examples.run("example_queryable_state") == SUCCESS, examples.log
    hours = {
        tailnum: sum(int(leg["air_time"]) for leg in legs if leg["air_time"] != "NA") / 60
        for tailnum, legs in by_aircraft().items()
    }
    due = [tailnum for tailnum in ("N293PQ", "N935AT", "N978AT") if hours[tailnum] > 120]
    assert due == ["N293PQ", "N935AT"]
    assert json.loads((examples.data / "aircraft_checks.json").read_text()) == due
