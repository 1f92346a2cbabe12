"""Drivers that reach the checkpoint storage and nothing else, under a whole Airflow whose parts die."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.isolated_network import CAN_ISOLATE, WHY_NOT, IsolatedNetwork, isolated_network
from tests.live.deployment import Deployment
from tests.live.mailbox_cases import CASES, OUTPUT, WHOLE, MailboxCase
from tests.live.mailbox_runs import Lake, MailboxRun, write_submit_program
from tests.live.report import Row, restored_of
from tests.object_store import KEY, REGION, SECRET, ObjectStore
from tests.services.drivers import SubmittedDrivers
from tests.services.livy import livy
from tests.services.server import served
from tests.standalone_cluster import StandaloneCluster

pytestmark = [pytest.mark.live, pytest.mark.skipif(not CAN_ISOLATE, reason=WHY_NOT)]


@pytest.fixture(scope="module")
def network() -> Iterator[IsolatedNetwork]:
    with isolated_network() as made:
        yield made


@pytest.fixture(scope="module", params=["local", pytest.param("S3", marks=pytest.mark.soak)])
def lake(request: pytest.FixtureRequest, deployment: Deployment, network: IsolatedNetwork) -> Lake:
    deployment.ensure_running()
    if request.param == "local":
        made = Lake(name="local", storage=CheckpointStorage.open(str(deployment.folder / "checkpoints")))
    else:
        made = _on_s3(request.getfixturevalue("object_store"), deployment, network)
    write_submit_program(deployment.folder / "bin" / "spark3-submit", network, made)
    return made


def _on_s3(store: ObjectStore, deployment: Deployment, network: IsolatedNetwork) -> Lake:
    """The task has a connection, and the driver the credentials of its environment."""
    network.let_out(urlsplit(store.endpoint_url).port or 0)
    region = {"region_name": REGION}
    options = {"key": KEY, "secret": SECRET, "endpoint_url": store.endpoint_url, "client_kwargs": region}
    deployment.api.set_connection("lake", "generic", {"storage_options": options})
    variables = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": store.endpoint_url,
        "AWS_DEFAULT_REGION": REGION,
    }
    storage = CheckpointStorage.open(f"s3://{store.make_bucket()}/checkpoints", **options)
    return Lake(name="S3", storage=storage, variables=variables)


@pytest.fixture(scope="module")
def cluster(
    lake: Lake, deployment: Deployment, network: IsolatedNetwork, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneCluster]:
    """A cluster in the network, to which tasks may submit."""
    folder = tmp_path_factory.mktemp("cluster")
    running = StandaloneCluster(folder, around=network.command(), variables=lake.variables)
    try:
        running.start()
        network.let_in(running.rest_port)
        host, port = running.master.rsplit(":", 1)
        # Applications are submitted from within the network, and tasks ask for their state from without.
        extra = {"deploy-mode": "cluster", "rest-port": running.rest_port}
        deployment.api.set_connection("isolated_cluster", "spark", extra, host=host, port=int(port))
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def batches(lake: Lake, deployment: Deployment) -> Iterator[SubmittedDrivers]:
    """A stand-in for Livy, whose drivers run in the network."""
    if lake.name != "local":
        pytest.skip("Spark of this machine has no filesystem for S3, from which a batch loads the package")
    drivers = SubmittedDrivers(deployment.folder, (str(deployment.folder / "bin" / "spark3-submit"),))
    with served(livy(drivers)) as url:
        address = urlsplit(url)
        deployment.api.set_connection("isolated_livy", "livy", {}, host=address.hostname, port=address.port)
        yield drivers
    drivers.close()


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.run_id, marks=[pytest.mark.soak] if case.is_slow else []) for case in CASES]
)
def test_driver_without_a_network_computes_at_most_one_part_again(
    case: MailboxCase, deployment: Deployment, lake: Lake, rows: list[Row], request: pytest.FixtureRequest
) -> None:
    deployment.ensure_running()
    if case.is_on_cluster:
        request.getfixturevalue("cluster")
    if case.is_deferred:
        request.getfixturevalue("batches")
    run = MailboxRun(deployment, case.dag_id, f"{case.run_id}-{lake.name}", lake)
    began = time.monotonic()
    try:
        case.play(run)
        assert run.wait_for_end() == "success"
        _check(run, case)
    except BaseException as error:
        error.add_note(run.story())
        raise
    finally:
        run.release()  # a driver that still waits must not outlive its test
    rows.append(_row_of(run, f"{case.name}, mailbox on {lake.name}", time.monotonic() - began))


def _check(run: MailboxRun, case: MailboxCase) -> None:
    assert run.outputs() == [OUTPUT]
    assert set(run.computed()) == set(WHOLE)
    assert len(_again(run)) <= 1
    assert tuple(attempt.status for attempt in run.job().attempts) == case.attempts
    assert run.tries() == case.tries
    assert run.mail() == []
    assert run.devices() == ["lo"]


def _again(run: MailboxRun) -> list[str]:
    return list((Counter(run.computed()) - Counter(WHOLE)).elements())


def _row_of(run: MailboxRun, name: str, seconds: float) -> Row:
    view = run.job()
    restored = restored_of(view, view.attempts[-1])
    return Row(name, ", ".join(_again(run)) or "nothing", restored, str(run.tries()), f"{seconds:.0f}")
