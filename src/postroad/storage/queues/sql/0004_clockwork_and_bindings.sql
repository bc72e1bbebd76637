-- What happens by time, who waits where, and queues bound to the overlay.

-- Move what is due, in bounded steps. next_due_ms counts from now; NULL: nothing is scheduled, leased or ending.
CREATE FUNCTION promote(p_broker integer, p_rows_max integer,
                        OUT queue_ids integer[], OUT dead integer, OUT expired integer, OUT next_due_ms bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_tids tid[];
BEGIN
    dead := 0;
    v_tids := ARRAY(SELECT ctid FROM messages WHERE state <> 0 AND due <= queue_clock() ORDER BY due LIMIT p_rows_max FOR UPDATE SKIP LOCKED);
    IF cardinality(v_tids) > 0 THEN
        SELECT g.queue_ids, g.dead INTO queue_ids, dead FROM give_back(p_broker, v_tids, 0, true) g;
    END IF;
    WITH gone AS (
        DELETE FROM messages WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM messages WHERE expires <= queue_clock() AND expires IS NOT NULL AND state <> 2
            ORDER BY expires LIMIT p_rows_max FOR UPDATE SKIP LOCKED))
        RETURNING 1
    ) SELECT count(*) INTO expired FROM gone;
    SELECT least((SELECT milliseconds(due) FROM messages WHERE state <> 0 ORDER BY due LIMIT 1),
                 (SELECT milliseconds(expires) FROM messages WHERE expires IS NOT NULL AND state <> 2 ORDER BY expires LIMIT 1))
           - milliseconds(queue_clock())
    INTO next_due_ms;
END
$$;

CREATE FUNCTION forget_keys(p_older_than_ms bigint, p_rows_max integer) RETURNS integer LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM keys WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM keys WHERE put_at < later(-p_older_than_ms) ORDER BY put_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED))
        RETURNING 1
    ) SELECT count(*)::integer FROM gone
$$;

-- The exclusive lock waits for puts under way: they did not see this registration, and the caller's next take will see them.
CREATE FUNCTION watch_queue(p_broker integer, p_queue_id integer, p_for_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(lock_space(), p_queue_id);
    INSERT INTO waiting (queue_id, broker, until) VALUES (p_queue_id, p_broker, later(p_for_ms))
        ON CONFLICT (queue_id, broker) DO UPDATE SET until = excluded.until;
END
$$;

CREATE FUNCTION unwatch_queue(p_broker integer, p_queue_id integer) RETURNS void LANGUAGE sql AS $$
    DELETE FROM waiting WHERE broker = p_broker AND queue_id = p_queue_id
$$;

CREATE FUNCTION keep_watching(p_broker integer, p_for_ms bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE waiting SET until = later(p_for_ms) WHERE broker = p_broker;
    DELETE FROM waiting WHERE until < later(-p_for_ms)
$$;

CREATE FUNCTION bind_queue(p_queue_id integer, p_filter_text text, p_priority smallint) RETURNS SETOF bindings LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(lock_space(), p_queue_id);
    IF EXISTS (SELECT FROM queues WHERE queue_id = p_queue_id) THEN
        RETURN QUERY INSERT INTO bindings (queue_id, filter_text, priority) VALUES (p_queue_id, p_filter_text, p_priority) RETURNING *;
    END IF;
END
$$;

CREATE FUNCTION unbind(p_binding_id integer) RETURNS integer LANGUAGE sql AS $$
    DELETE FROM cursors WHERE binding_id = p_binding_id;
    DELETE FROM bindings WHERE binding_id = p_binding_id RETURNING binding_id
$$;

-- Become or stay the feeder of a binding. NULL: no such binding.
CREATE FUNCTION claim_binding(p_broker integer, p_binding_id integer, p_for_ms bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE bindings SET fed_by = p_broker, fed_until = later(p_for_ms)
        WHERE binding_id = p_binding_id AND (fed_by IS NULL OR fed_by = p_broker OR fed_until < queue_clock());
    IF FOUND THEN
        RETURN true;
    END IF;
    RETURN (SELECT false FROM bindings WHERE binding_id = p_binding_id);
END
$$;

-- Put the rows above the cursor and move it, as one change. Return how many messages were put; NULL: no such binding.
CREATE FUNCTION feed_binding(p_broker integer, p_binding_id integer, p_pubend bigint, p_upto bigint, p_ticks bigint[], p_keys bytea[],
                             p_messages bytea[], p_attributes bytea[])
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_binding bindings;
    v_cursor bigint;
    v_put integer := 0;
    v_n integer;
    v_keys bytea[];
    v_messages bytea[];
    v_attributes bytea[];
BEGIN
    SELECT * INTO v_binding FROM bindings WHERE binding_id = p_binding_id FOR SHARE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO cursors (binding_id, pubend, tick) VALUES (p_binding_id, p_pubend, -1) ON CONFLICT DO NOTHING;
    SELECT tick INTO v_cursor FROM cursors WHERE binding_id = p_binding_id AND pubend = p_pubend FOR UPDATE;
    SELECT count(*), array_agg(key ORDER BY tick), array_agg(message ORDER BY tick), array_agg(attributes ORDER BY tick)
        INTO v_n, v_keys, v_messages, v_attributes
        FROM unnest(p_ticks, p_keys, p_messages, p_attributes) AS u (tick, key, message, attributes)
        WHERE tick > v_cursor AND tick <= p_upto;
    IF v_n > 0 THEN
        SELECT count(*) INTO v_put FROM put_batch(
            p_broker, ARRAY[v_binding.queue_id], ARRAY[v_binding.queue_id], array_fill(v_binding.queue_id, ARRAY[v_n]), array_fill(0, ARRAY[v_n]),
            array_fill(NULL::integer, ARRAY[v_n]), array_fill(NULL::bigint, ARRAY[v_n]), array_fill(v_binding.priority, ARRAY[v_n]),
            array_fill(0::bigint, ARRAY[v_n]), array_fill(NULL::bigint, ARRAY[v_n]), v_keys, v_attributes, v_messages, NULL, NULL) AS put,
            unnest(put.duplicates) AS duplicate
        WHERE NOT duplicate;
    END IF;
    UPDATE cursors SET tick = greatest(tick, p_upto) WHERE binding_id = p_binding_id AND pubend = p_pubend;
    RETURN v_put;
END
$$;
