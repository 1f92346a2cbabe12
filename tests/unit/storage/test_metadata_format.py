"""The form of the metadata, the states in it, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorSubtaskState
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import (
    LARGEST_METADATA,
    CheckpointDocument,
    InlineStateHandle,
    decode_metadata,
    document_uris,
    encode_metadata,
    read_metadata,
    read_values,
)
from airflow_provider_statecheck.storage.stored_json import MAX_DEPTH, MOST_VALUES, decode_state, encode_state
from tests.unit.storage.documents import JOB_ID, JOB_URI, METADATA_URI, make_document, make_snapshot
from tests.unit.storage.operator_states import SAVEPOINT_URI, documents, make_operator_state, make_savepoint

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
SAVEPOINT_METADATA = f"{SAVEPOINT_URI}/_metadata"
FULL = make_document(
    operator_states=(make_operator_state(),), master_states=make_savepoint().master_states, snapshots=()
)
EMPTY_STATE = replace(make_operator_state(), subtask_states={0: OperatorSubtaskState()}, coordinator_state=None)


def travelled(document: CheckpointDocument, uri: str = METADATA_URI) -> CheckpointDocument:
    return decode_metadata(encode_metadata(document, uri=uri), uri=uri)


def _with_body(body: bytes, header: bytes = b"statecheck-metadata 1 ") -> bytes:
    return header + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _with_values(values: Any) -> bytes:
    return _with_body(json.dumps(values).encode())


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
        make_document(state=InlineStateHandle(value={"uri": 1, "a": [{"uri": "job:x"}, {"uri": {"uri": "dir:.."}}]})),
        FULL,
        make_document(operator_states=(EMPTY_STATE, replace(EMPTY_STATE, subtask_states={}))),
        make_document(properties=CheckpointProperties.for_checkpoint(is_full=True)),
        make_document(properties=CheckpointProperties.for_sync_savepoint(terminate=True)),
        make_document(properties=CheckpointProperties.for_unclaimed_snapshot()),
        make_document(state=FileStateHandle("job://x/y", 1)),
        make_document(state=FileStateHandle("dir://x/y", 1)),
    ],
    ids=[
        "usual",
        "empty",
        "state in a file",
        "odd text",
        "bare snapshot",
        "empty collections",
        "names of handles",
        "every kind of handle",
        "operators without state",
        "full checkpoint",
        "stop with savepoint",
        "unclaimed",
        "scheme job",
        "scheme dir",
    ],
)
def test_document_comes_back_equal(document: CheckpointDocument) -> None:
    assert travelled(document) == document


def test_deepest_state_that_can_be_saved_comes_back() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = {"k": value}
    document = make_document(state=InlineStateHandle(value=encode_state(value)))
    restored = travelled(document).state
    assert isinstance(restored, InlineStateHandle)
    assert decode_state(restored.value) == value


def _largest(**state: Any) -> CheckpointDocument:
    return make_document(snapshots=(), state=InlineStateHandle(value=state))


def _filled(state: Callable[[int], Any], limit: int, measure: Callable[[bytes], int]) -> tuple[CheckpointDocument, ...]:
    """Return documents that are as large as a limit, and one larger."""
    own = measure(encode_metadata(_largest(x=state(1)), uri=METADATA_URI))
    return tuple(_largest(x=state(limit - own + 1 + more)) for more in (0, 1))


@pytest.mark.parametrize("kind", ["bytes", "values"])
def test_metadata_is_written_up_to_the_size_that_is_read_and_refused_above_it(tmp_path: Path, kind: str) -> None:
    """Otherwise a job could complete a checkpoint that it cannot restore."""
    uri = METADATA_URI
    if kind == "bytes":
        # The header may have as many bytes as are set aside for it.
        documents = _filled(lambda n: "a" * n, LARGEST_METADATA - 128, lambda data: len(data.partition(b"\n")[2]))
    else:
        documents = _filled(
            lambda n: [0] * n, MOST_VALUES, lambda data: data.count(b",") + data.count(b"[") + data.count(b"{")
        )
    fits, exceeds = documents
    data = encode_metadata(fits, uri=uri)
    storage = CheckpointStorage.open(tmp_path.as_uri())
    written = f"{storage.base_uri}/_metadata"
    storage.write_bytes(written, data)
    assert read_metadata(storage, written)[0].state == fits.state
    with pytest.raises(InvalidConfigurationError, match="use fewer snapshots, states or subtasks"):
        encode_metadata(exceeds, uri=uri)


def test_header_says_what_it_is_and_the_body_is_canonical_json() -> None:
    data = encode_metadata(make_document(), uri=METADATA_URI)
    header, _, body = data.partition(b"\n")
    assert header == b"statecheck-metadata 1 " + hashlib.sha256(body).hexdigest().encode()
    assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


class TestUris:
    @pytest.mark.parametrize(
        "elsewhere",
        [f"s3://old/base/{JOB_ID}/shared/op/raw/1-a", f"file:///base/{'f' * 32}/shared/op/raw/1-a", "s3://x/y"],
        ids=["same job under an earlier base", "another job", "anywhere"],
    )
    def test_uri_elsewhere_stays_absolute_even_for_the_same_job(self, elsewhere: str) -> None:
        """
        A restored snapshot is carried into new checkpoints.

        If the base was changed it is still under the old one.
        """
        document = replace(FULL, snapshots=(make_snapshot(uri=elsewhere),))
        values = _body(encode_metadata(document, uri=METADATA_URI))
        assert values["snapshots"][0]["uri"] == elsewhere
        assert values["operator_states"][0]["coordinator_state"]["uri"] == "job:chk-3/2-ee"
        assert values["relocatable"] is False
        assert travelled(document) == document


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
            decode_metadata(_with_values(values), uri=METADATA_URI)

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

    def test_neither_a_part_nor_more_passes_for_the_whole(self) -> None:
        data = encode_metadata(make_document(), uri=METADATA_URI)
        parts = (data[:length] for length in range(len(data)))
        for other in (*parts, data + b"\n", data + b" ", data + data):
            with pytest.raises(REFUSALS):
                decode_metadata(other, uri=METADATA_URI)

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
            decode_metadata(_with_values(values), uri=METADATA_URI)


def written_uris(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        yield from ([values["uri"]] if "uri" in values else [])
        values = list(values.values())
    for inner in values if isinstance(values, list) else ():
        yield from written_uris(inner)


class TestRoundTrip:
    @settings(max_examples=150, deadline=None)
    @given(documents, st.sampled_from([METADATA_URI, SAVEPOINT_METADATA]))
    def test_any_document_comes_back_equal(self, document: CheckpointDocument, uri: str) -> None:
        data = encode_metadata(document, uri=uri)
        restored, moved = decode_metadata(data, uri=uri), decode_metadata(data, uri="s3://moved/job/chk-3/_metadata")
        assert restored == document
        assert restored.relocatable is all(name.startswith("s3://moved/job/") for name in document_uris(moved))

    def test_equal_states_give_equal_bytes_in_whatever_order_subtasks_were_put(self) -> None:
        (state,) = FULL.operator_states
        turned = replace(state, subtask_states=dict(reversed(state.subtask_states.items())))
        assert encode_metadata(FULL, uri=METADATA_URI) == encode_metadata(
            replace(FULL, operator_states=(turned,)), uri=METADATA_URI
        )

    def test_document_of_before_loads_with_defaults(self) -> None:
        values = _body(encode_metadata(make_document(), uri=METADATA_URI))
        for name in ("properties", "operator_states", "master_states", "relocatable"):
            del values[name]
        restored = decode_metadata(_with_values(values), uri=METADATA_URI)
        assert restored == make_document()
        assert restored.relocatable is None

    def test_unknown_optional_fields_are_skipped_at_every_place(self) -> None:
        data = encode_metadata(make_savepoint(), uri=SAVEPOINT_METADATA)

        def with_more(values: Any) -> Any:
            if isinstance(values, list):
                return [with_more(item) for item in values]
            if isinstance(values, dict):
                later = {} if all(map(str.isdigit, values)) else {"later": {"any": ["thing"]}}
                return {name: with_more(item) for name, item in values.items()} | later
            return values

        assert decode_metadata(_with_values(with_more(_body(data))), uri=SAVEPOINT_METADATA) == make_savepoint()


class TestRelocation:
    def test_uris_of_a_savepoint_are_relative_to_its_directory(self) -> None:
        values = _body(encode_metadata(make_savepoint(), uri=SAVEPOINT_METADATA))
        written = list(written_uris(values))
        assert len(written) >= 9
        assert all(uri.startswith("dir:") for uri in written)
        assert values["state"]["uri"] == "dir:2-ff"
        assert values["relocatable"] is True
        assert travelled(make_savepoint(), SAVEPOINT_METADATA) == make_savepoint()

    @pytest.mark.parametrize("place", ["file:///elsewhere/renamed", "s3://other/a/b/savepoint-012345-0123456789ab"])
    def test_moved_savepoint_still_loads(self, place: str) -> None:
        data = encode_metadata(make_savepoint(), uri=SAVEPOINT_METADATA)
        moved = decode_metadata(data, uri=f"{place}/_metadata")
        assert moved == make_savepoint(place)
        assert moved.relocatable

    @pytest.mark.parametrize(
        "elsewhere",
        ["s3://saved/other/2-ff", "s3://saved/savepoint-012345-0123456789ab-more/x", f"{SAVEPOINT_URI}/../other/x"],
        ids=["beside", "name that begins alike", "way out"],
    )
    def test_savepoint_that_names_anything_else_is_recorded_absolute_and_flagged(self, elsewhere: str) -> None:
        document = make_savepoint(state=FileStateHandle(elsewhere, 7, "cd"))
        data = encode_metadata(document, uri=SAVEPOINT_METADATA)
        values = _body(data)
        assert values["relocatable"] is False
        assert set(written_uris(values)) == set(document_uris(document))
        copied = decode_metadata(data, uri="file:///elsewhere/_metadata")
        assert copied == document
        assert copied.relocatable is False

    def test_checkpoint_is_relative_to_its_job_and_still_loads_where_that_was_moved(self) -> None:
        base = f"s3://archive/2026/{JOB_ID}"
        values = _body(encode_metadata(replace(FULL, snapshots=(make_snapshot(),)), uri=METADATA_URI))
        assert [snapshot["uri"] for snapshot in values["snapshots"]] == ["job:shared/op/raw-1a/2-ff"]
        assert all(uri.startswith("job:chk-3/") for uri in written_uris(values["operator_states"]))
        assert values["relocatable"] is True
        moved = decode_metadata(_with_values(values), uri=f"{base}/chk-3/_metadata")
        assert moved.operator_states == (make_operator_state(f"{base}/chk-3"),)
        assert moved.snapshots[0].uri == f"{base}/shared/op/raw-1a/2-ff"

    @pytest.mark.parametrize("uri", ["job:chk-1/x", "dir:x"])
    def test_what_would_be_taken_for_relative_cannot_be_written(self, uri: str) -> None:
        with pytest.raises(InvalidConfigurationError, match="absolute URI"):
            encode_metadata(make_document(state=FileStateHandle(uri, 1)), uri=METADATA_URI)

    @pytest.mark.parametrize("uri", ["dir:../x", "dir:a/../../x", "job:..", "dir:", "job:/etc", "dir:a//b", "dir:./a"])
    def test_relative_uri_that_leads_out_of_its_directory_is_refused(self, uri: str) -> None:
        values = _body(encode_metadata(make_document(state=FileStateHandle(f"{JOB_URI}/chk-3/x", 1)), uri=METADATA_URI))
        values["state"]["uri"] = uri
        with pytest.raises(CorruptStateError, match="leads out of its directory"):
            decode_metadata(_with_values(values), uri=METADATA_URI)


class TestRefusedStates:
    DATA = encode_metadata(make_savepoint(), uri=SAVEPOINT_METADATA)

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            (("operator_states",), 5),
            (("operator_states", 0), {}),
            (("operator_states", 0, "operator_id"), 5),
            (("operator_states", 0, "parallelism"), "12"),
            (("operator_states", 0, "max_parallelism"), True),
            (("operator_states", 0, "is_fully_finished"), "no"),
            (("operator_states", 0, "is_fully_finished"), True),
            (("operator_states", 0, "subtask_states"), {"12": {}}),
            (("operator_states", 0, "subtask_states"), {"one": {}}),
            (("operator_states", 0, "coordinator_state"), {"kind": "placeholder", "state_size": 3}),
            (("operator_states", 0, "coordinator_state"), {"kind": "pickle", "data": ""}),
            (("operator_states", 0, "coordinator_state"), {"kind": "bytes", "name": "n", "data": "*"}),
            (("operator_states", 0, "coordinator_state"), {"kind": "file", "uri": "s3://x", "size": 1.5}),
            (("operator_states", 0, "subtask_states"), [["1", {}]]),
            (("operator_states", 0, "subtask_states", "11", "managed_keyed", 1, "private"), [0]),
            (("operator_states", 0, "subtask_states", "11", "managed_keyed", 1, "key_group_range"), [0]),
            (("operator_states", 0, "subtask_states", "11", "managed_operator", 0, "states"), [["a", {"mode": "x"}]]),
            (("master_states", 0, "data"), 5),
            (("properties", "snapshot_type"), "dump"),
            (("properties", "savepoint_format"), None),
            (("properties", "unclaimed"), 1),
            (("properties",), []),
            (("relocatable",), "yes"),
            (("created_at",), "yesterday"),
            (("created_at",), "2026-01-01T00:00:00"),
            (("snapshots", 0, "created_at"), ""),
        ],
    )
    def test_body_of_another_shape_is_corrupt_though_its_checksum_fits(
        self, place: tuple[Any, ...], value: Any
    ) -> None:
        values = _body(self.DATA)
        target = values
        for step in place[:-1]:
            target = target[step]
        target[place[-1]] = value
        with pytest.raises(CorruptStateError, match="cannot be understood"):
            decode_metadata(_with_values(values), uri=SAVEPOINT_METADATA)

    @settings(deadline=None)
    @given(st.data())
    def test_values_that_are_swapped_are_refused_or_understood_and_nothing_else_is_raised(
        self, data: st.DataObject
    ) -> None:
        """
        The checksum fits, as in a file that was made on purpose.

        Names of classes and functions in it are only text.
        """
        values = _body(self.DATA)
        target: Any = values
        while isinstance(target, dict | list) and target:
            keys = sorted(target) if isinstance(target, dict) else list(range(len(target)))
            key = data.draw(st.sampled_from(keys))
            if data.draw(st.booleans()) or not isinstance(target[key], dict | list):
                target[key] = data.draw(
                    st.sampled_from([None, 5, -1, "", "os.system", [], {}, ["x"], {"kind": "file"}])
                )
                break
            target = target[key]
        with contextlib.suppress(CorruptStateError):
            decode_metadata(_with_values(values), uri=SAVEPOINT_METADATA)


def test_every_named_uri_is_listed() -> None:
    written = written_uris(_body(encode_metadata(make_savepoint(), uri=SAVEPOINT_METADATA)))
    assert sorted(document_uris(make_savepoint())) == sorted(
        uri.replace("dir:", f"{SAVEPOINT_URI}/") for uri in written
    )


@pytest.mark.parametrize("data", [b"{", b"[]"])
def test_values_that_cannot_be_read_are_refused_without_the_credentials_of_their_uri(data: bytes) -> None:
    uri = f"memory://anna:secret@store/{JOB_ID}/chk-3/2-ff"
    storage = CheckpointStorage.open("memory://base").allowing(uri)
    storage.write_bytes(uri, data, overwrite=True)
    handle = FileStateHandle(uri=uri, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(CorruptStateError, match=r"\*\*\*@store") as caught:
        read_values(storage, make_document(state=handle))
    assert "secret" not in str(caught.value)
