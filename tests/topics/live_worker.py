"""One client process of the live test: puts and gets at random, and keeps a journal that survives SIGKILL.

The journal is the application's own book: it is written (and synced) before and after each call, so what it says happened did.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from postroad.errors import TopicsError
from postroad.topics.sync import connect


def must_be_retryable(error: TopicsError) -> None:
    if not error.retryable:
        raise error


class Worker:
    def __init__(self, name: str, root: Path, proxies: list[str], topics: list[str]) -> None:
        self.name, self.root, self.topics = name, root, topics
        self.path = root / f"{name}.journal"
        self.lines = read_journal(self.path)
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self.file, b"\n")  # ends a line that a kill cut short
        self.client = connect(proxies, name=name, data=root / "clients", timeout=1.0)
        self.rng = random.Random(f"{name} {len(self.lines)}")

    def write(self, **facts: object) -> None:
        line = {"time": time.time(), **facts}
        os.write(self.file, json.dumps(line).encode() + b"\n")
        os.fsync(self.file)
        self.lines.append(line)

    def recover(self) -> None:
        """Enter what was received just before the kill."""
        got = {line["topic"]: line["id"] for line in self.lines if line["kind"] == "got"}
        for topic in self.topics:
            last = self.client.last(topic)
            if last is not None and last.id.decode() != got.get(topic):
                self.write(kind="got", topic=topic, id=last.id.decode(), body=last.body.decode())

    def subscribe(self) -> None:
        """Subscribe where the journal does not say that we are; in an order of our own, so that owners of new topics differ."""
        last = {line["topic"]: line["kind"] for line in self.lines if "subscribe" in str(line["kind"])}
        for topic in self.rng.sample(self.topics, len(self.topics)):
            while last.get(topic) != "subscribed":
                last[topic] = "subscribed" if self.change("subscribe", topic) else ""

    def change(self, kind: str, topic: str) -> bool:
        """Subscribe or unsubscribe; tell whether it succeeded."""
        self.write(kind=kind, topic=topic)
        try:
            self.client.subscribe(topic) if kind == "subscribe" else self.client.unsubscribe(topic)
        except TopicsError as error:
            must_be_retryable(error)
            return False
        self.write(kind=f"{kind}d", topic=topic)
        return True

    def finish(self, topic: str) -> bool:
        unfinished = self.client.unfinished(topic)
        if unfinished is None:
            return True
        try:
            self.client.finish_put(topic)
        except TopicsError as error:
            must_be_retryable(error)
            return False
        self.write(kind="done", body=unfinished.body.decode())
        return True

    def put(self, topic: str) -> None:
        number = 1 + sum(line["kind"] == "put" for line in self.lines)
        body = f"{self.name} {topic} {number}"
        self.write(kind="put", topic=topic, number=number, body=body)
        try:
            self.client.put(topic, body.encode())
        except TopicsError as error:
            must_be_retryable(error)
            return
        self.write(kind="done", body=body)

    def get(self, topic: str) -> bool:
        try:
            message = self.client.get(topic)
        except TopicsError as error:
            must_be_retryable(error)
            return True
        if message is None:
            return False
        self.write(kind="got", topic=topic, id=message.id.decode(), body=message.body.decode())
        return True

    def run(self) -> None:
        self.recover()
        self.subscribe()
        while not (self.root / "finish").exists():
            topic = self.rng.choice(self.topics)
            if self.rng.random() < 0.01:
                self.change("unsubscribe", topic)
                self.subscribe()
            elif self.rng.random() < 0.3 and self.finish(topic):
                self.put(topic)
            else:
                self.get(topic)
        while sum(self.finish(topic) for topic in self.topics) < len(self.topics):
            time.sleep(0.1)
        (self.root / f"{self.name}.quiet").touch()
        while not (self.root / "drain").exists():
            time.sleep(0.02)
        for topic in self.topics:
            empty = 0
            while empty < 3:
                empty = 0 if self.get(topic) else empty + 1
        (self.root / f"{self.name}.drained").touch()
        self.client.close()


def read_journal(path: Path) -> list[dict[str, object]]:
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


if __name__ == "__main__":
    Worker(sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(","), sys.argv[4].split(",")).run()
