"""Our operator under a scheduler, an api-server, a dag-processor and a triggerer, each of which may die."""

from __future__ import annotations

import time

import pytest

from tests.live.cases import CASES, Case, Expected, Try
from tests.live.deployment import Deployment
from tests.live.report import Row, attempts_of, restored_of, row_of
from tests.live.runs import StageRun

pytestmark = pytest.mark.live


def _parameters(case: Case):
    return pytest.param(case, id=case.run_id, marks=[pytest.mark.soak] if case.is_slow else [])


@pytest.mark.parametrize("case", [_parameters(case) for case in CASES])
def test_stage_ends_right_and_loses_no_more_than_expected(case: Case, deployment: Deployment, rows: list[Row]) -> None:
    deployment.ensure_running()
    run = StageRun(deployment, case.dag_id, case.run_id)
    began = time.monotonic()
    try:
        case.play(run)
        assert run.wait_for_end() == "success"
        for expected in case.expected:
            _check(run, expected)
    except BaseException as error:
        error.add_note(run.story())
        raise
    finally:
        run.release()  # a stage that still waits must not outlive its test
    rows.append(row_of(case, run, time.monotonic() - began))


def _check(run: StageRun, expected: Expected) -> None:
    view = run.job()
    tries = [Try(a.status, a.start_reason, restored_of(view, a)) for a in attempts_of(view, expected.uid)]
    assert tries == list(expected.tries)
    assert run.computed(expected.part) == expected.computed
    assert run.result(expected.map_index) == expected.result
