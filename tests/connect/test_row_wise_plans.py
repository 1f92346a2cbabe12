"""
The plan of a step is judged by its text and its message as strictly as by the objects of a session of this process.

That parts of an accepted step give the rows of the whole is tested with classic Spark, which computes them by the same
plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_provider_statecheck.exceptions import UnsupportedPlanError
from airflow_provider_statecheck.spark.parts.row_wise_plan import marked, require_row_wise
from tests.connect.conftest import connect
from tests.connect_server import ConnectServer
from tests.row_wise_cases import (
    ACCEPTED,
    REFUSED,
    REFUSED_STEPS,
    Accepted,
    Refused,
    accept,
    cases_of,
    check_refused,
    other_frame,
    over_frame,
    random_step,
    refuse,
)
from tests.soak import every_nth

PLAN_LENGTH = "spark.sql.maxPlanStringLength"


@pytest.fixture(scope="module")
def session(server: ConnectServer) -> Iterator[Any]:
    """One session for all cases, since a new one costs more than a case."""
    opened = connect(server.url)
    yield opened
    opened.stop()


@pytest.fixture(autouse=True)
def _without_cached_frames(session):
    yield
    session.catalog.clearCache()


@pytest.mark.parametrize("case", cases_of("connect", REFUSED, every=16))
def test_step_that_needs_more_than_one_row_is_refused_by_the_name_of_the_operation(session, case: Refused):
    check_refused(session, case)


@pytest.mark.parametrize("case", cases_of("connect", ACCEPTED, every=16))
def test_row_wise_step_is_accepted(session, case: Accepted):
    accept(session, case.build)


@pytest.mark.parametrize("seed", every_nth(range(15), 15))
def test_random_row_wise_step_is_accepted(session, seed: int):
    accept(session, random_step(seed))


@pytest.mark.parametrize("seed", every_nth(range(2 * len(REFUSED_STEPS)), 4))
def test_one_operation_over_several_rows_anywhere_in_a_random_step_is_enough_to_refuse_it(session, seed: int):
    refuse(session, random_step(seed, is_refused=True))


def test_operations_that_made_the_input_are_not_judged(session):
    over = over_frame(session).distinct().withColumn("r", F.rand()).limit(9).withColumn("a\nb", F.lit("c\nd"))
    frame, marker = marked(over)
    require_row_wise(frame.where("id > 3"), marker, "days")


def test_cached_input_is_accepted(session):
    over = over_frame(session).cache()
    frame, marker = marked(over)
    require_row_wise(frame.where("id > 3"), marker, "days")


def test_right_side_that_reads_the_cached_input_is_refused(session):
    over = over_frame(session).cache()
    frame, marker = marked(over)
    with pytest.raises(UnsupportedPlanError, match="a cached DataFrame"):
        require_row_wise(frame.join(over.select("k"), "k", "semi"), marker, "days")


@pytest.mark.parametrize("length", [None, "200"])
def test_length_of_plans_in_the_session_does_not_matter_and_is_kept(session, length: str | None):
    if length is not None:
        session.conf.set(PLAN_LENGTH, length)
    try:
        frame, marker = marked(over_frame(session))
        require_row_wise(frame.join(other_frame(session), "k").where("id > 3"), marker, "days")
        assert session.conf.get(PLAN_LENGTH, None) == length
    finally:
        session.conf.unset(PLAN_LENGTH)
