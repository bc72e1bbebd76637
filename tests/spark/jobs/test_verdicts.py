"""An audit says that the books close only when the evidence is there: three verdicts, stated ranges, and no false alarm."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from tests.integration.brokers import config, wait_until
from tests.spark.feeds import publish
from tests.spark.jobs.synthetic import EPOCH_MS, Subscriber, World, some_subscribers

import postroad.sync
from postroad.cli import main
from postroad.cli.pipeline import audit as pipeline_audit
from postroad.cli.pipeline import upkeep as pipeline_upkeep
from postroad.core.broker.subscribing.durable import DURABLE_KEY, DurableRecord
from postroad.core.protocol.packets import pubend_id
from postroad.runtime.config import Tracking
from postroad.runtime.process import BrokerProcess
from postroad.spark.jobs.running import Cluster, plain_errors
from postroad.storage.directory import METADATA_NAME, open_broker_storage
from postroad.storage.segment.log import LogOptions
from postroad.storage.sqlite.metadata import SqliteMetadata
from postroad.testing import free_ports
from postroad.tracking.files.format import pack, unpack
from postroad.tracking.histories.elements import Lost
from postroad.tracking.histories.settings import Strategy, TrackingSettings

EXACT = TrackingSettings(strategy=Strategy.EXACT, persistence_ms=1_000)
CLOSES, DOES_NOT_CLOSE, CANNOT_TELL, ERROR = 0, 1, 3, 4
LINE = {1: (2,), 2: (1, 3), 3: (2,)}

Audit = Callable[..., Result]


@pytest.fixture
def pipeline(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Audit:
    """Run `postroad pipeline` in the session of the tests."""

    @contextmanager
    def running(cluster: Cluster, title: str) -> Iterator[SparkSession]:
        with plain_errors():
            yield spark

    for module in (pipeline_audit, pipeline_upkeep):
        monkeypatch.setattr(module, "running", running)
    return lambda *arguments: CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the data of three brokers: publishers at 1, durable subscribers at 2 and 3, several log segments."""
    path = tmp_path_factory.mktemp("line")
    world = World(path, some_subscribers(4, (2, 3)), links=LINE, settings=EXACT, origins=[1], segment_bytes=20_000)
    world.run(6_000, rate=60)
    world.finish()
    for subscriber in world.subscribers:
        store_durable(world, subscriber)
    return path


def store_durable(world: World, subscriber: Subscriber) -> None:
    """Store what the home of a durable subscription keeps of it."""
    broker = world.brokers[subscriber.broker]
    cursors = {pubend: span.to_tick for (name, pubend), span in broker.spans.items() if name == subscriber.name}
    metadata = SqliteMetadata(broker.path / METADATA_NAME)
    record = DurableRecord(subscriber.filter, 1, cursors)
    metadata.store([(DURABLE_KEY + subscriber.name, msgspec.msgpack.encode(record))])
    metadata.close()


@pytest.fixture
def data(line: Path, tmp_path: Path) -> Path:
    """Give a copy of the data, to spoil."""
    return Path(shutil.copytree(line, tmp_path / "data"))


def tracks_of(data: Path, broker: int) -> list[Path]:
    return sorted((data / f"broker{broker}" / "tracks").glob("*.parquet"))


def segments_of(data: Path, broker: int) -> list[Path]:
    return sorted((data / f"broker{broker}" / "pubends").glob("*/*.segment"))


def told(done: Result) -> str:
    return done.output.replace("\n", " ")


def test_books_with_all_their_evidence_close(pipeline: Audit, data: Path) -> None:
    """Nothing is in doubt, nothing is left unchecked."""
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CLOSES, done.output
    assert "The books close." in done.output
    assert "not checked" not in done.output


def test_what_a_broker_lost_with_its_files_is_a_stated_range(pipeline: Audit, tmp_path: Path) -> None:
    """A broker that came back without its files noted the range in its tracks: the report names it."""
    world = World(tmp_path, some_subscribers(2, (2, 3)), links=LINE, settings=EXACT, origins=[1])
    tracker = world.brokers[1].tracker
    assert tracker is not None
    tracker.take([Lost("", pubend_id(1), 0, EPOCH_MS << 16, world.now_ms)], world.now_ms)
    world.run(2_000, rate=20)
    world.finish()
    done = pipeline("audit", "--data", tmp_path)
    assert f"not checked: pubend 100, ticks (0, {EPOCH_MS << 16}]: lost with former files of its broker" in told(done)


def test_nobody_can_tell_without_the_tracks_of_a_broker(pipeline: Audit, data: Path) -> None:
    """All track files of a broker are deleted; others name it."""
    shutil.rmtree(data / "broker2" / "tracks")
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output
    assert "broker 2 has no tracks here" in told(done)


def test_nobody_can_tell_without_any_tracks(pipeline: Audit, data: Path) -> None:
    """A broker alone, whose tracks are gone or which does not track."""
    for broker in (1, 2, 3):
        shutil.rmtree(data / f"broker{broker}" / "tracks")
    done = pipeline("audit", "--data", data / "broker1")
    assert done.exit_code == CANNOT_TELL, done.output


def test_a_broker_may_be_left_out_when_that_is_said(pipeline: Audit, data: Path) -> None:
    """A relay that does not track: the books close over the others, and the result says who was left out."""
    shutil.rmtree(data / "broker2" / "tracks")
    (data / "broker2").rename(data.parent / "elsewhere")
    for number, log in enumerate((data.parent / "elsewhere" / "pubends").iterdir()):
        target = data / f"log{number}" / "pubends" / log.name
        target.parent.mkdir(parents=True)
        log.rename(target)
    done = pipeline("audit", "--data", data, "--without", 2)
    assert done.exit_code == CLOSES, done.output
    assert "broker 2: left out (--without)" in told(done)


@pytest.mark.parametrize("broker", [1, 3])
def test_nobody_can_tell_when_the_newest_track_files_are_gone(pipeline: Audit, data: Path, broker: int) -> None:
    """An old backup of the tracks was put back: they do not reach as far as the logs, or as what was acknowledged."""
    for file in tracks_of(data, broker)[3:]:
        file.unlink()
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output


def test_a_released_log_is_a_stated_range(pipeline: Audit, data: Path) -> None:
    """What the log released on purpose was not checked, which is said; the rest closes."""
    storage = open_broker_storage(data / "broker1", 1, [pubend_id(1)], LogOptions(segment_bytes=20_000))
    log = storage.logs[pubend_id(1)]
    assert log.release((EPOCH_MS + 3_000) << 16) > 0
    storage.close()
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CLOSES, done.output
    assert "not checked: pubend 100, up to" in told(done)
    assert "released by its broker" in told(done)


def test_nobody_can_tell_when_segments_were_deleted(pipeline: Audit, data: Path) -> None:
    """Nothing says that the oldest segments were released."""
    for segment in segments_of(data, 1)[:2]:
        segment.unlink()
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output
    assert "the log did not release them" in told(done)


def test_the_newest_segments_do_not_go_unnoticed(pipeline: Audit, data: Path) -> None:
    """The publisher history holds messages that no log does: nothing explains that."""
    for segment in segments_of(data, 1)[-2:]:
        segment.unlink()
    done = pipeline("audit", "--data", data)
    assert done.exit_code == DOES_NOT_CLOSE, done.output


def test_a_lake_that_lags_behind_is_said(pipeline: Audit, data: Path, tmp_path: Path) -> None:
    """Nobody can tell about messages that were not ingested; brokers that never published are no reason to fail."""
    logs = segments_of(data, 1)
    aside = tmp_path / "aside"
    aside.mkdir()
    for segment in logs[2:]:
        segment.rename(aside / segment.name)
    assert pipeline("ingest", "--data", data, "--lake", tmp_path / "lake").exit_code == 0
    for segment in aside.iterdir():
        segment.rename(logs[0].parent / segment.name)
    done = pipeline("audit", "--data", data, "--lake", tmp_path / "lake")
    assert done.exit_code == CANNOT_TELL, done.output
    assert "not in the lake" in told(done)
    assert pipeline("ingest", "--data", data, "--lake", tmp_path / "lake").exit_code == 0
    done = pipeline("audit", "--data", data, "--lake", tmp_path / "lake")
    assert done.exit_code == CLOSES, done.output


def test_a_damaged_byte_in_a_log_is_passed_over_and_said(pipeline: Audit, data: Path) -> None:
    """With `--on-damage skip` the records around it are checked; without, the audit fails with a code of its own."""
    segment = segments_of(data, 1)[1]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    done = pipeline("audit", "--data", data)
    assert done.exit_code == ERROR, done.output
    done = pipeline("audit", "--data", data, "--on-damage", "skip")
    assert done.exit_code == CLOSES, done.output
    assert "not checked: pubend 100, from" in told(done)
    assert segment.name in told(done)


def test_a_durable_subscription_without_tracks_is_noticed(pipeline: Audit, data: Path) -> None:
    """Its home knows the name, and no track does."""
    metadata = SqliteMetadata(data / "broker3" / METADATA_NAME)
    record = DurableRecord("value >= 0", 1, {pubend_id(1): EPOCH_MS << 16})
    metadata.store([(DURABLE_KEY + "forgotten", msgspec.msgpack.encode(record))])
    metadata.close()
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output
    assert "durable subscription 'forgotten' of broker 3 is not in any tracks" in told(done)


def forget_durables(data: Path) -> None:
    """Leave nothing but the tracks to tell of subscribers."""
    for broker in (2, 3):
        metadata = SqliteMetadata(data / f"broker{broker}" / METADATA_NAME)
        metadata.store([(key, None) for key, _ in metadata.load() if key.startswith(DURABLE_KEY)])
        metadata.close()


def test_nobody_can_tell_when_the_rows_of_a_subscriber_were_removed(pipeline: Audit, data: Path) -> None:
    """Histories and spans of one subscriber are taken out of files that stay sound: the chain of digests breaks."""
    forget_durables(data)
    for path in tracks_of(data, 3):
        table = unpack(pa.py_buffer(path.read_bytes()))
        rows = pa.Table.from_batches([table.whole()])
        others = [name != "sub1" for name in rows.column("subscriber").to_pylist()]
        path.write_bytes(b"".join(pack(table.head, rows.filter(pa.array(others, pa.bool_())))[0]))
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output
    assert "as its predecessor" in told(done)


@pytest.mark.parametrize(("kept", "code"), [(slice(0, -1), CANNOT_TELL), (slice(2, None), DOES_NOT_CLOSE)])
def test_track_files_that_were_removed_at_either_end_are_noticed(pipeline: Audit, data: Path, kept: slice, code: int) -> None:
    """No file names them, but the record beside them does. What the oldest held is claimed by later spans, and so is missing."""
    forget_durables(data)
    files = tracks_of(data, 3)
    for path in set(files) - set(files[kept]):
        path.unlink()
    done = pipeline("audit", "--data", data)
    assert done.exit_code == code, done.output
    assert "files up to" in told(done)


def test_a_broker_that_came_back_with_an_empty_disk_is_a_line(pipeline: Audit, tmp_path: Path) -> None:
    """Others have messages of it from before its own files begin, and it never released them."""
    world = World(tmp_path / "data", some_subscribers(2, (2,)), links={1: (2,), 2: (1,)}, settings=EXACT, origins=[1])
    world.run(2_000, rate=40)
    world.finish()
    shutil.rmtree(tmp_path / "data" / "broker1")
    again = World(tmp_path / "again", [], links={1: ()}, settings=EXACT, start_ms=EPOCH_MS + 60_000)
    again.run(1_000, rate=40)
    again.finish()
    (tmp_path / "again" / "broker1").rename(tmp_path / "data" / "broker1")
    done = pipeline("audit", "--data", tmp_path / "data")
    assert done.exit_code == CANNOT_TELL, done.output
    assert "broker 1 returned without its files" in told(done)


def test_a_loss_that_the_broker_told_of_is_a_line(pipeline: Audit, tmp_path: Path) -> None:
    """It came back with an empty disk and knew it: the range is stated, and the rest closes."""
    world = World(tmp_path / "data", some_subscribers(2, (2,)), links={1: (2,), 2: (1,)}, settings=EXACT, origins=[1])
    tracker = world.brokers[1].tracker
    assert tracker is not None
    tracker.take([Lost("", pubend_id(1), 0, EPOCH_MS << 16, EPOCH_MS)], EPOCH_MS)
    world.run(1_500, rate=40)
    world.finish()
    done = pipeline("audit", "--data", tmp_path / "data")
    assert done.exit_code == CLOSES, done.output
    assert "not checked: pubend 100, up to" in told(done)
    assert "lost with former files of its broker" in told(done)


def test_nobody_can_tell_which_of_two_directories_of_one_broker_counts(pipeline: Audit, data: Path) -> None:
    """A backup beside the original: nobody knows which of them counts."""
    shutil.copytree(data / "broker3", data / "broker3.old")
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output
    assert "are both data directories of broker 3" in told(done)


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("--data", "/nowhere"), ERROR)])
def test_an_error_has_an_exit_code_of_its_own(pipeline: Audit, arguments: tuple[str, ...], code: int) -> None:
    """It is none of the verdicts'."""
    assert pipeline("audit", *arguments).exit_code == code


def test_audits_of_real_brokers_need_all_their_evidence(pipeline: Audit, tmp_path: Path) -> None:
    """Two processes: the books close while they run; when they have stopped, not without the tracks of one."""
    ports = free_ports(2)
    tracking = Tracking(persistence_ms=300)
    data = tmp_path / "data"
    near = BrokerProcess(config(1, "near", ports[0], data, [], tracking=tracking), tmp_path)
    far = BrokerProcess(config(2, "far", ports[1], data, [ports[0]], tracking=tracking), tmp_path)
    with near, far, postroad.sync.connect(far.url) as client:
        wait_until(lambda: len(client.pubends()) == 2, 30.0)
        subscription = client.subscribe("n >= 100", name="books")
        publish(near.url, range(300))
        received = [next(subscription) for _ in range(200)]
        subscription.ack()
        assert [message["n"] for message in received] == list(range(100, 300))
        wait_until(lambda: all(len(list((data / name / "tracks").glob("*.parquet"))) > 1 for name in ("near", "far")), 60.0)
        running = pipeline("audit", "--data", data)
        assert running.exit_code == CLOSES, running.output
        subscription.close()
    shutil.rmtree(data / "far" / "tracks")
    done = pipeline("audit", "--data", data)
    assert done.exit_code == CANNOT_TELL, done.output
    assert "broker 2 has no tracks here" in told(done)
