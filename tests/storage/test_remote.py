"""Paths in an object store: they behave as local ones where readers use them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.object_store import object_store
from tests.spark.data import batch_of, write_log

from postroad import shipping
from postroad.core.protocol.packets import pubend_id
from postroad.storage import remote
from postroad.storage.directory import find_logs
from postroad.storage.remote import ReadingDisk, RemotePath, is_uri, matching, path_of
from postroad.storage.segment.external_reader import observe, parts, read_part

FIRST = pubend_id(1)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Path]:
    with object_store("bucket"):
        root = path_of("s3a://bucket/some/place")
        assert isinstance(root, RemotePath)
        for name in ("a/x.json", "a/.hidden", "b/x.json", "b/y/z.json"):
            (root / name).write_bytes(name.encode())
        yield root


@pytest.mark.parametrize(
    ("text", "uri"),
    [("/var/lib", False), ("a:b", False), ("file:/x", True), ("file:///x", True), ("s3://b/x", True), ("hdfs://h:1/x", True)],
)
def test_uris_are_told_from_paths(text: str, uri: bool) -> None:
    """A path with a colon is a path; `file:` URIs are local paths."""
    assert is_uri(text) is uri
    assert isinstance(path_of(text), RemotePath) is (uri and not text.startswith("file:"))


def test_a_path_has_its_uri_as_text_and_survives_pickling(bucket: Path) -> None:
    """Tasks get paths pickled; errors show them as text."""
    path = bucket / "a" / "x.json"
    assert str(path) == "s3a://bucket/some/place/a/x.json"
    assert pickle.loads(pickle.dumps(path)).read_bytes() == b"a/x.json"
    assert path.parent.parent == bucket


def test_listing_and_patterns_work_as_they_do_locally(bucket: Path) -> None:
    """Names in order; a pattern per level; what does not exist has nothing in it."""
    assert [path.name for path in bucket.iterdir()] == ["a", "b"]
    assert [str(path.relative_to(bucket)) for path in bucket.glob("*/x.json")]
    assert [path.parts[-2:] for path in bucket.glob("*/x.json")] == [("a", "x.json"), ("b", "x.json")]
    assert [path.name for path in bucket.glob("b/y/*")] == ["z.json"]
    assert list((bucket / "none").glob("*")) == []
    assert [path.name for path in matching(path_of("s3a://bucket/some/*/b"))] == ["b"]
    assert (bucket / "b").is_dir()
    assert (bucket / "a" / "x.json").is_file()
    assert not (bucket / "c").exists()
    with pytest.raises(FileNotFoundError):
        (bucket / "c").read_bytes()


def test_a_log_is_read_from_a_store_as_from_a_directory(bucket: Path, tmp_path: Path) -> None:
    """The reader of logs gets the same rows in the same parts."""
    local = write_log(tmp_path / "data", {FIRST: [batch_of(0, 5000, {"n": list(range(5000))})]})
    shipping.ship([str(local)], f"{bucket}/archive", unfinished=True)
    far = observe(find_logs(bucket / "archive" / "broker-1")[FIRST], FIRST)
    near = observe(find_logs(local)[FIRST], FIRST)
    assert (far.released, far.last) == (near.released, near.last)
    rows = [sum(len(batch) for part in parts(view, 0, view.last, 1 << 20) for batch in read_part(part)) for view in (far, near)]
    assert rows == [5000, 5000]


def test_a_file_that_is_read_from_front_to_back_is_read_ahead(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request brings what the next reads want; a single read brings what was asked for."""
    monkeypatch.setattr(remote, "AHEAD_BYTES", 4096)
    path = bucket / "large"
    assert isinstance(path, RemotePath)
    path.write_bytes(bytes(range(256)) * 32)
    disk = ReadingDisk()
    descriptor = disk.open(path)
    file = disk._files[descriptor]
    assert disk.size(descriptor) == 8192
    assert disk.read(descriptor, 16, 100).to_pybytes() == bytes(range(100, 116))
    assert len(file.held) == 16
    assert disk.read(descriptor, 16, 116).to_pybytes() == bytes(range(116, 132))
    assert len(file.held) == 4096
    assert disk.read(descriptor, 99, 8190).to_pybytes() == bytes([254, 255])
    disk.close(descriptor)
    assert not disk._files
