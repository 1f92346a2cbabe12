"""
Object stores through PyArrow, for Pythons without s3fs, gcsfs or adlfs.

Managed runtimes of Spark have PyArrow, but seldom the fsspec package of a store. The filesystems here accept the same
URIs and the options of that package; an option that PyArrow has no counterpart for is refused, because a store without
it may be another one, or may not encrypt.

PyArrow cannot require that a name is free, so a write first looks for the file. Its client reports causes only in the
text of its errors, which :mod:`~.failures` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

from fsspec.implementations.arrow import ArrowFSWrapper

Translation = Callable[[Any], dict[str, Any]]
"""Function that returns the arguments of PyArrow for the value of an option."""


class UnsupportedConditionError(OSError):
    """PyArrow cannot create an object only if its name is free."""

    error_code = "NotImplemented"


class MissingBucketError(FileNotFoundError):
    """The bucket of a file does not exist."""

    error_code = "NoSuchBucket"


class ArrowStore(ArrowFSWrapper):  # type: ignore[misc]
    """
    An object store as an fsspec filesystem that PyArrow serves.

    :param use_listings_cache: Must be false; listings are never cached.
    :param options: Options as the fsspec package of the store has them.
    :raises ValueError: if PyArrow has no counterpart for an option, or for its value.
    """

    package: ClassVar[str]
    """fsspec package of the store."""
    extra: ClassVar[str]
    """Extra of this distribution that installs the package."""
    translations: ClassVar[Mapping[str, Translation]]
    """Arguments of PyArrow by option; an option in another one is named with a dot between them."""
    root_marker = ""

    def __init__(self, *, use_listings_cache: bool = False, **options: Any) -> None:
        super().__init__(self.client(self._arguments(options)), use_listings_cache=use_listings_cache)
        self._found_buckets: set[str] = set()

    @staticmethod
    def client(arguments: dict[str, Any]) -> Any:
        """Return PyArrow's filesystem."""
        raise NotImplementedError

    def _arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(_flat(options, self.translations))
        unknown = sorted(given.keys() - self.translations.keys())
        if unknown:
            raise ValueError(
                f"PyArrow, which serves {self.protocol[0]}:// because {self.package} is not installed, has no "
                f"{', '.join(unknown)}; leave these options out, or run pip install "
                f"'airflow-provider-statecheck[{self.extra}]' there."
            )
        arguments: dict[str, Any] = {}
        for name, translate in self.translations.items():  # in their order: an endpoint decides on encryption
            if name in given:
                arguments |= translate(given[name])
        return arguments

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        # The wrapper's own cuts names at # and ?.
        return super(ArrowFSWrapper, cls)._strip_protocol(path)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return the details of a file or directory."""
        try:
            return dict(super().info(path))
        except FileNotFoundError:
            self._require_bucket(path)
            raise

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """Return all files below a directory, from one flat listing."""
        from pyarrow.fs import FileSelector

        if maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        selector = FileSelector(self._strip_protocol(path), recursive=True, allow_not_found=True)
        entries = map(self._make_entry, self.fs.get_file_info(selector))
        found = {entry["name"]: entry for entry in entries if withdirs or entry["type"] != "directory"}
        if not found:
            self._require_bucket(path)
        return dict(sorted(found.items())) if detail else sorted(found)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """
        Write an object in one call.

        :raises UnsupportedConditionError: if the name must be free.
        """
        from pyarrow import py_buffer

        if mode == "create":
            raise UnsupportedConditionError(f"PyArrow has no conditional create for {path}")
        data = py_buffer(value)  # first, because a stream that an exception closes publishes what it has
        try:
            with self.fs.open_output_stream(self._strip_protocol(path), compression=None) as stream:
                stream.write(data)
        except FileNotFoundError:
            self._require_bucket(path)
            raise

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy an object within the store."""
        source = self._strip_protocol(path1)
        try:
            self.fs.copy_file(source, self._strip_protocol(path2))
        except OSError:
            self.info(source)  # reports a missing source
            raise

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        try:
            super().rm_file(path)
        except FileNotFoundError:
            self._require_bucket(path)
            raise

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete an object, or a directory with all that it contains."""
        # The wrapper's own takes a directory for a file if the store fails.
        found = self._strip_protocol(path)
        if recursive and self.info(found)["type"] == "directory":
            self.fs.delete_dir(found)
        else:
            self.rm_file(found)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: objects need no directories, for which PyArrow would write empty objects."""

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing, as :meth:`makedirs`."""

    def _open(self, path: str, mode: str = "rb", *given: Any, **options: Any) -> Any:
        try:
            return super()._open(path, mode, *given, **options)
        except FileNotFoundError:
            self._require_bucket(path)
            raise

    def _require_bucket(self, path: str) -> None:
        """Require that a bucket exists, because PyArrow reports its files as missing if it does not."""
        bucket = self._strip_protocol(path).partition("/")[0]
        if bucket in self._found_buckets:
            return
        try:
            found = self.fs.get_file_info(bucket)
        except OSError:
            return  # the right to ask for a bucket is another one than those for its objects
        if found.type.name == "NotFound":
            raise MissingBucketError(f"the bucket {bucket} does not exist")
        self._found_buckets.add(bucket)


def _flat(options: Mapping[str, Any], known: Mapping[str, Translation], above: str = "") -> Iterator[tuple[str, Any]]:
    """Return options with those in other options, whose names have a dot."""
    for name, value in options.items():
        full = f"{above}{name}"
        if isinstance(value, Mapping) and any(each.startswith(f"{full}.") for each in known):
            yield from _flat(value, known, f"{full}.")
        elif value is not None:
            yield full, value


def _as(argument: str) -> Translation:
    return lambda value: {argument: value}


def _endpoint(value: Any) -> dict[str, Any]:
    parts = urlsplit(str(value))
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("Expected endpoint_url to be a URL with http or https; correct it.")
    return {"scheme": parts.scheme, "endpoint_override": f"{parts.netloc}{parts.path.rstrip('/')}"}


def _certificates(value: Any) -> dict[str, Any]:
    if value is False:
        raise ValueError("PyArrow verifies certificates always; set client_kwargs.verify to the path of a CA file.")
    return {} if value is True else {"tls_ca_file_path": str(value)}


def _signature(value: Any) -> dict[str, Any]:
    if value != "s3v4":
        raise ValueError("PyArrow signs requests with s3v4 only; leave config_kwargs.signature_version out.")
    return {}


def _addressing(value: Any) -> dict[str, Any]:
    return {"force_virtual_addressing": True} if value == "virtual" else {}


def _tries(extra: int) -> Translation:
    def translate(value: Any) -> dict[str, Any]:
        from pyarrow.fs import AwsStandardS3RetryStrategy

        return {"retry_strategy": AwsStandardS3RetryStrategy(max_attempts=int(value) + extra)}

    return translate


_WITH_DELAYED_OPEN = 21
"""First version of PyArrow that can write a small object in one request; earlier ones need three."""


class ArrowS3(ArrowStore):
    """S3 through PyArrow, with the options of s3fs."""

    protocol = ("s3", "s3a")
    package, extra = "s3fs", "s3"
    translations: ClassVar[Mapping[str, Translation]] = {
        "anon": _as("anonymous"),
        "key": _as("access_key"),
        "username": _as("access_key"),
        "secret": _as("secret_key"),
        "password": _as("secret_key"),
        "token": _as("session_token"),
        "use_ssl": lambda value: {} if value else {"scheme": "http"},
        "endpoint_url": _endpoint,
        "client_kwargs.aws_access_key_id": _as("access_key"),
        "client_kwargs.aws_secret_access_key": _as("secret_key"),
        "client_kwargs.aws_session_token": _as("session_token"),
        "client_kwargs.endpoint_url": _endpoint,
        "client_kwargs.region_name": _as("region"),
        "client_kwargs.verify": _certificates,
        "config_kwargs.region_name": _as("region"),
        "config_kwargs.connect_timeout": _as("connect_timeout"),
        "config_kwargs.read_timeout": _as("request_timeout"),
        "config_kwargs.signature_version": _signature,
        "config_kwargs.retries.max_attempts": _tries(1),
        "config_kwargs.retries.total_max_attempts": _tries(0),
        "config_kwargs.s3.addressing_style": _addressing,
    }

    @staticmethod
    def client(arguments: dict[str, Any]) -> Any:
        """Return PyArrow's filesystem."""
        import pyarrow
        from pyarrow.fs import S3FileSystem

        if int(pyarrow.__version__.partition(".")[0]) >= _WITH_DELAYED_OPEN:
            arguments = {"allow_delayed_open": True, **arguments}
        return S3FileSystem(**arguments)


def _token(value: Any) -> dict[str, Any]:
    if value in ("google_default", "cloud"):
        return {}
    if value != "anon":
        raise ValueError(
            "PyArrow finds Google's credentials itself; leave token out and set GOOGLE_APPLICATION_CREDENTIALS, or run "
            "pip install 'airflow-provider-statecheck[gcs]' there."
        )
    return {"anonymous": True}


_GOOGLE_RETRIES = timedelta(seconds=30)
"""Time that Google's client retries by itself; its default is 15 minutes."""


class ArrowGcs(ArrowStore):
    """Google Cloud Storage through PyArrow, with the options of gcsfs."""

    protocol = ("gs", "gcs")
    package, extra = "gcsfs", "gcs"
    translations: ClassVar[Mapping[str, Translation]] = {
        "endpoint_url": _endpoint,
        "project": _as("project_id"),
        "token": _token,
    }

    @staticmethod
    def client(arguments: dict[str, Any]) -> Any:
        """Return PyArrow's filesystem."""
        from pyarrow.fs import GcsFileSystem

        return GcsFileSystem(retry_time_limit=_GOOGLE_RETRIES, **arguments)

    def ls(self, path: str, detail: bool = False, **_: Any) -> list[Any]:
        """Return the entries of a directory; PyArrow leaves out directories that have no object of their own."""
        root = self._strip_protocol(path)
        entries: dict[str, dict[str, Any]] = {}
        for name, entry in self.find(root, withdirs=True, detail=True).items():
            first, slash, _ = name.removeprefix(root).lstrip("/").partition("/")
            if first:
                child = f"{root}/{first}"
                entries[child] = {"name": child, "size": 0, "type": "directory"} if slash else entry
        if not entries:
            entries[root] = self.info(root)
        return list(entries.values()) if detail else list(entries)


class ArrowAzure(ArrowStore):
    """Azure's storage through PyArrow, with the options of adlfs."""

    protocol = ("abfs", "abfss", "az")
    package, extra = "adlfs", "azure"
    translations: ClassVar[Mapping[str, Translation]] = {
        name: _as(name)
        for name in ("account_name", "account_key", "sas_token", "tenant_id", "client_id", "client_secret")
    }

    @staticmethod
    def client(arguments: dict[str, Any]) -> Any:
        """
        Return PyArrow's filesystem.

        :raises ValueError: if neither the URI nor an option names the account.
        """
        from pyarrow.fs import AzureFileSystem

        if "account_name" not in arguments:
            raise ValueError("Expected the account in the URI, as in abfs://container@account.dfs.core.windows.net/x.")
        return AzureFileSystem(**arguments)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        found = super()._strip_protocol(path)
        if not isinstance(found, str):
            return found
        container, slash, rest = found.partition("/")
        return f"{container.partition('@')[0]}{slash}{rest}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        host = path.partition("://")[2].partition("/")[0].partition("@")[2]
        return {"account_name": host.partition(".")[0]} if host else {}


STORES: Mapping[str, type[ArrowStore]] = {
    scheme: kind for kind in (ArrowS3, ArrowGcs, ArrowAzure) for scheme in kind.protocol
}
"""Filesystems by scheme."""
