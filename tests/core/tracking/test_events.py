"""What was delivered, batch by batch, taken apart by subscriber."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.core.tracking.ids import make_ids

from postroad.core.tracking.events import DeliveredRows, in_columns

Sent = list[tuple[int, int, list[tuple[str, list[int]]]]]  # batches: pubend, rows, who got which

selections = st.lists(st.integers(0, 7), unique=True).map(sorted)
batches = st.lists(
    st.tuples(
        st.sampled_from([256, 257, 512]),
        st.just(8),
        st.lists(st.tuples(st.sampled_from("abcd"), selections), max_size=4, unique_by=lambda each: each[0]),
    ),
    max_size=6,
)


@given(batches)
def test_each_subscriber_gets_its_own_in_the_order_of_sending(sent: Sent) -> None:
    """Taking all batches apart at once gives what going through them one by one does."""
    expected: dict[tuple[int, str], list[bytes]] = {}
    given_batches = []
    for number, (pubend, rows, whose) in enumerate(sent):
        ids = make_ids(rows, seed=number)
        known = {tuple(each): np.array(each, np.intp) for _, each in whose}  # equal selections are one object
        names = [name for name, _ in whose]
        given_batches.append(DeliveredRows.of(names, pubend, ids, [known[tuple(each)] for _, each in whose]))
        for name, each in whose:
            expected.setdefault((pubend, name), []).extend(ids[row].tobytes() for row in each)
    apart = [delivered for sent in in_columns(given_batches) for delivered in sent.apart()]
    found = {(each.pubend, each.subscriber): [item.tobytes() for item in each.ids] for each in apart}
    assert found == expected
