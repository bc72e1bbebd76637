"""What connections hold is counted, shared and bounded."""

from __future__ import annotations

from postroad.errors import BufferLimitError
from postroad.transport.budget import SHARE_BYTES_MIN, SLOW_BYTES_PER_S, SLOW_S, Account, Budget

MIB = 1 << 20


class Connections:
    """A budget of 64 MiB, so 48 for clients and 24 for frames they have not finished; and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.budget = Budget(64 * MIB, lambda: self.now)
        self.closed: list[int] = []
        self.granted: list[int] = []
        self.accounts: list[Account] = []

    def open(self, *, link: bool = False) -> Account:
        number = len(self.accounts)

        def exceeded(error: BufferLimitError) -> None:
            assert error.code == 356
            self.closed.append(number)

        account = self.budget.open(exceeded, lambda: self.granted.append(number))
        if link:
            account.serve_link()
        self.accounts.append(account)
        return account


def test_everything_a_connection_holds_is_counted_until_it_ends() -> None:
    """Input, output and requests add up; a closed account leaves nothing behind."""
    world = Connections()
    account = world.open()
    account.note_input(10)
    account.note_output(200)
    account.note_requests(3_000)
    assert (account.held, world.budget.held) == (3_210, 3_210)
    account.note_output(0)
    assert world.budget.held == 3_010
    account.close()
    account.note_output(5_000)
    assert (world.budget.held, len(world.budget)) == (0, 0)


def test_the_client_that_holds_most_is_closed_when_clients_hold_too_much() -> None:
    """The others keep what they have."""
    world = Connections()
    sizes = [10, 20, 5, 10]
    for size in sizes:
        world.open().note_output(size * MIB)
    assert not world.closed
    world.open().note_output(4 * MIB)
    assert world.closed == [1]
    assert world.budget.clients_bytes == 29 * MIB
    assert world.budget.closed == 1


def test_clients_cannot_take_what_is_reserved_for_links() -> None:
    """Links are counted apart, and no link is closed for what clients hold."""
    world = Connections()
    link = world.open(link=True)
    link.note_output(30 * MIB)
    world.open().note_output(40 * MIB)
    assert not world.closed
    world.open().note_output(41 * MIB)
    assert world.closed == [2]
    assert world.budget.links_bytes == 30 * MIB


def test_unfinished_frames_wait_for_room_and_get_it_in_order() -> None:
    """A grant covers the whole frame, so frames that have begun can be finished."""
    world = Connections()
    accounts = [world.open() for _ in range(4)]
    assert [account.ask(10 * MIB) for account in accounts] == [True, True, False, False]
    assert world.budget.held == 20 * MIB
    accounts[0].release()
    assert world.granted == [2]
    accounts[1].close()
    assert world.granted == [2, 3]
    assert world.budget.held == 20 * MIB
    assert not world.closed


def test_a_frame_larger_than_the_room_for_all_of_them_comes_alone() -> None:
    """No frame that a connection may send waits for ever."""
    world = Connections()
    assert world.open().ask(40 * MIB)
    assert not world.open().ask(1 * MIB)


def test_who_is_slow_to_fill_a_grant_loses_it_when_others_wait() -> None:
    """A few seconds are free; then there is a least rate, and only while it matters."""
    world = Connections()
    slow, quick, waiting = world.open(), world.open(), world.open()
    assert slow.ask(12 * MIB)
    assert quick.ask(12 * MIB)
    world.now = 2 * SLOW_S
    slow.note_input(1_000)
    quick.note_input(int(3 * SLOW_S) * SLOW_BYTES_PER_S)
    world.budget.expire()
    assert not world.closed
    assert not waiting.ask(12 * MIB)
    world.budget.expire()
    assert (world.closed, world.granted) == ([0], [2])


def test_readers_share_what_is_left_when_memory_is_short() -> None:
    """A thousand slow readers get less each, instead of losing their connections."""
    world = Connections()
    accounts = [world.open() for _ in range(24)]
    assert accounts[0].share(4 * MIB) == 4 * MIB
    for account in accounts[:10]:
        account.note_output(3 * MIB)
    assert accounts[0].share(4 * MIB) == MIB
    accounts += [world.open() for _ in range(2_000)]
    assert accounts[0].share(4 * MIB) == SHARE_BYTES_MIN
