"""What the service accepts. Everything a client can send is checked here, before any storage sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from postroad.core.batch.schema import check_message
from postroad.errors import InvalidValueError, QueueLimitError, UnknownBindingError, UnknownClientError, UnknownQueueError
from postroad.storage.queues.base import QueueSettings
from postroad.wire.packets.telesto import CONTEXT_MAX

ID_MAX: Final = (1 << 31) - 1
"""Client and queue ids are 32-bit integers in the database, as the report's `serial`."""
PRIORITY_MIN: Final = 1
PRIORITY_MAX: Final = 10
DAY_MS: Final = 86_400_000


_ATTRIBUTES: Final = msgspec.msgpack.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class QueueLimits:
    name_chars_max: int = 255
    payload_bytes_max: int = 1 << 20
    attribute_bytes_max: int = 64 << 10
    batch_rows_max: int = 1_000
    batch_bytes_max: int = 8 << 20
    put_queues_max: int = 1_024
    key_bytes_max: int = 64
    filter_chars_max: int = 65_536
    lease_ms_max: int = DAY_MS
    wait_ms_max: int = 3_600_000
    delay_ms_max: int = 3_660 * DAY_MS
    waiting_takes_max: int = 10_000
    queues_per_identity_max: int = 1_000
    clients_per_identity_max: int = 10_000
    bindings_per_identity_max: int = 256
    page_rows_max: int = 1_000
    page_bytes_max: int = 1 << 20

    def check_name(self, name: str) -> str:
        if not 1 <= len(name) <= self.name_chars_max:
            raise InvalidValueError(f"a name has 1 to {self.name_chars_max} characters, not {len(name)}")
        if not name.isprintable():
            raise InvalidValueError(f"a name has printable characters only, not {name[:60]!r}")
        return name

    def check_payload(self, payload: bytes) -> bytes:
        if len(payload) > self.payload_bytes_max:
            raise QueueLimitError(f"a message has {len(payload):,} bytes; at most {self.payload_bytes_max:,} are allowed")
        return payload

    def check_attributes(self, packed: bytes | None) -> bytes | None:
        """Attributes of a put obey the bounds of published ones."""
        if packed is None:
            return None
        if len(packed) > self.attribute_bytes_max:
            raise QueueLimitError(f"attributes have {len(packed):,} bytes; at most {self.attribute_bytes_max:,} are allowed")
        try:
            attributes = _ATTRIBUTES.decode(packed)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValueError(f"the attributes of a put are not a map of attributes: {error}") from error
        check_message(attributes, b"")
        return packed

    def check_batch(self, rows: int, size: int = 0) -> None:
        if not 1 <= rows <= self.batch_rows_max:
            raise QueueLimitError(f"a batch has 1 to {self.batch_rows_max:,} entries, not {rows:,}")
        if size > self.batch_bytes_max:
            raise QueueLimitError(f"a batch has {size:,} bytes; at most {self.batch_bytes_max:,} are allowed")

    def check_key(self, key: bytes | None) -> bytes | None:
        if key is not None and not 1 <= len(key) <= self.key_bytes_max:
            raise QueueLimitError(f"an idempotency key has 1 to {self.key_bytes_max} bytes, not {len(key)}")
        return key

    def check_lease_ms(self, lease_ms: int | None, *, minimum: int = 0) -> int | None:
        if lease_ms is not None and not minimum <= lease_ms <= self.lease_ms_max:
            raise QueueLimitError(f"a lease of {lease_ms} ms is not allowed; it must have {minimum} to {self.lease_ms_max:,} ms")
        return lease_ms

    def check_wait_ms(self, wait_ms: int) -> int:
        if not 0 <= wait_ms <= self.wait_ms_max:
            raise QueueLimitError(f"a wait of {wait_ms} ms is not allowed; it must have at most {self.wait_ms_max:,} ms")
        return wait_ms

    def check_delay_ms(self, delay_ms: int, what: str) -> int:
        if not 0 <= delay_ms <= self.delay_ms_max:
            raise QueueLimitError(f"{what} of {delay_ms} ms is not allowed; it must have 0 to {self.delay_ms_max:,} ms")
        return delay_ms

    def check_settings(self, settings: QueueSettings) -> QueueSettings:
        self.check_lease_ms(settings.lease_ms, minimum=1)
        if not 0 <= settings.max_deliveries <= ID_MAX:
            raise InvalidValueError(f"max_deliveries must be from 0 to {ID_MAX}, not {settings.max_deliveries}")
        if settings.max_deliveries and settings.dead_letter_id is None:
            raise InvalidValueError("max_deliveries needs a dead-letter queue for the messages that reach this limit")
        return settings

    def check_filter(self, text: str) -> str:
        if not 1 <= len(text) <= self.filter_chars_max:
            raise QueueLimitError(f"a filter has 1 to {self.filter_chars_max:,} characters, not {len(text):,}")
        if "\0" in text:
            raise InvalidValueError("a filter must not contain NUL characters")
        return text


def check_priority(priority: int) -> int:
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidValueError(f"a priority must be from {PRIORITY_MIN} (lowest) to {PRIORITY_MAX}, not {priority}")
    return priority


def check_queue_id(queue_id: int) -> int:
    """No storage has an id beyond the range, so such a queue is unknown rather than invalid."""
    if not 1 <= queue_id <= ID_MAX:
        raise UnknownQueueError(f"no queue has the id {queue_id}")
    return queue_id


def check_client_id(client_id: int) -> int:
    if not 1 <= client_id <= ID_MAX:
        raise UnknownClientError(f"no client has the id {client_id}")
    return client_id


def check_binding_id(binding_id: int) -> int:
    if not 1 <= binding_id <= ID_MAX:
        raise UnknownBindingError(f"no binding has the id {binding_id}")
    return binding_id


def check_receiver_id(receiver_id: int | None) -> int | None:
    """Accept clients that do not exist yet, but only ids that some client may get."""
    if receiver_id is not None and not 1 <= receiver_id <= ID_MAX:
        raise InvalidValueError(f"a receiver is a client id from 1 to {ID_MAX}, not {receiver_id}")
    return receiver_id


def check_sender_id(sender_id: int | None) -> int | None:
    """0 is the overlay, which feeds bound queues."""
    if sender_id is not None and not 0 <= sender_id <= ID_MAX:
        raise InvalidValueError(f"a sender is a client id from 0 to {ID_MAX}, not {sender_id}")
    return sender_id


def check_context(context: int | None) -> int | None:
    if context is not None and not 0 <= context <= CONTEXT_MAX:
        raise InvalidValueError(f"a context must be from 0 to {CONTEXT_MAX}, not {context}")
    return context
