-- The embedded twin of sql/0001_tables.sql. Times are milliseconds of the process's clock.

CREATE TABLE clients (
    client_id INTEGER PRIMARY KEY AUTOINCREMENT,
    client_name TEXT NOT NULL UNIQUE,
    client_mode INTEGER NOT NULL
) STRICT;

CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_name TEXT NOT NULL UNIQUE,
    lease_ms INTEGER NOT NULL DEFAULT 30000,
    max_deliveries INTEGER NOT NULL DEFAULT 0,
    dead_letter_id INTEGER
) STRICT;

-- AUTOINCREMENT: an id is never used twice, also after the message is gone. A lease names a message by it.
CREATE TABLE messages (
    message_id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    sender_id INTEGER NOT NULL,
    receiver_id INTEGER,
    context INTEGER,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10),
    time_of_arrival INTEGER NOT NULL,
    message BLOB NOT NULL,
    state INTEGER NOT NULL,
    delivery INTEGER NOT NULL DEFAULT 0,
    key BLOB,
    attributes BLOB,
    origin_queue_id INTEGER,
    leased_by INTEGER,
    due INTEGER,
    expires INTEGER
) STRICT;

CREATE INDEX messages_by_queue ON messages (queue_id, message_id);
CREATE INDEX messages_by_priority ON messages
    (queue_id, coalesce(receiver_id, 0), priority DESC, time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_priority_and_sender ON messages
    (queue_id, coalesce(receiver_id, 0), sender_id, priority DESC, time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_time ON messages
    (queue_id, coalesce(receiver_id, 0), time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_time_and_sender ON messages
    (queue_id, coalesce(receiver_id, 0), sender_id, time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_context ON messages
    (queue_id, coalesce(receiver_id, 0), context, time_of_arrival, message_id) WHERE state = 0 AND context IS NOT NULL;
CREATE INDEX messages_by_due ON messages (due) WHERE due IS NOT NULL;
CREATE INDEX messages_by_expiry ON messages (expires) WHERE expires IS NOT NULL;

CREATE TABLE keys (
    queue_id INTEGER NOT NULL,
    sender_id INTEGER NOT NULL,
    key BLOB NOT NULL,
    message_id INTEGER NOT NULL,
    put_at INTEGER NOT NULL,
    PRIMARY KEY (queue_id, sender_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_by_age ON keys (put_at);

CREATE TABLE bindings (
    binding_id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id INTEGER NOT NULL,
    filter_text TEXT NOT NULL,
    priority INTEGER NOT NULL
) STRICT;

CREATE TABLE cursors (
    binding_id INTEGER NOT NULL,
    pubend INTEGER NOT NULL,
    tick INTEGER NOT NULL,
    PRIMARY KEY (binding_id, pubend)
) STRICT, WITHOUT ROWID;
