"""PyIceberg's FileIO over obstore: object stores and local files, without Arrow, which would take 90 MB of the operator's memory.

PyIceberg loads it by the property ``py-io-impl`` (`IMPLEMENTATION`). Properties are Iceberg's Java keys.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, unquote, urlsplit

import obstore
from obstore.exceptions import NotFoundError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from firn.trust import STORE_CA_FILE
from firn_operator.adapters import secret_files

IMPLEMENTATION = "firn_operator.adapters.iceberg.file_io.ObjectFileIO"
_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
_AZURE_SCHEMES = frozenset({"abfs", "abfss", "wasb", "wasbs"})
_CLIENT_OPTIONS = {"connect_timeout": "5s", "timeout": "30s"}
_PAGE = 1_000
"""Number of files in a page of a list."""
_RETRIES = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}

Store = S3Store | GCSStore | AzureStore | LocalStore


class UnknownSchemeError(ValueError):
    """The scheme of a location is not supported."""


def s3_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return obstore's settings from Iceberg's ``s3.*`` and ``client.*``.

    Missing settings come from the environment (workload identity).
    """
    taken = {
        "endpoint": properties.get("s3.endpoint"),
        "access_key_id": properties.get("s3.access-key-id"),
        "secret_access_key": properties.get("s3.secret-access-key"),
        "token": properties.get("s3.session-token"),
        "region": properties.get("s3.region") or properties.get("client.region"),
    }
    settings: dict[str, Any] = {key: value for key, value in taken.items() if value}
    if "endpoint" in settings:
        settings.setdefault("region", "us-east-1")
    path_style = properties.get("s3.path-style-access", "false").lower() == "true"
    settings["virtual_hosted_style_request"] = not path_style and "endpoint" not in settings
    return settings


def _azure_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    taken = {
        "account_key": properties.get("adls.auth.shared-key.account.key"),
        "tenant_id": properties.get("adls.tenant-id"),
        "client_id": properties.get("adls.client-id"),
        "client_secret": properties.get("adls.client-secret"),
        "sas_key": next((value for key, value in properties.items() if key.startswith("adls.sas-token.")), None),
    }
    return {key: value for key, value in taken.items() if value}


@lru_cache(maxsize=64)
def _store(
    scheme: str, bucket: str, properties: tuple[tuple[str, str], ...], trust: secret_files.Signature = ()
) -> Store:
    """Return the client of a bucket. ``trust`` makes another client for a changed file of CA certificates."""
    remaining = dict(properties)
    options: dict[str, Any] = dict(_CLIENT_OPTIONS)
    if trust:
        options["root_certificate"] = secret_files.read(trust[0][0], "CA certificates of the object store")
    if scheme in _S3_SCHEMES:
        settings = s3_settings(remaining)
        options["allow_http"] = str(settings.get("endpoint", "")).startswith("http://")
        return S3Store(
            bucket, config=cast(Any, settings), client_options=cast(Any, options), retry_config=cast(Any, _RETRIES)
        )
    if scheme == "gs":
        return GCSStore(bucket, client_options=cast(Any, options), retry_config=cast(Any, _RETRIES))
    if scheme in _AZURE_SCHEMES:
        container, _, host = bucket.partition("@")
        settings = {**_azure_settings(remaining), "account_name": host.partition(".")[0]}
        return AzureStore(container, config=cast(Any, settings), client_options=cast(Any, options))
    if scheme in ("", "file"):
        return LocalStore()
    raise UnknownSchemeError(f"locations with {scheme}:// are not supported: use s3, gs, abfs or file")


class _Place:
    """A location: its store and the path in it."""

    def __init__(self, location: str, properties: Mapping[str, str]) -> None:
        parts = urlsplit(location)
        self.location = location
        self.local = parts.scheme in ("", "file")
        self.path = unquote(parts.path) if self.local else location.split("://", 1)[1].partition("/")[2]
        relevant = tuple(
            sorted(
                (key, value) for key, value in properties.items() if key.startswith(("s3.", "client.", "adls.", "gcs."))
            )
        )
        trusted = properties.get(STORE_CA_FILE)
        trust = () if trusted is None or self.local else secret_files.signature([trusted])
        self.store = _store(parts.scheme, "" if self.local else parts.netloc, relevant, trust)
        self.root = "file:///" if self.local else f"{parts.scheme}://{parts.netloc}/"

    def location_of(self, path: str) -> str:
        """Return the location of another path in the same store."""
        return self.root + (quote(path) if self.local else path)


class _Buffer(io.BytesIO):
    """The content of a file during writing. Closing it stores the file with one request."""

    def __init__(self, finish: Callable[[bytes], None]) -> None:
        super().__init__()
        self._finish = finish

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if not self.closed:
            self._finish(self.getvalue())
            super().close()


class ObjectFile(InputFile, OutputFile):
    """A file in an object store, which is read and written as a whole: table metadata and manifests are small."""

    def __init__(self, place: _Place) -> None:
        super().__init__(place.location)
        self._place = place

    def __len__(self) -> int:
        return int(obstore.head(self._place.store, self._place.path)["size"])

    def exists(self) -> bool:
        """Return True if the file exists."""
        try:
            obstore.head(self._place.store, self._place.path)
        except (NotFoundError, FileNotFoundError):
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        """Return the content as a stream. Raises FileNotFoundError."""
        try:
            return cast(InputStream, io.BytesIO(bytes(obstore.get(self._place.store, self._place.path).bytes())))
        except NotFoundError as error:
            raise FileNotFoundError(f"{self.location} does not exist") from error

    def to_input_file(self) -> InputFile:
        """Return this file for reading."""
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        """Return a stream that stores the file when it is closed. Raises FileExistsError unless ``overwrite``."""
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} exists already")
        return cast(OutputStream, _Buffer(self._put))

    def _put(self, content: bytes) -> None:
        if self._place.local:
            os.makedirs(os.path.dirname(self._place.path), exist_ok=True)
        obstore.put(self._place.store, self._place.path, content, mode="overwrite", use_multipart=False)


class ObjectFileIO(FileIO):
    """PyIceberg's FileIO over obstore."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)

    def _file(self, location: str) -> ObjectFile:
        return ObjectFile(_Place(location, self.properties))

    def new_input(self, location: str) -> InputFile:
        """Return the file at a location for reading."""
        return self._file(location)

    def new_output(self, location: str) -> OutputFile:
        """Return the file at a location for writing."""
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete one file. Succeed if it does not exist."""
        self.delete_all([location if isinstance(location, str) else location.location])

    def delete_all(self, locations: Iterable[str]) -> None:
        """Delete many files, in bulk requests if the store supports them. Files that do not exist are no error."""
        by_store: dict[int, tuple[Store, list[str]]] = {}
        for location in locations:
            place = _Place(location, self.properties)
            by_store.setdefault(id(place.store), (place.store, []))[1].append(place.path)
        for store, paths in by_store.values():
            for path in paths if isinstance(store, LocalStore) else ():
                _delete_local(path)
            if not isinstance(store, LocalStore):
                obstore.delete(store, paths)

    def list_below(self, folder: str) -> Iterator[list[tuple[str, float]]]:
        """Yield pages of the locations of all files below ``folder``, with their times of writing in seconds since 1970.

        A folder that does not exist has no files.
        """
        place = _Place(folder, self.properties)
        for page in obstore.list(place.store, prefix=place.path.rstrip("/"), chunk_size=_PAGE):
            yield [(place.location_of(item["path"]), item["last_modified"].timestamp()) for item in page]


def same_file(location: str) -> str:
    """Return a location without scheme, authority and percent-encoding: equal for all spellings of one file's location."""
    path = location.partition("://")[2].partition("/")[2] if "://" in location else location
    return unquote(path.removeprefix("file:").lstrip("/"))


def _delete_local(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
