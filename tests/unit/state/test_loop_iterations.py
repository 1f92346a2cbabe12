from __future__ import annotations

import json

from airflow_provider_statecheck.state.progress import Iteration, Iterations, StepKey

RANKS: StepKey = ((), "ranks")
INNER: StepKey = ((("days", "1"),), "ranks")


def test_the_newest_step_counts_and_survives_json():
    iterations = Iterations()
    iterations.reach(RANKS, Iteration(3, is_converged=False))
    iterations.reach(RANKS, Iteration(6, is_converged=True))
    iterations.reach(INNER, Iteration(1, is_converged=False))
    restored = Iterations(json.loads(json.dumps(iterations.encode())))
    assert restored.find(RANKS) == Iteration(6, is_converged=True)
    assert restored.find(INNER) == Iteration(1, is_converged=False)
    assert restored.encode() == iterations.encode()


def test_a_loop_goes_with_the_item_around_it_or_when_its_name_is_given_to_something_else():
    iterations = Iterations()
    for loop in (RANKS, INNER):
        iterations.reach(loop, Iteration(3, is_converged=False))
    iterations.drop_scope((("days", "1"),))
    assert iterations.find(INNER) is None
    assert iterations.find(RANKS) is not None
    iterations.forget(RANKS)
    iterations.forget(RANKS)
    assert iterations.encode() == []
