-- Message manipulation of Table 3.5, the batches the brokers call, and leases.

-- PL/pgSQL wherever a function is called for each batch: it keeps its plans, where a function in plain SQL is planned at each call.

-- The server sends equal notifications of one transaction once.
CREATE FUNCTION notify_waiting(p_broker integer, p_queue_ids integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('postroad_' || current_schema(), queue_id::text) FROM waiting
        WHERE queue_id = ANY (p_queue_ids) AND broker <> p_broker AND until > queue_clock();
END
$$;

-- Many messages in one call. p_queues: the distinct queues in ascending order (locks are taken in that order). p_visible: those in
-- which something becomes visible. p_keys is NULL when no message has a key. p_lease_to: the client a message is handed to at once.
-- A NULL in message_ids: that queue does not exist.
CREATE FUNCTION put_batch(p_broker integer, p_queues integer[], p_visible integer[], p_queue_ids integer[], p_senders integer[], p_receivers integer[],
                          p_contexts bigint[], p_priorities smallint[], p_delays bigint[], p_ttls bigint[], p_keys bytea[],
                          p_attributes bytea[], p_messages bytea[], p_lease_to integer[], p_lease_ms bigint[],
                          OUT message_ids bigint[], OUT duplicates boolean[], OUT arrived bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_found integer[];
    v_ids bigint[];
    v_queue integer;
BEGIN
    FOREACH v_queue IN ARRAY p_queues LOOP
        PERFORM pg_advisory_xact_lock_shared(lock_space(), v_queue);
    END LOOP;
    v_found := ARRAY(SELECT queue_id FROM queues WHERE queue_id = ANY (p_queues));
    v_ids := ARRAY(SELECT nextval('messages_message_id_seq') FROM generate_series(1, cardinality(p_queue_ids)));
    IF p_keys IS NOT NULL THEN
        INSERT INTO keys (queue_id, sender_id, key, message_id, put_at)
            SELECT queue_id, sender_id, key, message_id, queue_clock()
            FROM unnest(p_queue_ids, p_senders, p_keys, v_ids) AS u (queue_id, sender_id, key, message_id)
            WHERE key IS NOT NULL AND queue_id = ANY (v_found)
            ORDER BY queue_id, sender_id, key, message_id
            ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO messages (message_id, queue_id, sender_id, receiver_id, context, priority, time_of_arrival, message, state, delivery,
                          leased_by, due, expires, key, attributes)
        SELECT u.message_id, u.queue_id, u.sender_id, u.receiver_id, u.context, u.priority, queue_clock(), u.message,
               CASE WHEN u.lease_to IS NOT NULL THEN 2 WHEN u.delay > 0 THEN 1 ELSE 0 END, (u.lease_to IS NOT NULL)::integer, u.lease_to,
               CASE WHEN u.lease_to IS NOT NULL
                    THEN later(coalesce(u.lease_ms, (SELECT q.lease_ms FROM queues q WHERE q.queue_id = u.queue_id)))
                    WHEN u.delay > 0 THEN later(u.delay) END,
               later(u.ttl), u.key, u.attributes
        FROM unnest(v_ids, p_queue_ids, p_senders, p_receivers, p_contexts, p_priorities, p_delays, p_ttls, p_keys, p_attributes,
                    p_messages, p_lease_to, p_lease_ms)
            AS u (message_id, queue_id, sender_id, receiver_id, context, priority, delay, ttl, key, attributes, message, lease_to, lease_ms)
        WHERE u.queue_id = ANY (v_found) AND (u.key IS NULL OR EXISTS (
            SELECT FROM keys k WHERE k.queue_id = u.queue_id AND k.sender_id = u.sender_id AND k.key = u.key AND k.message_id = u.message_id));
    IF p_keys IS NULL AND cardinality(v_found) = cardinality(p_queues) THEN
        message_ids := v_ids;
    ELSE
        SELECT array_agg(CASE WHEN u.queue_id = ANY (v_found) THEN coalesce(k.message_id, u.message_id) END ORDER BY u.place),
               array_agg(coalesce(k.message_id <> u.message_id, false) ORDER BY u.place)
        INTO message_ids, duplicates
        FROM unnest(p_queue_ids, p_senders, p_keys, v_ids) WITH ORDINALITY AS u (queue_id, sender_id, key, message_id, place)
        LEFT JOIN keys k ON k.queue_id = u.queue_id AND k.sender_id = u.sender_id AND k.key = u.key;
    END IF;
    arrived := milliseconds(queue_clock());
    PERFORM notify_waiting(p_broker, p_visible);
END
$$;

CREATE FUNCTION put_messages(p_queue_ids integer[], p_sender_id integer, p_receiver_id integer, p_context bigint, p_priority smallint,
                             p_message bytea)
RETURNS integer[] LANGUAGE sql AS $$
    SELECT ARRAY(
        SELECT wanted.queue_id
        FROM put_batch(0, ARRAY(SELECT DISTINCT unnest(p_queue_ids) ORDER BY 1), p_queue_ids, p_queue_ids,
                       array_fill(p_sender_id, ARRAY[cardinality(p_queue_ids)]), array_fill(p_receiver_id, ARRAY[cardinality(p_queue_ids)]),
                       array_fill(p_context, ARRAY[cardinality(p_queue_ids)]), array_fill(p_priority, ARRAY[cardinality(p_queue_ids)]),
                       array_fill(0::bigint, ARRAY[cardinality(p_queue_ids)]), array_fill(NULL::bigint, ARRAY[cardinality(p_queue_ids)]),
                       NULL, array_fill(NULL::bytea, ARRAY[cardinality(p_queue_ids)]),
                       array_fill(p_message, ARRAY[cardinality(p_queue_ids)]), NULL, NULL) AS put,
             unnest(p_queue_ids, put.message_ids) AS wanted (queue_id, message_id)
        WHERE wanted.message_id IS NOT NULL)
$$;

CREATE FUNCTION put_message(p_queue_id integer, p_sender_id integer, p_receiver_id integer, p_context bigint, p_priority smallint,
                            p_message bytea)
RETURNS integer LANGUAGE sql AS $$
    SELECT (put_messages(ARRAY[p_queue_id], p_sender_id, p_receiver_id, p_context, p_priority, p_message))[1]
$$;

-- A take for client c reads messages for c and messages for anybody (receiver 0), in one order. Each of the statements below reads
-- one table by one index in the index's own order and stops after p_limit rows; none depends on a planner's estimate.
-- p_mode: 1 by priority, 2 by time.

-- Waiting messages of one receiver, locked. Rows another taker has locked are skipped, not waited for.
CREATE FUNCTION lock_waiting(p_queue_id integer, p_receiver_id integer, p_mode smallint, p_sender_id integer, p_limit integer)
RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
    IF p_mode = 1 AND p_sender_id IS NULL THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.priority DESC, m.time_of_arrival, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSIF p_mode = 1 THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.priority DESC, m.time_of_arrival, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSIF p_sender_id IS NULL THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.time_of_arrival, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSE
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.time_of_arrival, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    END IF;
END
$$;

-- The same rows, only looked at.
CREATE FUNCTION peek_waiting(p_queue_id integer, p_receiver_id integer, p_mode smallint, p_sender_id integer, p_limit integer)
RETURNS TABLE (row_tid tid, priority smallint, time_of_arrival timestamptz, message_id bigint) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_mode = 1 AND p_sender_id IS NULL THEN
        RETURN QUERY
            SELECT m.ctid, m.priority, m.time_of_arrival, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.priority DESC, m.time_of_arrival, m.message_id LIMIT p_limit;
    ELSIF p_mode = 1 THEN
        RETURN QUERY
            SELECT m.ctid, m.priority, m.time_of_arrival, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.priority DESC, m.time_of_arrival, m.message_id LIMIT p_limit;
    ELSIF p_sender_id IS NULL THEN
        RETURN QUERY
            SELECT m.ctid, m.priority, m.time_of_arrival, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.time_of_arrival, m.message_id LIMIT p_limit;
    ELSE
        RETURN QUERY
            SELECT m.ctid, m.priority, m.time_of_arrival, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.time_of_arrival, m.message_id LIMIT p_limit;
    END IF;
END
$$;

-- Messages for the client and for anybody, merged and locked one by one in reading order, so that exactly the rows that are
-- handed out are locked. Candidates that another taker gets first are passed over; when all are, one receiver at a time will do.
CREATE FUNCTION lock_merged(p_queue_id integer, p_client_id integer, p_mode smallint, p_sender_id integer, p_limit integer)
RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    v_candidates tid[];
    v_candidate tid;
    v_locked tid;
    v_tids tid[] := ARRAY[]::tid[];
BEGIN
    SELECT array_agg(c.row_tid ORDER BY CASE p_mode WHEN 1 THEN -c.priority END, c.time_of_arrival, c.message_id) INTO v_candidates
    FROM (
        SELECT * FROM peek_waiting(p_queue_id, p_client_id, p_mode, p_sender_id, p_limit)
        UNION ALL
        SELECT * FROM peek_waiting(p_queue_id, 0, p_mode, p_sender_id, p_limit)
    ) c;
    FOREACH v_candidate IN ARRAY coalesce(v_candidates, ARRAY[]::tid[]) LOOP
        SELECT ctid INTO v_locked FROM messages WHERE ctid = v_candidate AND state = 0 FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            v_tids := v_tids || v_locked;
            EXIT WHEN cardinality(v_tids) = p_limit;
        END IF;
    END LOOP;
    IF cardinality(v_tids) = 0 THEN
        v_tids := lock_waiting(p_queue_id, p_client_id, p_mode, p_sender_id, p_limit);
    END IF;
    IF cardinality(v_tids) = 0 THEN
        v_tids := lock_waiting(p_queue_id, 0, p_mode, p_sender_id, p_limit);
    END IF;
    RETURN v_tids;
END
$$;

-- The rows a take gets, locked. Most clients have no messages of their own: then one scan is all.
CREATE FUNCTION lock_for_take(p_queue_id integer, p_client_id integer, p_mode smallint, p_sender_id integer, p_context bigint, p_limit integer)
RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
    IF p_context IS NOT NULL THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_client_id AND m.context = p_context AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.time_of_arrival, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSIF EXISTS (SELECT FROM messages m WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_client_id AND m.state = 0) THEN
        RETURN lock_merged(p_queue_id, p_client_id, p_mode, p_sender_id, p_limit);
    ELSE
        RETURN lock_waiting(p_queue_id, 0, p_mode, p_sender_id, p_limit);
    END IF;
END
$$;

-- The first of the locked rows whose payloads fit, at least one.
CREATE FUNCTION within_bytes(p_tids tid[], p_bytes_max bigint) RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT sum(octet_length(message)) FROM messages WHERE ctid = ANY (p_tids)) <= p_bytes_max THEN
        RETURN p_tids;
    END IF;
    RETURN (
        SELECT array_agg(row_tid ORDER BY place) FROM (
            SELECT u.row_tid, u.place, sum(octet_length(m.message)) OVER (ORDER BY u.place) AS total
            FROM unnest(p_tids) WITH ORDINALITY AS u (row_tid, place) JOIN messages m ON m.ctid = u.row_tid
        ) summed WHERE place = 1 OR total <= p_bytes_max);
END
$$;

-- One take. A lease of 0 deletes (the report's read); NULL means the queue's own.
CREATE FUNCTION take(p_request integer, p_queue_id integer, p_client_id integer, p_mode smallint, p_sender_id integer, p_context bigint,
                     p_limit integer, p_lease_ms bigint, p_bytes_max bigint)
RETURNS SETOF message_row LANGUAGE plpgsql AS $$
DECLARE
    v_tids tid[];
    v_lease_ms bigint := p_lease_ms;
BEGIN
    IF v_lease_ms IS NULL THEN
        SELECT lease_ms INTO v_lease_ms FROM queues WHERE queue_id = p_queue_id;
    END IF;
    v_tids := lock_for_take(p_queue_id, p_client_id, p_mode, p_sender_id, p_context, p_limit);
    IF cardinality(v_tids) = 0 THEN
        IF NOT EXISTS (SELECT FROM queues WHERE queue_id = p_queue_id) THEN
            RETURN QUERY SELECT p_request, NULL::bigint, p_queue_id, 0, 0, 0::bigint, 0::smallint, 0::bigint, NULL::bytea, 0::smallint, 0,
                                NULL::bytea, NULL::bytea, 0;
        END IF;
        RETURN;
    END IF;
    IF cardinality(v_tids) > 1 THEN
        v_tids := within_bytes(v_tids, p_bytes_max);
    END IF;
    IF v_lease_ms > 0 THEN
        RETURN QUERY
            UPDATE messages m SET state = 2, delivery = m.delivery + 1, leased_by = p_client_id, due = later(v_lease_ms)
            WHERE m.ctid = ANY (v_tids)
            RETURNING p_request, m.message_id, m.queue_id, m.sender_id, m.receiver_id, m.context, m.priority,
                      milliseconds(m.time_of_arrival), m.message, m.state, m.delivery, m.key, m.attributes, m.origin_queue_id;
    ELSE
        RETURN QUERY
            DELETE FROM messages m WHERE m.ctid = ANY (v_tids)
            RETURNING p_request, m.message_id, m.queue_id, m.sender_id, m.receiver_id, m.context, m.priority,
                      milliseconds(m.time_of_arrival), m.message, 2::smallint, m.delivery + 1, m.key, m.attributes, m.origin_queue_id;
    END IF;
END
$$;

-- Several takes of one broker in one transaction.
CREATE FUNCTION take_batch(p_queue_ids integer[], p_client_ids integer[], p_modes smallint[], p_senders integer[], p_contexts bigint[],
                           p_limits integer[], p_leases bigint[], p_bytes_max bigint[])
RETURNS SETOF message_row LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_queue_ids) LOOP
        RETURN QUERY SELECT * FROM take(i, p_queue_ids[i], p_client_ids[i], p_modes[i], p_senders[i], p_contexts[i], p_limits[i],
                                        p_leases[i], p_bytes_max[i]);
    END LOOP;
END
$$;

CREATE FUNCTION read_message_by_priority(p_queue_id integer, p_sender_id integer, p_receiver_id integer)
RETURNS SETOF message_row LANGUAGE sql AS $$
    SELECT * FROM take(0, p_queue_id, p_receiver_id, 1::smallint, p_sender_id, NULL, 1, 0, 0) WHERE message_id IS NOT NULL
$$;

CREATE FUNCTION read_message_by_timestamp(p_queue_id integer, p_sender_id integer, p_receiver_id integer)
RETURNS SETOF message_row LANGUAGE sql AS $$
    SELECT * FROM take(0, p_queue_id, p_receiver_id, 2::smallint, p_sender_id, NULL, 1, 0, 0) WHERE message_id IS NOT NULL
$$;

CREATE FUNCTION read_response_message(p_queue_id integer, p_receiver_id integer, p_context bigint)
RETURNS SETOF message_row LANGUAGE sql AS $$
    SELECT * FROM take(0, p_queue_id, p_receiver_id, 2::smallint, NULL, p_context, 1, 0, 0) WHERE message_id IS NOT NULL
$$;

-- What became of leases: 1 held (in p_held), 2 absent, 3 lost.
CREATE FUNCTION lease_status(p_queue_ids integer[], p_message_ids bigint[], p_held bigint[]) RETURNS smallint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT array_agg((CASE
        WHEN u.message_id = ANY (p_held) THEN 1
        WHEN EXISTS (SELECT FROM messages m WHERE m.queue_id = u.queue_id AND m.message_id = u.message_id)
          OR EXISTS (SELECT FROM messages m JOIN queues q ON m.queue_id = q.dead_letter_id
                     WHERE q.queue_id = u.queue_id AND m.message_id = u.message_id) THEN 3
        ELSE 2 END)::smallint ORDER BY u.place)
    FROM unnest(p_queue_ids, p_message_ids) WITH ORDINALITY AS u (queue_id, message_id, place));
END
$$;

CREATE FUNCTION done_batch(p_queue_ids integer[], p_message_ids bigint[], p_deliveries integer[], p_clients integer[])
RETURNS smallint[] LANGUAGE plpgsql AS $$
DECLARE
    v_held bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM messages m
        USING unnest(p_queue_ids, p_message_ids, p_deliveries, p_clients) AS u (queue_id, message_id, delivery, client_id)
        WHERE m.queue_id = u.queue_id AND m.message_id = u.message_id AND m.state = 2 AND m.delivery = u.delivery
          AND m.leased_by = u.client_id
        RETURNING m.message_id
    ) SELECT array_agg(message_id) INTO v_held FROM gone;
    IF cardinality(v_held) = cardinality(p_message_ids) THEN
        RETURN array_fill(1::smallint, ARRAY[cardinality(p_message_ids)]);
    END IF;
    RETURN lease_status(p_queue_ids, p_message_ids, v_held);
END
$$;

CREATE FUNCTION extend_batch(p_queue_ids integer[], p_message_ids bigint[], p_deliveries integer[], p_clients integer[], p_lease_ms bigint)
RETURNS smallint[] LANGUAGE plpgsql AS $$
DECLARE
    v_held bigint[];
BEGIN
    WITH kept AS (
        UPDATE messages m SET due = later(p_lease_ms)
        FROM unnest(p_queue_ids, p_message_ids, p_deliveries, p_clients) AS u (queue_id, message_id, delivery, client_id)
        WHERE m.queue_id = u.queue_id AND m.message_id = u.message_id AND m.state = 2 AND m.delivery = u.delivery
          AND m.leased_by = u.client_id
        RETURNING m.message_id
    ) SELECT array_agg(message_id) INTO v_held FROM kept;
    RETURN lease_status(p_queue_ids, p_message_ids, v_held);
END
$$;

-- Give messages back: visible again, later, or dead when delivered often enough. p_spend: whether this delivery counts.
-- The dead-letter queues are locked against deletion first, so that no message moves into a queue that is going away.
CREATE FUNCTION give_back(p_broker integer, p_tids tid[], p_delay_ms bigint, p_spend boolean,
                          OUT queue_ids integer[], OUT dead integer, OUT message_ids bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM queues d
        WHERE d.queue_id IN (SELECT q.dead_letter_id FROM messages m JOIN queues q ON q.queue_id = m.queue_id WHERE m.ctid = ANY (p_tids))
        FOR KEY SHARE;
    WITH judged AS (
        SELECT m.ctid AS row_tid, m.queue_id AS origin, d.queue_id AS target,
               d.queue_id IS NOT NULL AND p_spend AND m.state = 2 AND q.max_deliveries > 0 AND m.delivery >= q.max_deliveries AS is_dead
        FROM messages m JOIN queues q ON q.queue_id = m.queue_id LEFT JOIN queues d ON d.queue_id = q.dead_letter_id
        WHERE m.ctid = ANY (p_tids)
    ), moved AS (
        UPDATE messages m SET
            leased_by = NULL,
            queue_id = CASE WHEN j.is_dead THEN j.target ELSE m.queue_id END,
            origin_queue_id = CASE WHEN j.is_dead THEN j.origin ELSE m.origin_queue_id END,
            expires = CASE WHEN j.is_dead THEN NULL ELSE m.expires END,
            state = CASE WHEN p_delay_ms > 0 AND NOT j.is_dead THEN 1 ELSE 0 END,
            due = CASE WHEN p_delay_ms > 0 AND NOT j.is_dead THEN later(p_delay_ms) END
        FROM judged j WHERE m.ctid = j.row_tid
        RETURNING m.message_id, m.queue_id, j.is_dead
    ) SELECT array_agg(m.queue_id), count(*) FILTER (WHERE m.is_dead), array_agg(m.message_id)
      INTO queue_ids, dead, message_ids FROM moved m;
    PERFORM notify_waiting(p_broker, queue_ids);
END
$$;

CREATE FUNCTION release_batch(p_broker integer, p_queue_ids integer[], p_message_ids bigint[], p_deliveries integer[], p_clients integer[],
                              p_delay_ms bigint, p_undelivered boolean)
RETURNS smallint[] LANGUAGE plpgsql AS $$
DECLARE
    v_tids tid[];
    v_held bigint[];
BEGIN
    v_tids := ARRAY(
        SELECT m.ctid FROM unnest(p_queue_ids, p_message_ids, p_deliveries, p_clients) AS u (queue_id, message_id, delivery, client_id)
        JOIN messages m ON m.queue_id = u.queue_id AND m.message_id = u.message_id
        WHERE m.state = 2 AND m.delivery = u.delivery AND m.leased_by = u.client_id FOR UPDATE OF m);
    SELECT message_ids INTO v_held FROM give_back(p_broker, v_tids, p_delay_ms, NOT p_undelivered);
    RETURN lease_status(p_queue_ids, p_message_ids, v_held);
END
$$;
