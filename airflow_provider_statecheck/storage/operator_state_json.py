"""What a checkpoint says of its operators, its master hooks and itself, as JSON; fields that are not known are passed over."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.operator_state import (
    MasterState,
    OperatorState,
    OperatorSubtaskState,
)
from airflow_provider_statecheck.storage.handle_json import (
    Json,
    UriForm,
    boolean,
    decode_bytes,
    decode_keyed,
    decode_operator,
    decode_stream,
    encode_bytes,
    encode_keyed,
    encode_operator,
    encode_stream,
    number,
    text,
)


def encode_operator_state(state: OperatorState, shorten: UriForm) -> Json:
    """
    Return the state of an operator as JSON.

    :raises InvalidConfigurationError: if it holds a placeholder.
    """
    coordinator = state.coordinator_state
    return {
        "operator_id": state.operator_id,
        "uid": state.uid,
        "name": state.name,
        "parallelism": state.parallelism,
        "max_parallelism": state.max_parallelism,
        "subtask_states": [
            [index, _encode_subtask(subtask, shorten)] for index, subtask in sorted(state.subtask_states.items())
        ],
        "coordinator_state": None if coordinator is None else encode_stream(coordinator, shorten),
        "is_fully_finished": state.is_fully_finished,
    }


def decode_operator_state(values: Json, lengthen: UriForm) -> OperatorState:
    """
    Return the state of the operator that was encoded.

    :raises ValueError: or another error of a lookup or type, for what is no state of an operator.
    """
    coordinator = values.get("coordinator_state")
    return OperatorState(
        operator_id=OperatorId(text(values["operator_id"])),
        uid=text(values["uid"]),
        name=text(values.get("name", "")),
        parallelism=number(values["parallelism"]),
        max_parallelism=number(values["max_parallelism"]),
        subtask_states={
            number(index): _decode_subtask(subtask, lengthen) for index, subtask in values["subtask_states"]
        },
        coordinator_state=None if coordinator is None else decode_stream(coordinator, lengthen),
        is_fully_finished=boolean(values.get("is_fully_finished", False)),
    )


def encode_master_state(state: MasterState) -> Json:
    """Return what a master hook saved as JSON."""
    return {"name": state.name, "version": state.version, "data": encode_bytes(state.data)}


def decode_master_state(values: Json) -> MasterState:
    """Return what the master hook saved; raises as :func:`decode_operator_state`."""
    data = decode_bytes(values["data"])
    return MasterState(name=text(values["name"]), version=number(values["version"]), data=data)


def encode_properties(properties: CheckpointProperties) -> Json:
    """Return the properties of a snapshot as JSON."""
    return {field.name: getattr(properties, field.name) for field in fields(properties)}


def decode_properties(values: Json) -> CheckpointProperties:
    """Return the properties that were encoded; raises as :func:`decode_operator_state`."""
    names = {field.name for field in fields(CheckpointProperties)}
    return CheckpointProperties(**{name: _decode_property(name, values[name]) for name in names & values.keys()})


def _decode_property(name: str, value: Any) -> Any:
    if name == "snapshot_type":
        return CheckpointType(value)
    if name == "savepoint_format":
        return None if value is None else SavepointFormat(value)
    return boolean(value)


def _encode_subtask(state: OperatorSubtaskState, shorten: UriForm) -> Json:
    return {
        "managed_operator": [encode_operator(handle, shorten) for handle in state.managed_operator],
        "raw_operator": [encode_operator(handle, shorten) for handle in state.raw_operator],
        "managed_keyed": [encode_keyed(handle, shorten) for handle in state.managed_keyed],
        "raw_keyed": [encode_keyed(handle, shorten) for handle in state.raw_keyed],
    }


def _decode_subtask(values: Json, lengthen: UriForm) -> OperatorSubtaskState:
    return OperatorSubtaskState(
        managed_operator=tuple(decode_operator(handle, lengthen) for handle in values.get("managed_operator", ())),
        raw_operator=tuple(decode_operator(handle, lengthen) for handle in values.get("raw_operator", ())),
        managed_keyed=tuple(decode_keyed(handle, lengthen) for handle in values.get("managed_keyed", ())),
        raw_keyed=tuple(decode_keyed(handle, lengthen) for handle in values.get("raw_keyed", ())),
    )
