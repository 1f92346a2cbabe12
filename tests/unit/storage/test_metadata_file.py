"""What a checkpoint holds comes back from its metadata, and nothing else does."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.storage.metadata_file import (
    CheckpointDocument,
    InlineStateHandle,
    SnapshotHandle,
    decode_metadata,
    encode_metadata,
)

JOB = "0123456789abcdef0123456789abcdef"
URI = f"file:///base/{JOB}/chk-3/_metadata"

SNAPSHOT = SnapshotHandle(
    name="daily ü",
    scope=(("days", "2026-01-01"),),
    uri=f"file:///base/{JOB}/shared/op/x/1-a",
    manifest_size=10,
    manifest_sha256="a" * 64,
    size_bytes=100,
    rows=None,
    files=2,
    fingerprint="f",
    epoch=1,
    seconds=1.5,
    created_at="2026-01-01T00:00:00+00:00",
)
DOCUMENT = CheckpointDocument(
    job_id=JOB,
    job_name="sales",
    operator_id="b" * 32,
    uid="stage",
    checkpoint_id=3,
    epoch=1,
    generation=1,
    snapshots=(SNAPSHOT,),
    state=InlineStateHandle(value={"loops": [], "values": None}),
    created_at="2026-01-01T00:00:00+00:00",
)
IN_FILE = replace(
    DOCUMENT, snapshots=(), state=FileStateHandle(uri=f"file:///base/{JOB}/chk-3/1-x", size=9, sha256="c" * 64)
)


@pytest.mark.parametrize("document", [DOCUMENT, IN_FILE], ids=["inline", "file"])
def test_what_was_written_is_read(document: CheckpointDocument) -> None:
    assert decode_metadata(encode_metadata(document), uri=URI) == document


def test_a_moved_directory_still_loads() -> None:
    moved = decode_metadata(encode_metadata(DOCUMENT), uri=f"s3://other/place/{JOB}/chk-3/_metadata")
    assert moved.snapshots[0].uri == f"s3://other/place/{JOB}/shared/op/x/1-a"


def test_no_byte_can_change_unnoticed() -> None:
    data = encode_metadata(DOCUMENT)
    for position in range(len(data)):
        for bit in (1, 128):
            changed = bytearray(data)
            changed[position] ^= bit
            with pytest.raises((CorruptStateError, IncompatibleCheckpointError)):
                decode_metadata(bytes(changed), uri=URI)


def test_no_part_passes_for_the_whole() -> None:
    data = encode_metadata(DOCUMENT)
    for length in range(len(data)):
        with pytest.raises((CorruptStateError, IncompatibleCheckpointError)):
            decode_metadata(data[:length], uri=URI)


def test_another_file_is_told_apart() -> None:
    with pytest.raises(IncompatibleCheckpointError, match="not a statecheck checkpoint"):
        decode_metadata(b"PAR1", uri=URI)


def test_a_later_version_is_named() -> None:
    data = encode_metadata(DOCUMENT).replace(b"metadata 1 ", b"metadata 2 ", 1)
    with pytest.raises(IncompatibleCheckpointError, match="version 1"):
        decode_metadata(data, uri=URI)


def test_fields_of_a_later_release_are_passed_over() -> None:
    header, _, body = encode_metadata(DOCUMENT).partition(b"\n")
    body = body.replace(b'{"checkpoint_id"', b'{"another":1,"checkpoint_id"', 1)
    magic, version, _ = header.split(b" ")
    digest = hashlib.sha256(body).hexdigest().encode()
    assert decode_metadata(b" ".join([magic, version, digest]) + b"\n" + body, uri=URI) == DOCUMENT
