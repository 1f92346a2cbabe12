"""JSON files as a source."""

from __future__ import annotations

from airflow_provider_statecheck.spark.sources.text_file_source import TextFileSource


class JsonSource(TextFileSource):
    """JSON files, each read as a whole; its arguments are those of :class:`~airflow_provider_statecheck.spark.sources.text_file_source.TextFileSource`."""

    _format = "json"
