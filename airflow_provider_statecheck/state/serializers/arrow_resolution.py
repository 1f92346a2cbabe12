"""The serializer of an Arrow type; nested ones are made of those of their parts."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.state.serializers.arrow_serializer import ArrowSerializer
from airflow_provider_statecheck.state.serializers.collection_serializer import CollectionSerializer
from airflow_provider_statecheck.state.serializers.dict_serializer import DictSerializer
from airflow_provider_statecheck.state.serializers.optional import OptionalSerializer
from airflow_provider_statecheck.state.serializers.record_serializer import RecordField, RecordSerializer
from airflow_provider_statecheck.state.serializers.record_shapes import DictShape
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer


def serializer_of_arrow_type(arrow_type: Any) -> TypeSerializer[Any]:
    """
    Return the serializer of an Arrow type; values of a struct are dictionaries.

    :raises UnsupportedStateError: for a type that cannot be a column of state.
    """
    import pyarrow.types as pat

    if pat.is_struct(arrow_type):
        fields = [RecordField(name=field.name, serializer=_part(field)) for field in arrow_type]
        return RecordSerializer(DictShape([field.name for field in arrow_type]), fields)
    if pat.is_map(arrow_type):
        return DictSerializer(serializer_of_arrow_type(arrow_type.key_type), _part(arrow_type.item_field))
    if pat.is_list(arrow_type):
        return CollectionSerializer(list, _part(arrow_type.value_field))
    return ArrowSerializer(arrow_type)


def _part(field: Any) -> TypeSerializer[Any]:
    serializer = serializer_of_arrow_type(field.type)
    return OptionalSerializer(serializer) if field.nullable else serializer
