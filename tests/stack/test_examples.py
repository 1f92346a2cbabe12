"""The example Dags under ``make up``, unchanged: their Spark is the cluster, their checkpoints are in the store."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from scripts.example_data import flights
from tests.stack.running import RunningStack

pytestmark = [pytest.mark.live, pytest.mark.soak]

FLOWN = [flight for flight in flights() if flight["tailnum"] != "NA"]


def run(stack: RunningStack, dag_id: str, day: str = "2026-01-01", *, job: str = "") -> None:
    """Trigger a Dag, wait for its success, and look where its checkpoints are."""
    started = stack.start(dag_id, day)
    assert started.wait_for_end() == "success", started.log()
    view = stack.job(job or started.job)
    assert view is not None
    assert {c.location.partition("/statecheck/")[0] for c in view.checkpoints} == {"s3:/"}


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Return what readers of a directory see."""
    for file in sorted(folder.rglob("part-*.parquet")):
        yield from pq.ParquetFile(file).read().to_pylist()


def aircraft(month: str) -> set[str]:
    return {flight["tailnum"] for flight in FLOWN if flight["month"] == month and flight["air_time"] != "NA"}


def test_running_delays_give_each_flight_once(stack: RunningStack) -> None:
    run(stack, "example_running_delays")
    found = [(row["tailnum"], row["legs"]) for row in rows(stack.data / "running_delays")]
    assert len(found) == len(set(found)) == len(FLOWN)


def test_deduplication_lets_each_delivered_flight_through_once(stack: RunningStack) -> None:
    run(stack, "example_deduplication", "2013-03-01", job="flights_once")
    key = ("carrier", "flight", "origin", "time_hour")
    found = [(row["carrier"], str(row["flight"]), row["origin"]) for row in rows(stack.data / "flights_once")]
    delivered = {tuple(f[name] for name in key) for f in flights() if f["month"] == "1" or _is_in_february(f)}
    assert len(found) == len(delivered)


def _is_in_february(flight: dict[str, str]) -> bool:
    return flight["month"] == "2" and int(flight["day"]) <= 28


def test_sessions_end_after_a_day_without_a_departure(stack: RunningStack) -> None:
    run(stack, "example_sessions")
    departures: dict[str, list[datetime]] = defaultdict(list)
    for flight in FLOWN:
        departures[flight["tailnum"]].append(datetime.fromisoformat(flight["time_hour"]))
    breaks = sum((b - a).total_seconds() >= 24 * 3600 for hours in departures.values() for a, b in pairwise(hours))
    assert sum(1 for _ in rows(stack.data / "stays")) == len(departures) + breaks


def test_slowly_changing_dimension_has_one_current_row_for_each_aircraft(stack: RunningStack) -> None:
    run(stack, "example_slowly_changing_dimension")
    engine = create_engine(f"sqlite:///{stack.data}/warehouse.db")
    with engine.connect() as connection:
        query = text("select count(*), count(distinct tailnum) from aircraft_operators where valid_to is null")
        current = tuple(connection.execute(query).one())
    engine.dispose()
    assert current == (len({f["tailnum"] for f in FLOWN}),) * 2


def test_pagerank_ranks_every_airport_that_is_flown_to(stack: RunningStack) -> None:
    run(stack, "example_pagerank")
    found = {row["airport"] for row in rows(stack.data / "airport_ranks")}
    assert found >= {flight["dest"] for flight in FLOWN}
    assert found >= {"EWR", "JFK", "LGA"}


def test_flights_of_every_carrier_are_scored_in_parts(stack: RunningStack) -> None:
    run(stack, "example_scored_flights")
    found = {row["carrier"]: row["flights"] for row in rows(stack.data / "late_carriers")}
    assert found == Counter(flight["carrier"] for flight in flights())


def test_mapped_stages_run_beside_each_other(stack: RunningStack) -> None:
    run(stack, "example_mapped_stages")
    for airport in ("EWR", "JFK", "LGA"):
        found = [row["dest"] for row in rows(stack.data / "routes" / f"origin={airport}")]
        assert sorted(found) == sorted({f["dest"] for f in flights() if f["origin"] == airport})


def test_running_balances_have_the_customers_of_the_day(stack: RunningStack) -> None:
    run(stack, "example_running_balances", "1993-07-15", job="customer_balances")
    orders = pq.read_table(stack.data / "tpch" / "orders.parquet").to_pylist()
    customers = {order["o_custkey"] for order in orders if order["o_orderdate"] == date(1993, 7, 15)}
    assert sorted(row["o_custkey"] for row in rows(stack.data / "balances")) == sorted(customers)


def test_hours_of_an_aircraft_are_asked_for_by_a_task_and_by_a_user(stack: RunningStack) -> None:
    run(stack, "example_queryable_state", job="aircraft")
    hours: dict[str, float] = defaultdict(float)
    for flight in FLOWN:
        hours[flight["tailnum"]] += 0 if flight["air_time"] == "NA" else float(flight["air_time"]) / 60
    due = json.loads((stack.data / "aircraft_checks.json").read_text())
    assert due == sorted(tail for tail in ("N935AT", "N978AT", "N293PQ", "N14228") if hours[tail] > 120)
    reply = stack.api.ask("GET", f"jobs/{job_id_of('aircraft')}/state/hours_flown?key=N14228").raise_for_status()
    assert reply.json()["entries"] == [{"key": "N14228", "value": pytest.approx(hours["N14228"])}]


def test_backfill_goes_on_from_month_to_month_and_a_month_is_rehearsed(stack: RunningStack) -> None:
    run(stack, "example_backfill_year", "2013-01-01", job="hours_flown")
    run(stack, "example_backfill_year", "2013-02-01", job="hours_flown")
    found = [(row["month"], row["tailnum"]) for row in rows(stack.data / "hours_flown")]
    assert sorted(found) == sorted([(1, tail) for tail in aircraft("1")] + [(2, tail) for tail in aircraft("2")])
    rehearsal = stack.start("example_rehearsal", "2013-02-01")
    assert rehearsal.wait_for_end() == "success", rehearsal.log()
    assert sorted(row["tailnum"] for row in rows(stack.data / "rehearsal")) == sorted(aircraft("2"))
