"""The topics service's store in memory, for the simulator and tests."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from postroad.topics.machines import rows as r


class MemoryTopicStore:
    """The twin: the same rows in dictionaries.

    What was committed is kept by whoever keeps the object; the rest dies with the machine.
    """

    def __init__(self) -> None:
        self.topics: dict[bytes, r.SaveTopic] = {}
        self.publishers: dict[tuple[bytes, bytes], r.SavePublisher] = {}
        self.subscribers: dict[tuple[bytes, bytes], r.SaveSubscriber] = {}
        self.late: dict[tuple[bytes, bytes], list[int]] = {}
        self.messages: dict[bytes, dict[int, r.AddMessage]] = {}
        self.staged: dict[tuple[bytes, bytes], dict[bytes, bytes]] = {}
        self.moved: dict[bytes, r.SaveMoved] = {}
        self.marks: dict[str, int] = {}
        self.servers: dict[bytes, r.SaveServer] = {}
        self.routes: dict[bytes, r.SaveRoute] = {}
        self.memories: dict[bytes, r.SaveMemory] = {}
        self.last: dict[bytes, r.SaveReceived] = {}
        self.unfinished: dict[bytes, r.SaveUnfinished] = {}

    def commit(self, rows: Sequence[r.Row]) -> None:
        for row in rows:
            self._apply(row)

    def _apply(self, row: r.Row) -> None:
        match row:
            case r.AddMessage(topic, sequence):
                self.messages.setdefault(topic, {})[sequence] = row
            case r.SavePublisher(topic, publisher):
                self.publishers[topic, publisher] = row
            case r.SaveSubscriber(topic, client):
                self.subscribers[topic, client] = row
            case r.DropMessages(topic, sequences):
                for sequence in sequences:
                    self.messages.get(topic, {}).pop(sequence, None)
            case r.SetMark(name, value):
                self.marks[name] = value
            case r.SaveTopic(topic):
                self.topics[topic] = row
            case r.DropTopic(topic):
                self._drop_topic(topic)
            case r.DropPublisher(topic, publisher):
                self.publishers.pop((topic, publisher), None)
            case r.DropSubscriber(topic, client):
                self.subscribers.pop((topic, client), None)
                self.late.pop((topic, client), None)
            case r.SetLate(topic, client, sequences):
                self.late[topic, client] = list(sequences)
            case r.DropLate(topic, client, sequence):
                self.late[topic, client].remove(sequence)
            case r.Stage(topic, copy_id, staged):
                self.staged.setdefault((topic, copy_id), {}).update(staged)
            case r.TakeStaged(topic, copy_id, message, sequence, stamp):
                body = self.staged[topic, copy_id][message]
                self.messages.setdefault(topic, {})[sequence] = r.AddMessage(topic, sequence, message, stamp, body)
            case r.Unstage(topic, copy_id):
                self.staged.pop((topic, copy_id), None)
            case r.SaveMoved(topic):
                self.moved[topic] = row
            case r.DropMoved(topic):
                self.moved.pop(topic, None)
            case r.SaveServer(server):
                self.servers[server] = row
            case r.DropServer(server):
                self.servers.pop(server, None)
                self.routes = {topic: route for topic, route in self.routes.items() if route.server != server}
            case r.SaveRoute(topic):
                self.routes[topic] = row
            case r.SaveMemory(topic):
                self.memories[topic] = row
            case r.SaveReceived(topic):
                self.last[topic] = row
            case r.SaveUnfinished(topic):
                self.unfinished[topic] = row
            case r.DropUnfinished(topic):
                self.unfinished.pop(topic, None)

    def _drop_topic(self, topic: bytes) -> None:
        self.topics.pop(topic, None)
        self.messages.pop(topic, None)
        self.publishers = {key: row for key, row in self.publishers.items() if key[0] != topic}
        self.subscribers = {key: row for key, row in self.subscribers.items() if key[0] != topic}
        self.late = {key: row for key, row in self.late.items() if key[0] != topic}

    def body(self, topic: bytes, sequence: int) -> bytes | None:
        row = self.messages.get(topic, {}).get(sequence)
        return None if row is None else row.body

    def received(self, topic: bytes) -> tuple[bytes, bytes] | None:
        row = self.last.get(topic)
        return None if row is None else (row.id, row.body)

    def load_server(self) -> r.ServerState:
        self.staged = {}
        return r.ServerState(
            [self.topics[key] for key in sorted(self.topics)],
            [self.publishers[key] for key in sorted(self.publishers)],
            [self.subscribers[key] for key in sorted(self.subscribers)],
            [r.SetLate(*key, tuple(self.late[key])) for key in sorted(self.late) if self.late[key]],
            [
                r.StoredMessage(topic, sequence, row.id, row.stamp, len(row.body))
                for topic, log in sorted(self.messages.items())
                for sequence, row in sorted(log.items())
            ],
            [self.moved[key] for key in sorted(self.moved)],
            copy.copy(self.marks),
            self._servers(),
        )

    def _servers(self) -> list[r.SaveServer]:
        return [self.servers[key] for key in sorted(self.servers)]

    def load_proxy(self) -> r.ProxyState:
        return r.ProxyState(self._servers(), [self.routes[k] for k in sorted(self.routes)], copy.copy(self.marks))

    def load_client(self) -> r.ClientState:
        return r.ClientState(
            [self.memories[k] for k in sorted(self.memories)],
            [self.unfinished[k] for k in sorted(self.unfinished)],
            copy.copy(self.marks),
        )
