-- One schema for the three kinds of process; each uses its own tables in its own file.
CREATE TABLE IF NOT EXISTS marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS identity (name BLOB PRIMARY KEY) WITHOUT ROWID;

-- server
CREATE TABLE IF NOT EXISTS topics (
    topic BLOB PRIMARY KEY, copy BLOB NOT NULL, lineage BLOB NOT NULL, target BLOB NOT NULL, target_address BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS publishers (
    topic BLOB, publisher BLOB, counter INTEGER NOT NULL, digest INTEGER NOT NULL, stamp INTEGER NOT NULL,
    PRIMARY KEY (topic, publisher)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS subscribers (
    topic BLOB, client BLOB, subscribed INTEGER NOT NULL, operation INTEGER NOT NULL, stamp INTEGER NOT NULL,
    position INTEGER NOT NULL, reads INTEGER NOT NULL,
    PRIMARY KEY (topic, client)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS late (
    topic BLOB, client BLOB, rank INTEGER, sequence INTEGER NOT NULL,
    PRIMARY KEY (topic, client, rank)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS late_sequence ON late (topic, client, sequence);
CREATE TABLE IF NOT EXISTS messages (
    topic BLOB, sequence INTEGER, id BLOB NOT NULL, stamp INTEGER NOT NULL, body BLOB NOT NULL,
    UNIQUE (topic, sequence)
);
CREATE TABLE IF NOT EXISTS staged (
    topic BLOB, copy BLOB, id BLOB, body BLOB NOT NULL,
    UNIQUE (topic, copy, id)
);
CREATE TABLE IF NOT EXISTS moved (
    topic BLOB PRIMARY KEY, target BLOB NOT NULL, target_address BLOB NOT NULL, copies BLOB NOT NULL, stamp INTEGER NOT NULL
) WITHOUT ROWID;

-- proxy
CREATE TABLE IF NOT EXISTS servers (server BLOB PRIMARY KEY, address BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS routes (topic BLOB PRIMARY KEY, server BLOB NOT NULL) WITHOUT ROWID;

-- client
CREATE TABLE IF NOT EXISTS memories (
    topic BLOB PRIMARY KEY, last_message_id BLOB NOT NULL, counter INTEGER NOT NULL, operation INTEGER NOT NULL, home BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS received (topic BLOB PRIMARY KEY, id BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS unfinished (topic BLOB PRIMARY KEY, counter INTEGER NOT NULL, body BLOB NOT NULL);
