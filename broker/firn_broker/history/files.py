"""Data files of tables, in buckets and directories."""

import io
from collections.abc import Sequence
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import from_url

from firn import trust
from firn.driver_requests.landed_offsets import DataFile
from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.settings import BucketSettings
from firn_broker.storage.objects import bucket_client, with_secrets

KEPT_FOOTERS = 64
"""Footers of data files that stay in memory."""
STORES = "history.stores"
"""Key of the settings of stores."""
RETRIES = 2
"""Repetitions of a request."""


class TableFiles:
    """`Files` in the stores of the settings. The store with the longest matching URL has a file."""

    def __init__(self, stores: Sequence[BucketSettings]) -> None:
        self._settings = sorted(stores, key=lambda store: len(store.url), reverse=True)
        self._stores: dict[str, Any] = {}
        self._footers: dict[DataFile, pq.FileMetaData] = {}

    def open(self, file: DataFile) -> pq.ParquetFile:
        """Open a file, with its footer if it is known."""
        footer = self._footers.pop(file, None)
        try:
            opened = pq.ParquetFile(self._source(file), metadata=footer, pre_buffer=True)
        except pa.ArrowException as error:
            raise CorruptDataError(f"{file.path} is no data file: {error}") from error
        self._footers[file] = opened.metadata
        while len(self._footers) > KEPT_FOOTERS:
            del self._footers[next(iter(self._footers))]
        return opened

    def _source(self, file: DataFile) -> "_Source":
        # Hadoop's names of S3.
        path = file.path.replace("s3a://", "s3://", 1).replace("s3n://", "s3://", 1)
        for settings in self._settings:
            place = settings.url.rstrip("/") + "/"
            if path.startswith(place):
                store = self._stores.get(settings.url)
                if store is None:
                    store = self._stores[settings.url] = _opened(settings)
                return _Source(store, path.removeprefix(place), file)
        raise UnavailableError(
            f"{file.path}: no store of {STORES} in the settings of the broker has this file; add the store of the table"
        )


def _opened(settings: BucketSettings) -> Any:
    if settings.url.startswith("file:"):
        make: Any = from_url  # a directory has no requests
        return make(settings.url)
    options = with_secrets(STORES, settings)
    return bucket_client(STORES, settings.url, options, settings.timeout_seconds, settings.ca_file, retries=RETRIES)


class _Source(io.RawIOBase):
    """A data file for Arrow, which reads each part with one request."""

    def __init__(self, store: Any, path: str, file: DataFile) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = start + offset
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Read bytes. Raises CorruptDataError if the file is missing or shorter, and UnavailableError."""
        end = self._file.size if size < 0 else min(self._place + size, self._file.size)
        if end <= self._place:
            return b""
        try:
            data = bytes(obstore.get_range(self._store, self._path, start=self._place, end=end))
        except (NotFoundError, FileNotFoundError) as error:
            raise CorruptDataError(f"{self._file.path} does not exist") from error
        except ValueError as error:
            raise CorruptDataError(f"{self._file.path}: the object store does not accept this path: {error}") from error
        except (BaseError, OSError) as error:
            raise UnavailableError(f"{self._file.path}: {trust.with_hint(str(error)[:300])}") from error
        if len(data) < end - self._place:
            raise CorruptDataError(f"{self._file.path} has fewer than {self._file.size} bytes")
        self._place = end
        return data
