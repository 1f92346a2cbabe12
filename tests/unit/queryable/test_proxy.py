"""Look-ups, retries and oracles of the proxy; what a reader sees is in the contract of queryable state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
    CorruptStateError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnknownKvStateIdError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
    UnknownLocationError,
)
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.queryable.locations import KvStateAddress, KvStateLocation, KvStateLocationRegistry
from airflow_provider_statecheck.queryable.proxy import RETRIES, KvStateServer, StateProxy
from airflow_provider_statecheck.queryable.queries import PythonKeys, QueryableName, StateQuery
from tests.unit.queryable.test_locations import address

JOB = job_id_of("job")
QUERY = StateQuery(job_id=JOB, name="name", keys=PythonKeys(("ann",)))
OF_TWO_SUBTASKS = (KeyGroupRange(0, 3), KeyGroupRange(4, 7))


def location(checkpoint_id: int) -> KvStateLocation:
    registry = KvStateLocationRegistry(JOB, {"a": 8})
    for key_groups in OF_TWO_SUBTASKS:
        registry.register("a", key_groups, "name", replace(address(), checkpoint_id=checkpoint_id))
    return registry.location("name")


@dataclass
class Oracle:
    """Oracle whose look-ups have given outcomes; the last one repeats."""

    outcomes: list[KvStateLocation | StateCheckError]
    refreshes: list[bool] = field(default_factory=list)
    version: int = 0
    metadata_bytes: int = 0

    def request_kv_state_location(self, name: str, *, as_of: AsOf = LATEST, refresh: bool = False) -> KvStateLocation:
        outcome = self.outcomes[min(len(self.refreshes), len(self.outcomes) - 1)]
        self.refreshes.append(refresh)
        if isinstance(outcome, StateCheckError):
            raise outcome
        return outcome

    def names(self, *, as_of: AsOf = LATEST) -> tuple[QueryableName, ...]:
        return ()


@dataclass
class Server(KvStateServer):
    """State server that has the files of the checkpoints from one on, and answers with the id of the checkpoint."""

    oldest: int = 0
    error: Callable[[], StateCheckError] = lambda: UnknownKvStateIdError("gone")
    reads: list[list[Any]] = field(default_factory=list)

    def read(self, address: KvStateAddress, keys: Sequence[Any], *_: Any, **__: Any) -> list[Any]:
        self.reads.append(list(keys))
        if address.checkpoint_id < self.oldest:
            raise self.error()
        return [address.checkpoint_id for _ in self.reads[-1]]


class Time:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def proxy_of(time: Time) -> Callable[..., StateProxy]:
    def make(server: Server, *outcomes: Any, **changes: Any) -> StateProxy:
        retries = replace(RETRIES, sleep=time.pause, monotonic=lambda: time.now, random=lambda: 1.0, **changes)
        proxy = StateProxy(server, retries=retries)
        proxy.update_kv_state_location_oracle(JOB, Oracle(list(outcomes)))
        return proxy

    return make


def refreshes(proxy: StateProxy) -> list[bool]:
    oracle = proxy.get_kv_state_location_oracle(JOB)
    assert isinstance(oracle, Oracle)
    return oracle.refreshes


def test_stale_location_is_looked_up_again_at_once(proxy_of, time):
    proxy = proxy_of(Server(oldest=2), location(1), location(2))

    assert proxy.get(QUERY).values == (2,)
    assert (refreshes(proxy), time.pauses) == ([False, True], [])


def test_retries_that_read_newer_checkpoints_are_not_counted(proxy_of, time):
    proxy = proxy_of(Server(oldest=50), *map(location, range(1, 51)))

    assert proxy.get(QUERY).values == (50,)
    assert time.pauses == []


@pytest.mark.parametrize(
    "error",
    [
        UnknownKvStateIdError("gone", checkpoint_id=1),
        UnknownKvStateKeyGroupLocationError("none"),
        CoordinatorUnavailableError("no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_look_up_that_stays_stale_ends_with_the_last_error_after_three_retries(proxy_of, time, error):
    proxy = proxy_of(Server(), error)

    with pytest.raises(type(error)) as raised:
        proxy.get(QUERY)

    assert raised.value is error
    assert refreshes(proxy) == [False, True, True, True]
    assert time.pauses == [0.05, 0.1]


def test_files_that_stay_gone_end_with_the_last_error_after_three_retries(proxy_of, time):
    server = Server(oldest=2)

    with pytest.raises(UnknownKvStateIdError):
        proxy_of(server, location(1)).get(QUERY)

    assert len(server.reads) == 4


def test_query_recovers_after_a_failed_connection(proxy_of, time):
    lost = CoordinatorUnavailableError("no answer")
    proxy = proxy_of(Server(), lost, lost, location(1))

    assert proxy.get(QUERY).values == (1,)
    assert time.pauses == [0.05]


def test_no_retry_begins_after_the_deadline(proxy_of, time):
    def slowly() -> StateCheckError:
        time.now += 4.0
        return UnknownKvStateIdError("gone")

    server = Server(oldest=100, error=slowly)
    proxy = proxy_of(server, *map(location, range(1, 100)))

    with pytest.raises(UnknownKvStateIdError):
        proxy.get(QUERY)

    assert len(server.reads) == 3


def test_unknown_name_is_looked_up_once_more_without_a_pause(proxy_of, time):
    unknown = UnknownKvStateLocationError("unknown")
    proxy = proxy_of(Server(), unknown)

    with pytest.raises(UnknownKvStateLocationError):
        proxy.get(QUERY)

    assert (refreshes(proxy), time.pauses) == ([False, True], [])


@pytest.mark.parametrize(
    "error",
    [CheckpointNotFoundError("no job"), CorruptStateError("damaged"), StorageError("no answer after retries")],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_raised_unchanged_and_not_repeated(proxy_of, error):
    proxy = proxy_of(Server(), error)

    with pytest.raises(type(error)) as raised:
        proxy.get(QUERY)

    assert raised.value is error
    assert refreshes(proxy) == [False]


def test_keys_of_one_address_are_read_together_and_answered_in_the_order_of_the_query(proxy_of):
    server, names = Server(), tuple(f"account {n}" for n in range(20))
    found = location(1)
    proxy = proxy_of(server, found)

    reply = proxy.get(replace(QUERY, keys=PythonKeys(names)))

    assert reply.keys == names
    assert sorted(key for keys in server.reads for key, _ in keys) == sorted(names)
    for keys, key_groups in (
        zip(server.reads, OF_TWO_SUBTASKS, strict=True)
        if server.reads[0][0][1] < 4
        else zip(server.reads, OF_TWO_SUBTASKS[::-1], strict=True)
    ):
        assert {group in key_groups for _, group in keys} == {True}


def test_key_is_read_by_the_key_group_that_its_owner_computes(proxy_of):
    server, found = Server(), location(1)

    proxy_of(server, found).get(QUERY)

    assert server.reads == [[("ann", found.key_serializer.key_group_of("ann", 8))]]


def test_job_without_an_oracle_has_no_locations():
    proxy = StateProxy(Server())

    assert proxy.get_kv_state_location_oracle(JOB) is None
    with pytest.raises(UnknownLocationError, match=JOB):
        proxy.get(QUERY)


def test_last_oracle_of_a_job_wins_and_none_removes_it():
    proxy, first, second = StateProxy(Server()), Oracle([location(1)]), Oracle([location(2)])

    proxy.update_kv_state_location_oracle(JOB, first)
    proxy.update_kv_state_location_oracle(JOB, second)
    assert proxy.get_kv_state_location_oracle(JOB) is second
    assert proxy.get(QUERY).values == (2,)

    proxy.update_kv_state_location_oracle(JOB, None)
    assert proxy.get_kv_state_location_oracle(JOB) is None


def test_oracle_of_another_thread_is_seen_at_once():
    proxy = StateProxy(Server())
    oracles = [Oracle([location(n)]) for n in range(200)]

    with ThreadPoolExecutor(1) as pool:
        for oracle in oracles:
            pool.submit(proxy.update_kv_state_location_oracle, JOB, oracle).result()
            assert proxy.get_kv_state_location_oracle(JOB) is oracle


@pytest.mark.parametrize("job_id", ["", None])
def test_job_id_is_required(job_id):
    proxy = StateProxy(Server())

    with pytest.raises(InvalidConfigurationError):
        proxy.update_kv_state_location_oracle(job_id, Oracle([]))
    with pytest.raises(InvalidConfigurationError):
        proxy.get_kv_state_location_oracle(job_id)


def test_oracle_is_created_at_the_first_query_of_a_job():
    created: list[JobId] = []

    def create(job_id: JobId) -> Oracle:
        created.append(job_id)
        return Oracle([location(3)])

    proxy = StateProxy(Server(), create)

    assert [proxy.get(QUERY).values for _ in range(2)] == [(3,), (3,)]
    assert created == [JOB]
    assert proxy.get_kv_state_location_oracle(JOB) is not None


def test_removed_oracle_is_created_anew():
    proxy = StateProxy(Server(), lambda _: Oracle([location(3)]))
    proxy.get(QUERY)
    before = proxy.get_kv_state_location_oracle(JOB)

    proxy.update_kv_state_location_oracle(JOB, None)

    assert proxy.get_kv_state_location_oracle(JOB) is None
    proxy.get(QUERY)
    assert proxy.get_kv_state_location_oracle(JOB) is not before


def test_number_of_created_oracles_is_bounded_and_given_ones_stay():
    proxy = StateProxy(Server(), lambda _: Oracle([location(3)]), max_oracles=2)
    given = Oracle([location(1)])
    proxy.update_kv_state_location_oracle(JOB, given)
    jobs = [job_id_of(f"job {n}") for n in range(4)]

    for job_id in jobs:
        proxy.names(job_id)

    assert [proxy.get_kv_state_location_oracle(each) is not None for each in jobs] == [False, False, True, True]
    assert proxy.get_kv_state_location_oracle(JOB) is given
