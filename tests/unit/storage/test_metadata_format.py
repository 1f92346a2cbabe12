"""The form of the metadata and what is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.storage.metadata_file import InlineStateHandle, decode_metadata, encode_metadata
from airflow_provider_statecheck.storage.state_json import MAX_DEPTH, decode_state, encode_state
from tests.unit.storage.documents import JOB_ID, JOB_URI, METADATA_URI, make_document, make_snapshot

OPTIONAL = {
    "properties",
    "operator_states",
    "master_states",
    "has_commit",
    "relocatable",
    "request_key",
    "parts",
    "run",
}
REFUSALS = (CorruptStateError, IncompatibleCheckpointError)


def _with_body(body: bytes, header: bytes = b"statecheck-metadata 1 ") -> bytes:
    return header + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _body(data: bytes) -> Any:
    return json.loads(data.partition(b"\n")[2])


@pytest.mark.parametrize(
    "document",
    [
        make_document(),
        make_document(snapshots=(), state=InlineStateHandle(value={})),
        make_document(state=FileStateHandle(uri=f"{JOB_URI}/chk-3/2-ff", size=7, sha256="cd" * 32)),
        make_document(job_name='täglich/\u2028 "x"\n', uid="\udcff"),
        make_document(snapshots=(make_snapshot(scope=(), rows=None, size_bytes=0, seconds=0.1 + 0.2),)),
        make_document(state=InlineStateHandle(value={"a": [], "b": {}, "c": None, "d": [[]]})),
    ],
    ids=["usual", "empty", "state in a file", "odd text", "bare snapshot", "empty collections"],
)
def test_document_comes_back_equal(document: Any) -> None:
    assert decode_metadata(encode_metadata(document, uri=METADATA_URI), uri=METADATA_URI) == document


def test_deepest_state_that_can_be_saved_comes_back() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = {"k": value}
    document = make_document(state=InlineStateHandle(value=encode_state(value)))
    restored = decode_metadata(encode_metadata(document, uri=METADATA_URI), uri=METADATA_URI).state
    assert isinstance(restored, InlineStateHandle)
    assert decode_state(restored.value) == value


def test_equal_documents_give_equal_bytes() -> None:
    assert encode_metadata(make_document(), uri=METADATA_URI) == encode_metadata(
        replace(make_document()), uri=METADATA_URI
    )


def test_header_says_what_it_is_and_the_body_is_canonical_json() -> None:
    data = encode_metadata(make_document(), uri=METADATA_URI)
    header, _, body = data.partition(b"\n")
    assert header == b"statecheck-metadata 1 " + hashlib.sha256(body).hexdigest().encode()
    assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class TestUris:
    def test_uris_below_the_job_are_relative_in_the_file(self) -> None:
        state = FileStateHandle(uri=f"{JOB_URI}/chk-3/2-ff", size=7, sha256="cd")
        values = _body(encode_metadata(make_document(state=state), uri=METADATA_URI))
        assert values["state"]["uri"] == "job:chk-3/2-ff"
        assert [s["uri"] for s in values["snapshots"]] == ["job:shared/op/raw-1a/2-ff"] * 2

    def test_moved_checkpoint_directory_still_loads(self) -> None:
        state = FileStateHandle(uri=f"{JOB_URI}/chk-3/2-ff", size=7, sha256="cd")
        data = encode_metadata(make_document(state=state), uri=METADATA_URI)
        moved = decode_metadata(data, uri=f"s3://archive/2026/{JOB_ID}/chk-3/_metadata")
        assert moved.state == replace(state, uri=f"s3://archive/2026/{JOB_ID}/chk-3/2-ff")
        assert moved.snapshots[0].uri == f"s3://archive/2026/{JOB_ID}/shared/op/raw-1a/2-ff"

    @pytest.mark.parametrize(
        "elsewhere",
        [f"s3://old/base/{JOB_ID}/shared/op/raw/1-a", f"file:///base/{'f' * 32}/shared/op/raw/1-a", "s3://x/y"],
        ids=["same job under an earlier base", "another job", "anywhere"],
    )
    def test_uri_elsewhere_stays_absolute_even_for_the_same_job(self, elsewhere: str) -> None:
        """A restored snapshot is carried into new checkpoints; if the base was changed it is still under the old one."""
        document = make_document(snapshots=(make_snapshot(uri=elsewhere),))
        data = encode_metadata(document, uri=METADATA_URI)
        assert _body(data)["snapshots"][0]["uri"] == elsewhere
        assert decode_metadata(data, uri=METADATA_URI) == document


class TestRefusals:
    @pytest.mark.parametrize(
        "data", [b"", b"\n", b"PAR1", b"{}", b"\xff\xfe\x00", b"statecheck-metadata", b"\x00" * 99]
    )
    def test_what_is_no_metadata_is_said_to_be_none(self, data: bytes) -> None:
        with pytest.raises(IncompatibleCheckpointError, match=r"unexpected magic number.*not a statecheck checkpoint"):
            decode_metadata(data, uri=METADATA_URI)

    @pytest.mark.parametrize("version", [b"2", b"0", b"99", b"\xff", b"one"])
    def test_other_version_is_named(self, version: bytes) -> None:
        data = _with_body(b"{}", b"statecheck-metadata %s " % version)
        with pytest.raises(IncompatibleCheckpointError, match="version 1") as caught:
            decode_metadata(data, uri=METADATA_URI)
        assert repr(version) in str(caught.value)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[]",
            b"5",
            b"null",
            b"{}",
            b"[" * 100_000,
            b'{"snapshots":[5],"state":{"kind":"inline","value":{}}}',
            b'{"snapshots":[{"uri":5,"scope":[]}],"state":{"kind":"inline","value":{}}}',
            b'{"snapshots":[],"state":[]}',
            b'{"snapshots":[],"state":{"kind":"file","uri":7}}',
        ],
        ids=range(12),
    )
    def test_body_of_another_shape_is_corrupt_though_its_checksum_fits(self, body: bytes) -> None:
        with pytest.raises(CorruptStateError, match="cannot be understood"):
            decode_metadata(_with_body(body), uri=METADATA_URI)

    @pytest.mark.parametrize(
        "name", sorted(_body(encode_metadata(make_document(), uri=METADATA_URI)).keys() - OPTIONAL)
    )
    def test_missing_field_is_corrupt(self, name: str) -> None:
        values = _body(encode_metadata(make_document(), uri=METADATA_URI))
        del values[name]
        with pytest.raises(CorruptStateError):
            decode_metadata(_with_body(json.dumps(values).encode()), uri=METADATA_URI)

    def test_changed_body_is_corrupt(self) -> None:
        data = encode_metadata(make_document(), uri=METADATA_URI).replace(b"dag/run", b"dag/rum")
        with pytest.raises(CorruptStateError, match="checksum"):
            decode_metadata(data, uri=METADATA_URI)

    def test_message_shows_no_password(self) -> None:
        for data in (b"", _with_body(b"{"), encode_metadata(make_document(), uri=METADATA_URI)[:-1]):
            with pytest.raises(REFUSALS) as caught:
                decode_metadata(data, uri="s3://key:secret@b/j/chk-1/_metadata")
            assert "secret" not in str(caught.value)

    def test_flipped_bit_at_any_place_is_refused(self) -> None:
        data = encode_metadata(make_document(), uri=METADATA_URI)
        for position in range(len(data)):
            for bit in range(8):
                flipped = bytearray(data)
                flipped[position] ^= 1 << bit
                with pytest.raises(REFUSALS):
                    decode_metadata(bytes(flipped), uri=METADATA_URI)

    def test_no_part_passes_for_the_whole(self) -> None:
        data = encode_metadata(make_document(), uri=METADATA_URI)
        for length in range(len(data)):
            with pytest.raises(REFUSALS):
                decode_metadata(data[:length], uri=METADATA_URI)

    def test_anything_appended_is_refused(self) -> None:
        data = encode_metadata(make_document(), uri=METADATA_URI)
        for more in (b"\n", b" ", data):
            with pytest.raises(REFUSALS):
                decode_metadata(data + more, uri=METADATA_URI)

    @given(data=st.binary(max_size=200) | st.binary(max_size=80).map(lambda b: b"statecheck-metadata " + b))
    def test_arbitrary_bytes_are_refused_and_nothing_else_is_raised(self, data: bytes) -> None:
        with pytest.raises(REFUSALS):
            decode_metadata(data, uri=METADATA_URI)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["snapshots", "state", "kind", "uri", "scope", "value"]), inner)
            ),
        )
    )
    def test_arbitrary_json_is_refused_and_nothing_else_is_raised(self, values: Any) -> None:
        with pytest.raises(REFUSALS):
            decode_metadata(_with_body(json.dumps(values).encode()), uri=METADATA_URI)
