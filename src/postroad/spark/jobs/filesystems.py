"""Where files of a lake lie: a local directory, an object store by `pyarrow.fs`, or what only Java's file systems reach."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pyspark.sql import SparkSession

from postroad.errors import SparkError
from postroad.spark.cluster import has_context
from postroad.storage.remote import RemotePath, located, path_of, size_of

NEW_PREFIX: Final = "."


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


def place(spark: SparkSession, root: str) -> Place:
    path = path_of(root)
    if not isinstance(path, RemotePath):
        return LocalPlace(str(path))
    try:
        return ArrowPlace(path)
    except (ValueError, NotImplementedError) as error:
        if not has_context(spark):
            raise SparkError(f"{root}: this process has no client of that file system ({error})") from error
        return HadoopPlace(spark, root)


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


class ArrowPlace:
    """Through Arrow's file systems, in this process. An object appears whole or not at all; a rename is a copy and a removal."""

    def __init__(self, root: RemotePath) -> None:
        self._root = root
        located(root)  # a scheme that Arrow does not know is refused here

    @property
    def root(self) -> str:
        return str(self._root)

    def listed(self, pattern: str) -> list[FileEntry]:
        found = []
        for path in self._root.glob(pattern):
            directory = path.is_dir()
            found.append(FileEntry(str(path), 0 if directory else size_of(path), directory))
        return sorted(found)

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def create(self, name: str, data: bytes) -> None:
        if self.exists(name):
            raise FileExistsError(f"{self.root}/{name}")
        (self._root / name).write_bytes(data)

    def rename(self, old: str, new: str) -> None:
        filesystem, source = located(self._root / old)
        target = located(self._root / new)[1]
        filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        filesystem.move(source, target)

    def remove(self, name: str) -> None:
        path = self._root / name
        if path.is_dir():
            filesystem, directory = located(path)
            filesystem.delete_dir(directory)
        else:
            path.unlink(missing_ok=True)

    def settle(self, name: str) -> None:
        """Nothing to do: an object that is there is durable."""


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
