"""
A stand-in for Google Dataproc, over gRPC, which is what Google's clients speak.

It answers ``SubmitJob``, ``GetJob`` and ``CancelJob`` of the job controller, ``CreateBatch`` and ``GetBatch`` of the
batch controller, and ``GetOperation`` and ``CancelOperation`` for batches. Jobs and batches run a Python application
with its properties, files and arguments. Google's clients insist on TLS and on their own addresses, so they are
led here by a proxy. Clusters, their start, labels and the output of drivers are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.cloud import dataproc_v1
from google.cloud.dataproc_v1.types import Batch, BatchOperationMetadata, Job, JobStatus
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2

from tests.services.drivers import DriverState, SubmittedDrivers, words_of
from tests.services.tunnel import certificate_of, proxy_to

_OF_JOBS = {
    DriverState.RUNNING: JobStatus.State.RUNNING,
    DriverState.SUCCEEDED: JobStatus.State.DONE,
    DriverState.FAILED: JobStatus.State.ERROR,
    DriverState.CANCELLED: JobStatus.State.CANCELLED,
}
_OF_BATCHES = {
    DriverState.RUNNING: Batch.State.RUNNING,
    DriverState.SUCCEEDED: Batch.State.SUCCEEDED,
    DriverState.FAILED: Batch.State.FAILED,
    DriverState.CANCELLED: Batch.State.CANCELLED,
}
_HOST = "*.googleapis.com"


@contextmanager
def dataproc(drivers: SubmittedDrivers) -> Iterator[dict[str, str]]:
    """Serve the calls, and return the variables with which Google's clients reach them."""
    certificate, roots = certificate_of(_HOST), drivers.work / "roots.pem"
    roots.write_bytes(certificate.chain)
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(_Region(drivers).handlers())
    credentials = grpc.ssl_server_credentials([(certificate.key, certificate.chain)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        with proxy_to(port) as proxy:
            yield {"grpc_proxy": proxy, "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)}
    finally:
        server.stop(None).wait()


@dataclass
class _Region:
    drivers: SubmittedDrivers
    numbers: dict[str, int] = field(default_factory=dict)
    """Drivers by the ids of jobs and the names of batches."""
    jobs: dict[str, Any] = field(default_factory=dict)
    batches: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)

    def handlers(self) -> tuple[Any, ...]:
        types = dataproc_v1.types
        return (
            _service(
                "google.cloud.dataproc.v1.JobController",
                SubmitJob=(self.submit_job, types.SubmitJobRequest.deserialize, Job.serialize),
                GetJob=(self.get_job, types.GetJobRequest.deserialize, Job.serialize),
                CancelJob=(self.cancel_job, types.CancelJobRequest.deserialize, Job.serialize),
            ),
            _service(
                "google.cloud.dataproc.v1.BatchController",
                CreateBatch=(self.create_batch, types.CreateBatchRequest.deserialize, _written),
                GetBatch=(self.get_batch, types.GetBatchRequest.deserialize, Batch.serialize),
            ),
            _service(
                "google.longrunning.Operations",
                GetOperation=(self.get_operation, operations_pb2.GetOperationRequest.FromString, _written),
                CancelOperation=(self.cancel, operations_pb2.CancelOperationRequest.FromString, _written),
            ),
        )

    def submit_job(self, request: Any, _: grpc.ServicerContext) -> Any:
        if request.request_id in self.requests:
            return self._job(self.requests[request.request_id])
        job_id = request.job.reference.job_id or f"job-{len(self.jobs)}"
        request.job.reference.job_id = job_id
        self.jobs[job_id] = request.job
        pyspark = request.job.pyspark_job
        self.numbers[job_id] = self.drivers.start(_words(pyspark, pyspark.properties))
        if request.request_id:
            self.requests[request.request_id] = job_id
        return self._job(job_id)

    def get_job(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.job_id not in self.jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, request.job_id)
        return self._job(request.job_id)

    def cancel_job(self, request: Any, _: grpc.ServicerContext) -> Any:
        self.drivers.cancel(self.numbers[request.job_id])
        return self._job(request.job_id)

    def create_batch(self, request: Any, context: grpc.ServicerContext) -> Any:
        # The provider's hook creates batches in a region, and asks for them in a location.
        parent = request.parent.replace("/regions/", "/locations/")
        name = f"{parent}/batches/{request.batch_id or f'batch-{len(self.batches)}'}"
        if name in self.batches:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, name)
        request.batch.name = name
        self.batches[name] = request.batch
        self.numbers[name] = self.drivers.start(
            _words(request.batch.pyspark_batch, request.batch.runtime_config.properties)
        )
        return self._operation(name)

    def get_batch(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.name not in self.batches:
            context.abort(grpc.StatusCode.NOT_FOUND, request.name)
        batch = self.batches[request.name]
        batch.state = _OF_BATCHES[self.drivers.state(self.numbers[request.name])]
        return batch

    def get_operation(self, request: Any, _: grpc.ServicerContext) -> Any:
        return self._operation(request.name.removeprefix("operations/"))

    def cancel(self, request: Any, _: grpc.ServicerContext) -> Any:
        self.drivers.cancel(self.numbers[request.name.removeprefix("operations/")])
        return empty_pb2.Empty()

    def _operation(self, name: str) -> Any:
        metadata = any_pb2.Any()
        metadata.Pack(BatchOperationMetadata.pb(BatchOperationMetadata(batch=name)))
        # The result of one that is done would be the batch, which the provider asks for by its name.
        return operations_pb2.Operation(name=f"operations/{name}", metadata=metadata)

    def _job(self, job_id: str) -> Any:
        job = self.jobs[job_id]
        job.status = JobStatus(state=_OF_JOBS[self.drivers.state(self.numbers[job_id])])
        return job


def _words(pyspark: Any, properties: Mapping[str, str]) -> list[str]:
    return words_of(pyspark.main_python_file_uri, pyspark.args, dict(properties), pyspark.python_file_uris)


def _written(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _service(name: str, **methods: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]) -> Any:
    made = {
        method: grpc.unary_unary_rpc_method_handler(call, reading, writing)
        for method, (call, reading, writing) in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, made)
