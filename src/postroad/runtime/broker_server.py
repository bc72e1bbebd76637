"""A running broker: the machine, its connections, its disk and its clocks.

Everything happens on one event loop. Packets and facts go to the machine as they come; its orders are taken once per turn of the
loop, so that all that arrived together becomes one append. The disk answers from its threads.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import (
    Append,
    Appended,
    AppendFailed,
    ClientUp,
    Congested,
    CpuUsed,
    Drained,
    LimitBandwidth,
    LinkLost,
    LinkUp,
    MemoryAvailable,
    Notice,
    ReadLog,
    Refuse,
    ReleaseLog,
    Send,
    Store,
    Stored,
)
from postroad.core.protocol.packets import Packet, Publish, PublishColumns, ReadRange
from postroad.core.protocol.rights import OPEN
from postroad.core.protocol.status import BrokerReport
from postroad.errors import (
    FilterError,
    FrameTooLargeError,
    HandshakeError,
    InternalError,
    PostroadError,
    ShuttingDownError,
    StorageError,
    UnauthenticatedError,
)
from postroad.runtime.config import NodeConfig, split_address
from postroad.runtime.connections.descriptors import connections_max
from postroad.runtime.connections.filter_preparation import Preparation
from postroad.runtime.connections.heartbeats import probe
from postroad.runtime.connections.links import Dialler
from postroad.runtime.connections.listener import Listener
from postroad.runtime.connections.neighbours import Neighbours
from postroad.runtime.connections.peer import Peer, shorten
from postroad.runtime.connections.quotas import Quotas, address_of
from postroad.runtime.disk import AroundDamage, Disk, open_disk
from postroad.runtime.machine_load import available_memory, busy_s
from postroad.runtime.machine_settings import machine_settings
from postroad.runtime.services import Service
from postroad.runtime.status_report import make_report
from postroad.security.credentials import Credentials
from postroad.security.gate import Admitted, Gate, host_of, is_loopback
from postroad.tracking.files.catalog import TrackOptions
from postroad.tracking.histories.settings import Strategy
from postroad.tracking.process.parent import TrackingProcess
from postroad.tracking.process.recording import LogIds
from postroad.tracking.process.worker import Tracking, TrackKeeper
from postroad.tracking.queries.answers import Findings
from postroad.tracking.queries.questions import StatusQuestion
from postroad.tracking.tap.orders import (
    ReportStatus,
    SearchTracks,
    StatusReported,
    Track,
    Tracked,
    TrackedFact,
    TrackedOrder,
    TracksSearched,
)
from postroad.tracking.tap.tracked_broker import TrackedBroker
from postroad.transport.budget import Budget
from postroad.transport.channel import QUOTA, RATE
from postroad.transport.flush_scheduler import FlushScheduler
from postroad.transport.outbox import OutboxLimits
from postroad.transport.turns import Turns
from postroad.version import VERSION
from postroad.wire.deliveries import ROWS
from postroad.wire.framing import FRAME_BYTES_MAX_LEAST
from postroad.wire.packets.session import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_OLDEST,
    Hello,
    Role,
    Welcome,
    agree_version,
)

log = logging.getLogger("postroad.node")

STOP_S_MAX: Final = 5.0
WINDOWS_HELD_BACK: Final = 2  # of a publisher, that may wait for a rate on one connection
IDENTITIES_S: Final = 1.0  # how often the file of identities is looked at
ORDERS_MAX: Final = 256  # that wait for the end of a turn: one packet may ask for hundreds, each with a long filter
CAPACITY_SAMPLE_S: Final = 1.0
TIMER_S: Final = 0.0005  # uvloop rounds to milliseconds: without it, timers came early, again and again until it was time
TRACKS_NAME: Final = "tracks"  # a directory in the broker's own
INSECURE: Final = "INSECURE: everybody who reaches {} may do everything (`insecure = true`)"
SOFTWARE: Final = f"postroad {VERSION}"


class BrokerServer:
    """One broker. `start`, then `run` until it is told to stop, or `stop`.

    It starts no other process unless told so: then it tracks in one. With `replaces`, it is known that the files of a former life
    of this broker are lost.
    """

    def __init__(
        self, config: NodeConfig, services: Sequence[Service] = (), *, tracking_process: bool = False, replaces: bool = False
    ) -> None:
        self.config: Final = config
        self._replaces: Final = replaces
        self._tracking_process: Final = tracking_process
        self._services: Final = tuple(services)
        self._by_method: Final = {method: service for service in services for method in service.methods}
        self.peers: Final[dict[int, Peer]] = {}
        self.failure: Exception | None = None
        self.unknown_packets = 0  # of neighbours with a newer release; they were left out
        self.revoked_connections = 0  # closed because their identity was revoked, changed or has expired
        self.internal_errors = 0  # exceptions that ended a connection or a read, and not the broker
        self._links = 0
        self._neighbours: Final = Neighbours(config.id, self._fact)
        self._planned: asyncio.Handle | None = None  # the pump at the end of this turn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's handles do not tell it: one that is due at once is none of its timers
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._paused = False
        self._held_back: dict[int, None] = {}  # links that are not read because of what they published
        self._finished: asyncio.Event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._preparation: Preparation
        self._writes: FlushScheduler
        self._turns: Turns
        self.budget: Budget
        self.connections_max = config.limits.connections_max  # or less, see `start`
        self._broker: TrackedBroker
        self._disk: Disk
        self.tracking: TrackKeeper | None = None  # None: nothing is tracked
        self._listener: Listener | None = None
        self._started: list[Service] = []
        self._started_ms = 0
        self._ended = False  # nothing more goes to the machine or comes from it
        self.gate: Final = Gate(config.security.trust(), config.id)
        self.quotas: Final = Quotas(config.limits)

    # --- life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the disk back, start the services, listen, and dial the neighbours."""
        self._loop = asyncio.get_running_loop()
        self._started_ms = _wall_ms()
        self.gate.check_exposure(self._addresses())
        self._writes, self._turns = FlushScheduler(self._loop), Turns(self._loop)
        self._preparation = Preparation(self, self._loop)
        self.budget = Budget(self.config.limits.buffers_bytes_max, self._loop.time)
        self.connections_max = connections_max(self.config.limits.connections_max, len(self.config.neighbours))
        self._disk = await asyncio.to_thread(open_disk, self.config, self._loop, self._disk_fact, self._fail)
        try:
            self._broker = TrackedBroker(
                self._disk.state, machine_settings(self.config, replaces=self._replaces), now=self._loop.time()
            )
            self.tracking = await self._open_tracking()
            limits, maximum = self.config.limits, self.connections_max
            self._listener = Listener(self.config.listen, limits, maximum, self._accept, self._count, lambda: self.gate.listening)
            await self._listener.bind()
            await self._start_services()
            await self._listener.start()
        except BaseException:
            await self._abandon_start()
            raise
        self._plan_pump()
        self._tasks.append(self._loop.create_task(self._heartbeats()))
        if self.config.admission.measures:
            self._tasks.append(self._loop.create_task(self._measure_capacity()))
        if self.gate.guarded:
            self._tasks.append(self._loop.create_task(self._watch_identities()))
        for neighbour in self.config.neighbours:
            dialler = Dialler(neighbour, self.config.links, self._make_peer, self._hello, self._neighbours.find, self._dialling)
            self._tasks.append(self._loop.create_task(dialler.run()))
        log.info("broker %d (%s) listens on port %d", self.config.id, self.config.title, self.port)
        if self.is_open_to_all:
            log.warning("%s", INSECURE.format(self.config.listen))

    async def _start_services(self) -> None:
        """Make the services ready before the port opens, so that no client finds one missing."""
        for service in self._services:
            await service.start(self)
            self._started.append(service)

    async def _abandon_start(self) -> None:
        """Close what a start that failed or was cancelled has opened."""
        self._ended = True
        if self._listener is not None:
            await self._listener.stop()
        for service in self._started:
            await service.stop()
        self._say_farewell()
        await self._close_files()

    def _addresses(self) -> dict[str, str]:
        """Return every address this broker listens on, by what listens there."""
        metrics = {"the metrics endpoint": self.config.metrics.listen} if self.config.metrics.listen else {}
        return {"the broker": self.config.listen, **metrics}

    @property
    def is_open_to_all(self) -> bool:
        """Tell whether others can reach this broker and nobody has to prove who he is."""
        return not self.gate.guarded and not all(map(is_loopback, map(host_of, self._addresses().values())))

    def _dialling(self) -> ssl.SSLContext | None:
        return self.gate.dialling

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.gate.own)

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the broker."""
        host, _ = split_address(self.config.listen)
        scheme = "postroad" if self.gate.listening is None else "postroads"
        return f"{scheme}://{'127.0.0.1' if host in ('0.0.0.0', '') else host}:{self.port}"  # noqa: S104  # compared, not bound

    @property
    def frame_bytes_max(self) -> int:
        return self.config.limits.frame_bytes_max

    def service(self, method: int) -> Service | None:
        return self._by_method.get(method)

    async def run(self) -> None:
        """Serve until `request_stop`, then stop in good order; raise what made it stop, if anything did."""
        await self._finished.wait()
        await self.stop()
        if self.failure is not None:
            raise self.failure

    def request_stop(self) -> None:
        self._finished.set()

    async def stop_requested(self) -> None:
        """Wait until `request_stop` was called."""
        await self._finished.wait()

    async def stop(self) -> None:
        """Accept nothing more, finish what is being written, say goodbye, close."""
        if self._stopping:
            return
        self._stopping = True
        if self._listener is not None:
            await self._listener.stop()
        for service in self._started:
            await service.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers.values():
            peer.channel.pause()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S_MAX):
                await self._settle()
                await self._say_goodbye()
        for peer in list(self.peers.values()):
            peer.channel.abort()
        if self._timer is not None:
            self._timer.cancel()
        self._say_farewell()
        self._ended = True
        await self._close_files()
        log.info("broker %d stopped", self.config.id)

    def _say_farewell(self) -> None:
        """End the tracks. Without it, as after a failure, the next start reports what may be missing."""
        if self.tracking is not None and self.failure is None:
            self._broker.clock(_wall_ms())
            self._broker.farewell()
            for order in self._broker.outputs():
                if isinstance(order, Track):
                    self.tracking.track(order)

    async def _close_files(self) -> None:
        """Close the tracks, for which a log may be read, and then the logs."""
        await self._preparation.stop()
        if self.tracking is not None and not await self.tracking.finish():
            log.warning("the last tracks were not written before the time limit")
        await asyncio.to_thread(self._disk.close)

    async def _settle(self) -> None:
        """Wait until everything that was received is durable and answered."""
        while self._planned is not None or self._disk.busy:  # noqa: ASYNC110  # two conditions of others, looked at for a moment
            await asyncio.sleep(0.002)

    async def _say_goodbye(self) -> None:
        gone = [peer.gone for peer in self.peers.values()]
        for peer in list(self.peers.values()):
            peer.channel.close(reason="the broker stops")
        if gone:
            await asyncio.wait(gone)

    async def _open_tracking(self) -> TrackKeeper | None:
        tracking = self.config.tracking
        settings = tracking.settings()
        if settings.strategy is Strategy.NULL:
            return None
        options = TrackOptions(int(tracking.retention_s * 1000), tracking.retention_bytes, settings.late_ms)
        path = self._disk.path / TRACKS_NAME
        logs = {pubend: LogIds(AroundDamage(log)) for pubend, log in self._disk.logs.items()}
        state = self._disk.state
        if not self._tracking_process:
            return Tracking(path, state, logs, settings, options, self._take_tracked)
        title, level = self.config.title, self.config.log_level
        return await TrackingProcess.start(path, state, logs, settings, options, self._take_tracked, title=title, log_level=level)

    def _take_tracked(self, fact: Tracked) -> None:
        """Carry word of the tracks to the machine."""
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(self._fact, fact)

    def stats(self) -> dict[str, object]:
        """Tell how the broker is: for the console, metrics and tests."""
        return {
            **self._broker.stats(),
            "broker": self.config.id,
            "incarnation": self._disk.state.incarnation,
            "appends": self._disk.appends,
            "appended_rows": self._disk.appended_rows,
            "damaged_places": self._disk.damaged_places,
            "log_bytes": self._disk.log_bytes,
            "disk_full": int(self._disk.room.full),
            "refused_appends": self._disk.room.refused,
            "internal_errors": self.internal_errors,
            "insecure": int(self.is_open_to_all),
            "identities": len(self.gate.identities),
            "authentication_failures": self.gate.refusals,
            "tls_failures": 0 if self._listener is None else self._listener.tls_failures,
            "revoked_connections": self.revoked_connections,
            **self.quotas.stats(),
            "unknown_packets": self.unknown_packets,
            "prepared_filters": self._preparation.prepared,
            "packets_preparing": len(self._preparation),
            "connections": len(self.peers),
            "connections_max": self.connections_max,
            "handshakes": self._count()[1],
            "connections_refused": 0 if self._listener is None else self._listener.refused,
            "accept_failures": 0 if self._listener is None else self._listener.failures,
            "buffers_bytes": self.budget.held,
            "buffers_bytes_max": self.budget.bytes_max,
            "buffers_waiting": self.budget.waiting,
            "buffers_closed": self.budget.closed,
            "backlog_bytes": sum(peer.channel.backlog for peer in self.peers.values()),
            "dropped_frames": sum(peer.channel.outbox.dropped_frames for peer in self.peers.values()),
            "held_back_connections": len(self._held_back),
            **(self.tracking.stats() if self.tracking is not None else {}),
            "identity_uses": self._identity_uses(),
            "streams": self._broker.streams(),
        }

    def _identity_uses(self) -> dict[str, dict[str, int]]:
        """Return what each identity uses of its limits."""
        in_machine = self._broker.machine.uses_by_identity(self.quotas.identities)
        return {name: {**use, **in_machine[name]} for name, use in self.quotas.by_identity().items()}

    def report(self, question: StatusQuestion) -> BrokerReport:
        """Report how the broker is, with a page of its subscriptions."""
        machine = self._broker.machine
        return make_report(
            stats=self.stats(),
            name=self.config.title,
            software=SOFTWARE,
            address=self.url,
            started_ms=self._started_ms,
            wall_ms=_wall_ms(),
            peers=self.peers.values(),
            streams=machine.report_streams(),
            subscriptions=machine.report_subscriptions(question.after, question.page, question.wanted),
            notices=self._notices(),
        )

    def _notices(self) -> list[str]:
        """Return what an operator must know of this broker, whatever page of the status he looks at."""
        notices = [INSECURE.format(self.config.listen)] if self.is_open_to_all else []
        if self._disk.room.full:
            notices.append("the disk is full: publishing is refused")
        if self._disk.damaged_places:
            notices.append("logs are damaged: `postroad log check` names the places")
        return notices

    # --- the machine -----------------------------------------------------------------------------------------------------

    def _fact(self, fact: TrackedFact) -> None:
        """Tell the machine. If it fails on a write, nobody knows what was acknowledged: the broker stops and reads its disk back.

        Any other fact concerns one connection or one read.
        """
        if self._ended:
            return
        self._broker.clock(_wall_ms())
        try:
            self._broker.fact(fact, now=self._loop.time())
        except Exception as error:
            log.exception("the machine failed on %s", type(fact).__name__)
            self.internal_errors += 1
            match fact:
                case Appended() | AppendFailed() | Stored():
                    self._fail(error)
                case LinkUp() | ClientUp() | Congested() | Drained():
                    self._give_up(fact.link)
                case _:
                    pass
        self._plan_pump()

    def _disk_fact(self, fact: TrackedFact) -> None:
        """Tell the machine, and act on it at once: publishers and subscribers wait for it, and the disk for the next write."""
        self._fact(fact)
        self._pump()

    def _plan_pump(self) -> None:
        if self._planned is None:
            self._planned = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Carry out the machine's orders, and be there when it wants to be woken."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        if self._ended:
            return  # the farewell was the last thing to be tracked
        try:
            self._writes.during(self._turn)
        except Exception as error:
            log.exception("the machine failed")
            self._fail(error)

    def _turn(self) -> None:
        now = self._loop.time()
        deadline = self._broker.deadline()
        self._broker.clock(_wall_ms())
        if deadline is not None and deadline <= now:
            self._broker.wake(now=now)
            deadline = self._broker.deadline()
        for order in self._broker.outputs():
            try:
                self._carry_out(order)
            except Exception as error:
                log.exception("the order %s failed", type(order).__name__)
                self.internal_errors += 1
                self._order_failed(order, error)
        self._watch_publishers()
        self._set_timer(deadline)

    def _set_timer(self, deadline: float | None) -> None:
        if self._timer is not None:
            if deadline is not None and self._timer_at <= deadline:
                return  # it wakes us early enough; the deadline is looked at again then
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer, self._timer_at = self._loop.call_at(deadline + TIMER_S, self._wake), deadline

    def _wake(self) -> None:
        self._timer = None
        self._plan_pump()

    def _carry_out(self, order: TrackedOrder) -> None:
        match order:
            case Send():
                self._send(order)
            case Append():
                self._disk.append(order)
            case Refuse():
                peer = self.peers.get(order.link)
                if peer is not None and order.close:
                    peer.refuse(order.error, order.packet)
                elif peer is not None:
                    peer.channel.send_error(order.error, order.packet, control=False)
            case LimitBandwidth(broker, bytes_per_s):
                self._neighbours.limit_bandwidth(broker, bytes_per_s)
            case Store():
                self._disk.store(order)
            case ReadLog():
                self._disk.read(order)
            case ReleaseLog():
                self._disk.release(order)
            case Track():
                assert self.tracking is not None
                self.tracking.track(order)
            case SearchTracks():
                self._search_tracks(order)
            case ReportStatus(token, question):
                self._fact(StatusReported(token, self.report(question)))
            case Notice(text, error):
                log.log(logging.ERROR if error else logging.INFO, shorten(text))

    def _order_failed(self, order: TrackedOrder, error: Exception) -> None:
        """Limit a failure to what the order concerns: a connection or a question. Only a failed write stops the broker."""
        match order:
            case Send() | Refuse():
                self._give_up(order.link)
            case LimitBandwidth():
                pass  # the link stays as it was
            case SearchTracks():
                self._fact(TracksSearched(order.token, StorageError(f"tracks could not be searched: {error}")))
            case Append() | Store() | ReleaseLog() | ReadLog():
                self._fail(error)
            case Track() | Notice() | ReportStatus():
                pass  # tracks or the log lack something; messages flow on

    def _give_up(self, link: int) -> None:
        """Close a connection that we failed to serve."""
        peer = self.peers.get(link)
        if peer is None:
            return
        try:
            peer.refuse(InternalError("the broker failed to serve this connection; see the log of the broker"))
        except Exception:
            log.exception("the error could not be sent to %r", peer)
            peer.channel.abort()

    def _search_tracks(self, order: SearchTracks) -> None:
        """Have something looked up in the tracks, and tell the machine what was found, or why nothing could be."""
        assert self.tracking is not None

        def found(future: Future[Findings]) -> None:
            error = future.exception()
            if error is None:
                result: Findings | PostroadError = future.result()
            else:
                log.error("tracks could not be searched: %s", error)
                result = error if isinstance(error, PostroadError) else StorageError(f"tracks could not be searched: {error}")
            with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
                self._loop.call_soon_threadsafe(self._fact, TracksSearched(order.token, result))

        self.tracking.search(order.question).add_done_callback(found)

    def _send(self, order: Send) -> None:
        peer = self.peers.get(order.link)
        if peer is None:
            return
        control = peer.role is Role.BROKER and not order.data
        try:
            peer.channel.send(order.message, order.packet, order.batch, control=control)
        except FrameTooLargeError as error:
            log.error("a %s does not fit a frame of %r", type(order.message).__name__, peer)  # noqa: TRY400  # no bug of ours
            peer.refuse(error)

    def _fail(self, error: Exception) -> None:
        """Stop: the disk failed in a way that only reading it back can clear up."""
        if self.failure is None:
            log.critical("the broker stops because of an error: %s", error)
            self.failure = error
            self.request_stop()

    def _watch_publishers(self) -> None:
        """Do not read publishers while too much waits for the disk."""
        limits = self.config.limits
        rows, size = self._broker.backlog_rows, self._broker.backlog_bytes
        too_much = rows > limits.publish_backlog_rows or size > limits.publish_backlog_bytes
        little = rows <= limits.publish_backlog_rows // 2 and size <= limits.publish_backlog_bytes // 2
        if not self._paused and too_much:
            self._paused = True
            for peer in self.peers.values():
                if peer.publishes:
                    peer.channel.pause()
        elif self._paused and little and not self._stopping:
            self._paused = False
            for peer in self.peers.values():
                peer.channel.resume()
        if self._held_back or size > limits.publish_window_bytes:
            self._hold_back()

    def _hold_back(self) -> None:
        """Do not read a client that goes on publishing beyond its credit, and let the others share the memory."""
        limits, held = self.config.limits, self._broker.held_back_bytes()
        share = min(limits.publish_backlog_bytes // 2 // max(len(held), 1), WINDOWS_HELD_BACK * limits.publish_window_bytes)
        for link in [link for link in self._held_back if held.get(link, 0) <= share // 2]:
            del self._held_back[link]
            if link in self.peers:
                self.peers[link].channel.resume(RATE)
        for link, size in held.items():
            if size > share and link not in self._held_back and link in self.peers:
                self._held_back[link] = None
                self.peers[link].channel.pause(RATE)

    # --- peers -----------------------------------------------------------------------------------------------------------

    def _make_peer(self, hello: Hello | None, cost: int = 1) -> Peer:
        self._links += 1
        peer = Peer(self, self._loop, self._links, hello, cost, self._writes, self._turns, self.budget)
        self.peers[peer.link] = peer
        return peer

    def _accept(self, host: str) -> Peer:
        """Make the peer of a connection from an address, or refuse it."""
        host = address_of(host)
        self.quotas.check_address(host)
        peer = self._make_peer(None)
        peer.host, peer.unidentified_bytes_left = host, self.config.limits.unidentified_bytes_max
        self.quotas.connected(host)
        return peer

    def note_known(self, peer: Peer) -> None:
        if peer.host:
            self.quotas.known(peer.host)

    def _count(self) -> tuple[int, int]:
        return len(self.peers), sum(not peer.known for peer in self.peers.values())

    def _hello(self, cost: int) -> Hello:
        return Hello(
            PROTOCOL_VERSION_OLDEST,
            PROTOCOL_VERSION,
            Role.BROKER,
            self.config.id,
            self.config.title,
            SOFTWARE,
            frame_bytes_max=self.config.limits.frame_bytes_max,
            incarnation=self._disk.state.incarnation,
            cost=cost,
        )

    def greet(self, peer: Peer, hello: Hello) -> Welcome:
        """Accept a peer that said hello, or raise."""
        version = agree_version(hello)
        if self._stopping:
            raise ShuttingDownError("the broker is shutting down")
        if hello.role is Role.BROKER:
            self._check_broker(peer, hello.peer_id)
            peer.cost = hello.cost or 1
        else:
            admitted = self.gate.admit_client(peer.named, hello.token, encrypted=peer.channel.tls is not None)
            if peer.admitted not in (None, admitted):
                raise HandshakeError("this connection has already used a service under another identity")
            self._count_identity(peer, admitted)
        self._take_identity(peer, hello.role, hello.peer_id, hello.incarnation, hello.name, hello.frame_bytes_max)
        peer.channel.takes_values = ROWS in hello.features
        return Welcome(
            version,
            self.config.id,
            peer.broker,
            self.config.title,
            SOFTWARE,
            features=(ROWS,),
            frame_bytes_max=self.config.limits.frame_bytes_max,
            incarnation=self._disk.state.incarnation,
        )

    def admit(self, peer: Peer) -> Admitted:
        """Return what a peer may do that asks a service without a hello, or raise."""
        admitted = self.gate.admit_client(peer.named, "", encrypted=peer.channel.tls is not None)
        self._count_identity(peer, admitted)
        return admitted

    def _count_identity(self, peer: Peer, admitted: Admitted) -> None:
        """Count a connection for its identity, or refuse it."""
        if admitted.identity is not None and not peer.quota:
            self.quotas.entered(admitted.identity.name)
            peer.quota = admitted.identity.name
        peer.admitted = admitted

    def _check_broker(self, peer: Peer, broker: int) -> None:
        tls = peer.channel.tls
        self.gate.admit_broker(peer.named, broker, (tls.version() if tls is not None else None) or "")

    def welcomed(self, peer: Peer, welcome: Welcome) -> None:
        """Accept a broker that answered our hello, or raise."""
        self._check_broker(peer, welcome.broker_id)
        if not PROTOCOL_VERSION_OLDEST <= welcome.version <= PROTOCOL_VERSION:
            raise HandshakeError(f"{welcome.name} chose version {welcome.version}, which this broker did not offer")
        self._take_identity(peer, Role.BROKER, welcome.broker_id, welcome.incarnation, welcome.name, welcome.frame_bytes_max)

    def _take_identity(self, peer: Peer, role: Role, peer_id: int, incarnation: int, name: str, frame_bytes_max: int) -> None:
        limits, links = self.config.limits, self.config.links
        if frame_bytes_max < FRAME_BYTES_MAX_LEAST:
            raise HandshakeError(f"frame_bytes_max is {frame_bytes_max:,}; it must be at least {FRAME_BYTES_MAX_LEAST:,}")
        if role is Role.CLIENT:
            bounds = OutboxLimits(
                limits.client_backlog_max_bytes,
                links.backlog_control_bytes,
                limits.client_backlog_high_bytes,
                limits.client_backlog_low_bytes,
            )
        else:
            bounds = OutboxLimits(links.backlog_data_bytes, links.backlog_control_bytes, 1 << 62, 0)
            self._neighbours.check(peer_id)
        peer.identified(
            role, broker=peer_id, incarnation=incarnation, name=name, limits=bounds, frame_bytes_max=limits.frame_bytes_max
        )
        peer.channel.frame_bytes_max = frame_bytes_max
        if role is Role.CLIENT:
            rights = OPEN if peer.admitted is None else peer.admitted.rights
            self._fact(ClientUp(peer.link, peer.name, rights))
        else:
            self._neighbours.adopt(peer)

    def packet(self, peer: Peer, packet: Packet, batch: Batch | None, packet_id: int, size: int) -> None:
        """Hand a packet to the machine, once its filters are prepared."""
        if peer.quota and isinstance(packet, Publish | PublishColumns):
            wait_s = self.quotas.published(peer.quota, size, self._loop.time())
            if wait_s:
                peer.channel.pause(QUOTA)
                self._loop.call_later(wait_s, peer.channel.resume, QUOTA)
        if not self._preparation.keep(peer, packet, batch, packet_id):
            self.take_packet(peer, packet, batch, packet_id)

    def knows_filter(self, text: str) -> bool:
        return self._broker.knows_filter(text)

    def remember_filter(self, text: str, known: Filter | FilterError) -> None:
        self._broker.remember_filter(text, known)

    def take_packet(self, peer: Peer, packet: Packet, batch: Batch | None, packet_id: int) -> None:
        """Hand a packet to the machine."""
        if self._ended or peer.channel.closing:
            return
        if self._planned is None:
            self._broker.clock(_wall_ms())
            self._plan_pump()
        try:
            self._broker.receive(packet, link=peer.link, now=self._loop.time(), batch=batch, packet=packet_id)
        except Exception:
            log.exception("the machine failed on %s of %r", type(packet).__name__, peer)
            self.internal_errors += 1
            self._give_up(peer.link)
        if self._broker.orders_waiting > ORDERS_MAX or type(packet) is ReadRange:
            self._pump()  # so that what answers take is counted before the next packet is looked at

    def note_skipped(self, peer: Peer) -> None:  # noqa: ARG002
        """Count a packet of a neighbour that this release does not know."""
        self.unknown_packets += 1

    def backlog_high(self, peer: Peer) -> None:
        if peer.role is Role.CLIENT:
            self._fact(Congested(peer.link))

    def backlog_low(self, peer: Peer) -> None:
        if peer.role is Role.CLIENT:
            self._fact(Drained(peer.link))

    def lost(self, peer: Peer) -> None:
        """Forget a peer, whoever ended the connection."""
        self.peers.pop(peer.link, None)
        self._held_back.pop(peer.link, None)
        self._preparation.forget(peer)
        if peer.host:
            self.quotas.disconnected(peer.host, known=peer.known)
        if peer.quota:
            self.quotas.left(peer.quota)
        if peer.role is Role.CLIENT:
            self._fact(LinkLost(peer.link))
        elif peer.role is Role.BROKER:
            self._neighbours.drop(peer)

    # --- identities ------------------------------------------------------------------------------------------------------

    def reload_certificates(self) -> None:
        """Read the certificates again; if that fails, those in use stay."""
        try:
            self.gate.reload()
        except PostroadError as error:
            log.error("the certificates were not read again: %s [error %d]", error, error.code)  # noqa: TRY400  # no bug of ours
        else:
            log.info("the certificates were read again")

    async def _watch_identities(self) -> None:
        """Read the file of identities again when it has changed, and close the connections of identities that are gone."""
        while True:
            await asyncio.sleep(IDENTITIES_S)
            try:
                if await asyncio.to_thread(self.gate.refresh):
                    log.info("the identities were read again: there are %d", len(self.gate.identities))
            except PostroadError as error:
                log.error("the identities stay as they are: %s [error %d]", error, error.code)  # noqa: TRY400  # no bug of ours
            except Exception:
                log.exception("the identities stay as they are")  # whatever a file has: those who were revoked must be cut
            for peer in list(self.peers.values()):
                identity = None if peer.admitted is None else peer.admitted.identity
                if identity is not None and not peer.channel.closing and not self.gate.still_holds(identity):
                    self.revoked_connections += 1
                    peer.cut(UnauthenticatedError(f"the identity {identity.name!r} was revoked or changed, or has expired"))

    # --- heartbeats ------------------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        """Probe quiet peers and give up dead ones. A turn that comes late proves nothing about the others and is left out."""
        interval = min(self.config.links.heartbeat_s, self.config.links.client_heartbeat_s)
        while True:
            due = self._loop.time() + interval
            await asyncio.sleep(interval)
            self.budget.expire()
            if self._loop.time() - due < interval:
                for peer in list(self.peers.values()):
                    probe(peer, self.config.links, self._loop.time())

    async def _measure_capacity(self) -> None:
        """Tell the machine how busy the event loop's thread is, and what memory is left: what admission control may reserve."""
        used, since = busy_s(), self._loop.time()
        while True:
            available = available_memory()
            if available is not None:
                self._fact(MemoryAvailable(available))
            await asyncio.sleep(CAPACITY_SAMPLE_S)
            now_used, now = busy_s(), self._loop.time()
            self._fact(CpuUsed(min((now_used - used) / max(now - since, 0.001), 1.0)))
            used, since = now_used, now


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
