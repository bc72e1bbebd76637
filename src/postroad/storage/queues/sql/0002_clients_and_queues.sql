-- Client and queue manipulation of Table 3.5. The names are the report's.

-- One clock for all brokers. Tests replace it to move time.
CREATE FUNCTION queue_clock() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT now() $$;

CREATE FUNCTION milliseconds(p_time timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (extract(epoch FROM p_time) * 1000)::bigint
$$;

CREATE FUNCTION later(p_ms bigint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT queue_clock() + p_ms * interval '1 millisecond'
$$;

-- Shared by putters of a queue, exclusive for those who register a waiter or delete the queue. See docs/internals/queues.md.
CREATE FUNCTION lock_space() RETURNS integer LANGUAGE sql STABLE AS $$ SELECT hashtext('postroad ' || current_schema()) $$;

CREATE FUNCTION request_id(p_client_name varchar, p_mode smallint) RETURNS integer LANGUAGE sql AS $$
    INSERT INTO clients (client_name, client_mode) VALUES (p_client_name, p_mode) RETURNING client_id
$$;

CREATE FUNCTION identify(p_client_id integer) RETURNS SETOF clients LANGUAGE sql STABLE AS $$
    SELECT * FROM clients WHERE client_id = p_client_id
$$;

CREATE FUNCTION delete_client(p_client_id integer) RETURNS integer LANGUAGE sql AS $$
    DELETE FROM clients WHERE client_id = p_client_id RETURNING client_id
$$;

CREATE FUNCTION create_queue(p_queue_name varchar) RETURNS SETOF queues LANGUAGE sql AS $$
    INSERT INTO queues (queue_name) VALUES (p_queue_name) RETURNING *
$$;

CREATE FUNCTION delete_queue(p_queue_id integer) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(lock_space(), p_queue_id);
    DELETE FROM queues WHERE queue_id = p_queue_id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    DELETE FROM messages WHERE queue_id = p_queue_id;
    DELETE FROM keys WHERE queue_id = p_queue_id;
    DELETE FROM cursors WHERE binding_id IN (SELECT binding_id FROM bindings WHERE queue_id = p_queue_id);
    DELETE FROM bindings WHERE queue_id = p_queue_id;
    DELETE FROM waiting WHERE queue_id = p_queue_id;
    RETURN p_queue_id;
END
$$;

CREATE FUNCTION get_queue_id(p_queue_name varchar) RETURNS SETOF queues LANGUAGE sql STABLE AS $$
    SELECT * FROM queues WHERE queue_name = p_queue_name
$$;

CREATE FUNCTION get_queue_name(p_queue_id integer) RETURNS SETOF queues LANGUAGE sql STABLE AS $$
    SELECT * FROM queues WHERE queue_id = p_queue_id
$$;

CREATE FUNCTION list_queues(p_after integer DEFAULT 0, p_limit integer DEFAULT NULL) RETURNS SETOF queues LANGUAGE sql STABLE AS $$
    SELECT * FROM queues WHERE queue_id > p_after ORDER BY queue_id LIMIT p_limit
$$;

CREATE FUNCTION get_active_queues(p_client_id integer, p_after integer DEFAULT 0, p_limit integer DEFAULT NULL)
RETURNS SETOF queues LANGUAGE sql STABLE AS $$
    SELECT * FROM queues q WHERE q.queue_id > p_after AND (
        EXISTS (SELECT FROM messages m WHERE m.queue_id = q.queue_id AND coalesce(m.receiver_id, 0) = p_client_id
                AND m.state = 0 AND (m.expires IS NULL OR m.expires > queue_clock()))
        OR EXISTS (SELECT FROM messages m WHERE m.queue_id = q.queue_id AND coalesce(m.receiver_id, 0) = 0
                   AND m.state = 0 AND (m.expires IS NULL OR m.expires > queue_clock())))
    ORDER BY q.queue_id LIMIT p_limit
$$;

CREATE FUNCTION configure_queue(p_queue_id integer, p_lease_ms bigint, p_max_deliveries integer, p_dead_letter_id integer)
RETURNS SETOF queues LANGUAGE sql AS $$
    UPDATE queues SET lease_ms = p_lease_ms, max_deliveries = p_max_deliveries, dead_letter_id = p_dead_letter_id
    WHERE queue_id = p_queue_id RETURNING *
$$;

-- A message as the brokers read it. `request` says which of several merged takes it answers.
CREATE TYPE message_row AS (
    request integer,
    message_id bigint,
    queue_id integer,
    sender_id integer,
    receiver_id integer,
    context bigint,
    priority smallint,
    time_of_arrival bigint,
    message bytea,
    state smallint,
    delivery integer,
    key bytea,
    attributes bytea,
    origin_queue_id integer
);

-- All messages of a queue, by pages: at most p_limit messages and p_bytes_max bytes, but at least one message.
CREATE FUNCTION get_messages_from_queue(p_queue_id integer, p_after bigint DEFAULT 0, p_limit integer DEFAULT NULL,
                                        p_bytes_max bigint DEFAULT NULL)
RETURNS SETOF message_row LANGUAGE sql STABLE AS $$
    SELECT 0, message_id, queue_id, sender_id, receiver_id, context, priority, milliseconds(time_of_arrival), message,
           state, delivery, key, attributes, origin_queue_id
    FROM (
        SELECT page.*, sum(octet_length(message)) OVER (ORDER BY message_id) AS total, row_number() OVER (ORDER BY message_id) AS place
        FROM (
            SELECT * FROM messages WHERE queue_id = p_queue_id AND message_id > p_after
            AND (state = 2 OR expires IS NULL OR expires > queue_clock())
            ORDER BY message_id LIMIT p_limit
        ) page
    ) summed
    WHERE place = 1 OR p_bytes_max IS NULL OR total <= p_bytes_max
    ORDER BY message_id
$$;

CREATE FUNCTION queue_depth(p_queue_id integer, OUT waiting bigint, OUT scheduled bigint, OUT leased bigint, OUT oldest_age_ms bigint)
LANGUAGE sql STABLE AS $$
    SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
           milliseconds(queue_clock()) - milliseconds(min(time_of_arrival) FILTER (WHERE state = 0))
    FROM messages WHERE queue_id = p_queue_id
$$;
