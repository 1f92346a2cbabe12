"""Whether a number of key groups leaves room to grow, told while it can still be chosen."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.states.key_groups import MAX_PARALLELISM_BOUND, require_parallelism

_ROOM = 4
"""So many times its parallelism an operator may come to need."""


def max_parallelism_advice(parallelism: int, max_parallelism: int) -> str | None:
    """
    Return a warning for the first run of an operator with few key groups; ``None`` where there is nothing to warn of.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism, max_parallelism)
    wanted = recommended_max_parallelism(parallelism)
    if max_parallelism >= min(_ROOM * parallelism, MAX_PARALLELISM_BOUND):
        return None
    return (
        f"max_parallelism={max_parallelism} is less than {_ROOM} times the parallelism of {parallelism}: it bounds every "
        f"later parallelism, and few key groups spread keys unevenly. Set max_parallelism={wanted} before there is state; "
        f"later it takes `airflow statecheck rescale` on a savepoint."
    )


def recommended_max_parallelism(parallelism: int) -> int:
    """
    Return a number of key groups with room to grow: a power of two, at least four times the parallelism.

    :raises InvalidConfigurationError: for a parallelism out of bounds.
    """
    require_parallelism(parallelism)
    return min(1 << (_ROOM * parallelism - 1).bit_length(), MAX_PARALLELISM_BOUND)
