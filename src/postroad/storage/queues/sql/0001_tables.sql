-- Tables 3.1 to 3.3 of the Telesto report, and what this project adds. Names are resolved in the schema of the connection, so
-- several services may live in one database. As in the report there are no foreign keys: a message may wait for a client that
-- does not exist yet.

CREATE TABLE clients (
    client_id serial PRIMARY KEY,
    client_name varchar(255) NOT NULL UNIQUE,
    client_mode smallint NOT NULL
);

CREATE TABLE queues (
    queue_id serial PRIMARY KEY,
    queue_name varchar(255) NOT NULL UNIQUE,
    lease_ms bigint NOT NULL DEFAULT 30000,
    max_deliveries integer NOT NULL DEFAULT 0,
    dead_letter_id integer
);

-- state: 0 waiting, 1 scheduled, 2 leased. due: when a scheduled message becomes visible, or a lease ends.
CREATE TABLE messages (
    message_id bigserial NOT NULL,
    queue_id integer NOT NULL,
    sender_id integer NOT NULL,
    receiver_id integer,
    context bigint,
    priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 10),
    time_of_arrival timestamptz NOT NULL DEFAULT now(),
    message bytea NOT NULL,
    state smallint NOT NULL DEFAULT 0,
    delivery integer NOT NULL DEFAULT 0,
    leased_by integer,
    due timestamptz,
    expires timestamptz,
    origin_queue_id integer,
    key bytea,
    attributes bytea,
    PRIMARY KEY (queue_id, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The seed's four indexes, over waiting messages only and with the ordering columns last. coalesce(receiver_id, 0) makes
-- "addressed to nobody in particular" an equality like any other receiver.
CREATE INDEX messages_by_priority ON messages
    (queue_id, (coalesce(receiver_id, 0)), priority DESC, time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_priority_and_sender ON messages
    (queue_id, (coalesce(receiver_id, 0)), sender_id, priority DESC, time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_time ON messages
    (queue_id, (coalesce(receiver_id, 0)), time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_time_and_sender ON messages
    (queue_id, (coalesce(receiver_id, 0)), sender_id, time_of_arrival, message_id) WHERE state = 0;
CREATE INDEX messages_by_context ON messages
    (queue_id, (coalesce(receiver_id, 0)), context, time_of_arrival, message_id) WHERE state = 0 AND context IS NOT NULL;
CREATE INDEX messages_by_due ON messages (due) WHERE state <> 0;
CREATE INDEX messages_by_expiry ON messages (expires) WHERE expires IS NOT NULL AND state <> 2;

-- Idempotency keys outlive their messages: a put may be repeated after the message was taken and done.
CREATE TABLE keys (
    queue_id integer NOT NULL,
    sender_id integer NOT NULL,
    key bytea NOT NULL,
    message_id bigint NOT NULL,
    put_at timestamptz NOT NULL,
    PRIMARY KEY (queue_id, sender_id, key)
);
CREATE INDEX keys_by_age ON keys (put_at);

CREATE TABLE bindings (
    binding_id serial PRIMARY KEY,
    queue_id integer NOT NULL,
    filter_text text NOT NULL,
    priority smallint NOT NULL CHECK (priority BETWEEN 1 AND 10),
    fed_by integer, -- the broker that feeds it, until
    fed_until timestamptz
);

CREATE TABLE cursors (
    binding_id integer NOT NULL,
    pubend bigint NOT NULL,
    tick bigint NOT NULL,
    PRIMARY KEY (binding_id, pubend)
);

-- Which broker has waiting takes on which queue. Lost in a crash of the server, on purpose: brokers write it again when they reconnect.
CREATE UNLOGGED TABLE waiting (
    queue_id integer NOT NULL,
    broker integer NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (queue_id, broker)
);
