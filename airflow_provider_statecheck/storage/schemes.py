"""Which extra brings the filesystem of a URI's scheme."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import redact

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


def open_filesystem(uri: str, options: dict[str, Any]) -> Any:
    """
    Return the fsspec filesystem of a URI.

    :raises InvalidConfigurationError: for an unknown scheme, or one whose package is not installed.
    """
    import fsspec

    scheme = uri.partition("://")[0]
    try:
        # Listings must not be remembered: other writers' files would stay invisible.
        return fsspec.filesystem(scheme, use_listings_cache=False, **options)
    except ImportError as error:
        extra = EXTRAS.get(scheme)
        hint = f"pip install 'airflow-provider-statecheck[{extra}]'" if extra else str(error)
        raise InvalidConfigurationError(
            f"The filesystem of {redact(uri)!r} needs a package that is not installed: {hint}."
        ) from error
    except ValueError as error:
        raise InvalidConfigurationError(
            f"Expected a scheme that fsspec knows, found {scheme!r} in {redact(uri)!r}."
        ) from error
