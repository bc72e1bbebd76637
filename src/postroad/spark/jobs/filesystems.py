"""Where files lie: a local directory, or any file system that Spark reaches through a URI. Workers use `read_uri` only."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyspark.sql import SparkSession

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|file:/")
NEW_PREFIX: Final = "."
_ARROW_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names of them


class FileEntry(NamedTuple):
    path: str
    size: int
    directory: bool


class Place(Protocol):
    """A root under which files have relative names, with `/` between their parts."""

    @property
    def root(self) -> str: ...

    def listed(self, pattern: str) -> list[FileEntry]:
        """Return what matches a glob under the root, sorted by path; nothing if there is nothing."""
        ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes:
        """Return a small file whole; raise `FileNotFoundError` where there is none."""
        ...

    def create(self, name: str, data: bytes) -> None:
        """Make a small file appear whole; raise `FileExistsError` when there is one already."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file a name that nothing has; the directory is made."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it, if it is there."""
        ...

    def settle(self, name: str) -> None:
        """Make a file durable where that is in our hands."""
        ...


def is_uri(path: str) -> bool:
    return _SCHEME.match(path) is not None


def read_uri(uri: str) -> pa.Buffer:
    """Read a file whole, in any process, without Java; `ValueError` for a file system that Arrow does not know."""
    scheme, _, rest = uri.partition(":")
    # Hadoop writes file:/path, and Arrow wants file:///path.
    known = f"file:///{rest.lstrip('/')}" if scheme == "file" else f"{_ARROW_SCHEMES.get(scheme, scheme)}:{rest}"
    filesystem, path = FileSystem.from_uri(known)
    with filesystem.open_input_file(path) as file:
        return file.read_buffer()


def place(spark: SparkSession, root: str) -> Place:
    return HadoopPlace(spark, root) if is_uri(root) else LocalPlace(root)


class LocalPlace:
    def __init__(self, root: str) -> None:
        self._root = Path(root).absolute()

    @property
    def root(self) -> str:
        return str(self._root)

    def listed(self, pattern: str) -> list[FileEntry]:
        found = []
        for path in sorted(self._root.glob(pattern)):
            try:
                found.append(FileEntry(str(path), path.stat().st_size, path.is_dir()))
            except FileNotFoundError:  # removed meanwhile
                continue
        return found

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{NEW_PREFIX}{path.name}.new")
        with new.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)  # unlike a rename it never replaces a file that another process made
        finally:
            new.unlink()
        _sync_directory(path.parent)

    def rename(self, old: str, new: str) -> None:
        target = self._root / new
        target.parent.mkdir(parents=True, exist_ok=True)
        (self._root / old).rename(target)
        _sync_directory(target.parent)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def settle(self, name: str) -> None:
        descriptor = os.open(self._root / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class HadoopPlace:
    """Through Hadoop's file systems, in the driver's Java process."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._root = root.rstrip("/")
        jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no other way to Hadoop's file systems
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
        self._files: Any = self._path(self.root).getFileSystem(configuration)

    @property
    def root(self) -> str:
        return self._root

    def _at(self, name: str) -> Any:
        return self._path(f"{self.root}/{name}")

    def listed(self, pattern: str) -> list[FileEntry]:
        statuses = self._files.globStatus(self._at(pattern)) or ()
        return sorted(
            FileEntry(str(each.getPath().toString()), int(each.getLen()), bool(each.isDirectory())) for each in statuses
        )

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def read(self, name: str) -> bytes:
        if not self.exists(name):
            raise FileNotFoundError(f"{self.root}/{name}")
        stream = self._files.open(self._at(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, name: str, data: bytes) -> None:
        if self.exists(name):
            raise FileExistsError(f"{self.root}/{name}")
        head, _, tail = name.rpartition("/")
        new = f"{head}/{NEW_PREFIX}{tail}.new" if head else f"{NEW_PREFIX}{tail}.new"
        stream = self._files.create(self._at(new), True)  # Java has no keywords
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        self.rename(new, name)

    def rename(self, old: str, new: str) -> None:
        target = self._at(new)
        self._files.mkdirs(target.getParent())
        if not self._files.rename(self._at(old), target):
            raise FileExistsError(f"{self.root}/{old} cannot become {self.root}/{new}")

    def remove(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def settle(self, name: str) -> None:
        """Leave it to the file system."""


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
