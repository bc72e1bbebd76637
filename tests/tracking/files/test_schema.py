"""Rows of track files: what goes in comes out, in few bytes."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.files.elements import BROKER, M, element, ids_at, plain

from postroad.tracking.files.format import Head, pack, unpack
from postroad.tracking.files.schema import INT64_MAX, Stamp, elements_of, records_of, to_table
from postroad.tracking.histories.elements import (
    ID_DTYPE,
    NO_SINGLETONS,
    Crash,
    Element,
    Farewell,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Record,
    Span,
)
from postroad.tracking.histories.settings import Strategy

STAMP = Stamp(BROKER, 3, 5)
HEAD = Head(BROKER, 3, 5, 1000, 0, complete=True)
_MS = st.integers(0, (1 << 48) - 1)
_U32 = st.integers(0, (1 << 32) - 1)
_TICK = st.integers(0, INT64_MAX)
_NAME = st.text(min_size=1, max_size=20)


@st.composite
def elements(draw: st.DrawFn) -> Element:
    """Draw an element of any strategy, with any ids."""
    kind = draw(st.sampled_from(Kind))
    strategy = draw(st.sampled_from([Strategy.EXACT, Strategy.ASYNC, Strategy.BLOOM]))
    origin = draw(_U32)
    key = HistoryKey(
        kind,
        origin,
        peer=draw(_U32) if kind in {Kind.ROUTING, Kind.NEIGHBOUR} else 0,
        subscriber=draw(_NAME) if kind is Kind.SUBSCRIBER else "",
    )
    rows = draw(st.lists(st.tuples(_U32, st.integers(0, (1 << 64) - 1)), max_size=12))
    ids = np.array([(publisher, origin, tick) for publisher, tick in rows], ID_DTYPE).view(np.dtype((np.void, 16)))
    bits = np.frombuffer(draw(st.binary(min_size=8, max_size=8)), np.uint8) if strategy is Strategy.BLOOM else None
    return Element(
        key=key,
        incarnation=STAMP.incarnation,
        number=draw(_U32),
        strategy=strategy,
        opened_ms=draw(_MS),
        closed_ms=draw(_MS),
        from_ms=draw(_MS),
        to_ms=draw(_MS),
        singletons=np.array(draw(st.lists(_MS, max_size=5)), np.int64),
        count=draw(_U32),
        m=64 if bits is not None else 0,
        k=draw(st.integers(0, 40)),
        n=draw(_U32),
        bits=bits,
        ids=None if bits is not None else ids,
        neighbours=tuple(draw(st.lists(_U32, max_size=4))),
        broker=BROKER,
    )


records = st.one_of(
    st.builds(Span, _NAME, _U32, _TICK, st.text(max_size=30), _TICK, _TICK, _MS, _MS),
    st.builds(Lost, _NAME, _TICK, _TICK, _TICK, _MS),
    st.builds(Crash, _U32, _MS, _MS),
    st.builds(Links, _MS, st.lists(_U32, max_size=5).map(tuple)),
    st.builds(Horizon, _TICK, _TICK),
    st.builds(Farewell, _MS),
)


@given(given_elements=st.lists(elements(), max_size=6), given_records=st.lists(records, max_size=6))
def test_everything_comes_back_as_it_was(given_elements: list[Element], given_records: list[Record]) -> None:
    """Through Arrow, Parquet and the check."""
    data = b"".join(pack(HEAD, to_table(STAMP, given_elements, given_records))[0])
    table = unpack(_buffer(data))
    assert table.head == HEAD
    whole = _table(table.whole())
    assert [plain(each) for each in elements_of(whole)] == [plain(each) for each in given_elements]
    assert list(records_of(_table(table.index()))) == given_records


def test_only_what_is_hashed_or_unsorted_has_bits() -> None:
    """In other rows they are null, which is what a reader of the files looks at."""
    exact = element(1, ids_at([5, 6]))
    full = replace(exact, strategy=Strategy.BLOOM, m=64, bits=np.arange(8, dtype=np.uint8), ids=None)
    table = to_table(STAMP, [exact, full, exact], [Farewell(1)])
    assert table.column("bits").to_pylist() == [None, bytes(range(8)), None, None]


def test_ids_of_another_broker_are_kept_as_they_are() -> None:
    """They do not fit the columns of `exact`, and nothing of them may be lost, nor of what stands before and after them."""
    ids = np.concatenate([ids_at([5, 6]), ids_at([7], broker=99)])
    each_ids = (ids_at([1, 2]), ids, ids_at([3]))
    given_elements = [element(number, each, incarnation=STAMP.incarnation) for number, each in enumerate(each_ids)]
    found = list(elements_of(to_table(STAMP, given_elements, [])))
    assert [plain(each) for each in found[::2]] == [plain(each) for each in given_elements[::2]]
    assert found[1].ids is not None
    assert found[1].ids.tobytes() == ids.tobytes()
    assert found[1].strategy is Strategy.ASYNC


def test_a_tick_beyond_what_spark_can_read_becomes_the_highest() -> None:
    """Nobody has a clock that shows it, but a peer may claim so."""
    (back,) = records_of(to_table(STAMP, [], [Horizon(1, (1 << 64) - 1)]))
    assert back == Horizon(1, INT64_MAX)


def paper_load(seconds: int, seed: int) -> Element:
    """Make the publisher history of 200 publishers that send 5,000 messages a second at random moments (section 5.2)."""
    chance = np.random.default_rng(seed)
    ids = np.empty(5000 * seconds, ID_DTYPE)
    ids["publisher"], ids["broker"] = chance.integers(1, 201, len(ids)), BROKER
    ids["tick"] = (1_790_000_000_000 + chance.integers(0, seconds * 1000, len(ids))).astype(np.uint64) << np.uint64(16)
    ids = ids[np.lexsort((ids["publisher"], ids["tick"]))]
    repeated = np.flatnonzero(ids[1:] == ids[:-1]) + 1
    ids["tick"][repeated] += np.uint64(1)
    return element(1, ids.view(np.dtype((np.void, 16))))


def test_exact_takes_at_most_1_3_bytes_per_entry_on_the_papers_load() -> None:
    """The whole file counts, footer and all; ten seconds are one flush."""
    history = paper_load(10, seed=20_261)
    size = sum(map(len, pack(HEAD, to_table(STAMP, [history], [Horizon(1, 2)]))[0]))
    assert size / history.count <= 1.3, size / history.count


def test_blooms_take_their_bits_and_little_more() -> None:
    """A full bloom does not compress, and is not asked to."""
    blooms = [element(n, ids_at(range(n * 1000, n * 1000 + 300)), strategy=Strategy.BLOOM) for n in range(1, 65)]
    data = b"".join(pack(HEAD, to_table(STAMP, blooms, []))[0])
    assert len(data) - 64 * M // 8 < 6000
    metadata = pq.read_metadata(io.BytesIO(data))
    column = next(c for c in map(metadata.row_group(0).column, range(metadata.num_columns)) if c.path_in_schema == "bits")
    assert column.compression == "UNCOMPRESSED"
    assert column.statistics is None


def test_an_element_without_singletons_shares_one_empty_array() -> None:
    """Most have none."""
    (back,) = elements_of(to_table(STAMP, [element(1, ids_at([1, 2]))], []))
    assert back.singletons.tolist() == NO_SINGLETONS.tolist()


def _buffer(data: bytes) -> Any:
    import pyarrow as pa

    return pa.py_buffer(data)


def _table(batch: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([batch])
