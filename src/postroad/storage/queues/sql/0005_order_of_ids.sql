-- Messages are read in the order of their ids, no longer by the clock: `time_of_arrival` is the start of the transaction, which may lie
-- before that of an earlier put, on another connection or after the clock was set back. Ids are given under the locks of a put.
-- The two indexes for any sender order by an expression (`+ 0`), so that the planner cannot take them where a sender is given: without
-- statistics it prefers the flatter index, and reads all messages to find those of one sender.

DROP INDEX messages_by_priority, messages_by_priority_and_sender, messages_by_time, messages_by_time_and_sender, messages_by_context;

CREATE INDEX messages_by_priority ON messages
    (queue_id, (coalesce(receiver_id, 0)), (priority + 0) DESC, message_id) WHERE state = 0;
CREATE INDEX messages_by_priority_and_sender ON messages
    (queue_id, (coalesce(receiver_id, 0)), sender_id, priority DESC, message_id) WHERE state = 0;
CREATE INDEX messages_by_time ON messages
    (queue_id, (coalesce(receiver_id, 0)), (message_id + 0)) WHERE state = 0;
CREATE INDEX messages_by_time_and_sender ON messages
    (queue_id, (coalesce(receiver_id, 0)), sender_id, message_id) WHERE state = 0;
CREATE INDEX messages_by_context ON messages
    (queue_id, (coalesce(receiver_id, 0)), context, message_id) WHERE state = 0 AND context IS NOT NULL;

DROP FUNCTION peek_waiting(integer, integer, smallint, integer, integer);

CREATE OR REPLACE FUNCTION lock_waiting(p_queue_id integer, p_receiver_id integer, p_mode smallint, p_sender_id integer, p_limit integer)
RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
    IF p_mode = 1 AND p_sender_id IS NULL THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY (m.priority + 0) DESC, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSIF p_mode = 1 THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.priority DESC, m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSIF p_sender_id IS NULL THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY (m.message_id + 0) LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSE
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    END IF;
END
$$;

CREATE FUNCTION peek_waiting(p_queue_id integer, p_receiver_id integer, p_mode smallint, p_sender_id integer, p_limit integer)
RETURNS TABLE (row_tid tid, priority smallint, message_id bigint) LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF p_mode = 1 AND p_sender_id IS NULL THEN
        RETURN QUERY
            SELECT m.ctid, m.priority, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY (m.priority + 0) DESC, m.message_id LIMIT p_limit;
    ELSIF p_mode = 1 THEN
        RETURN QUERY
            SELECT m.ctid, m.priority, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.priority DESC, m.message_id LIMIT p_limit;
    ELSIF p_sender_id IS NULL THEN
        RETURN QUERY
            SELECT m.ctid, m.priority, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY (m.message_id + 0) LIMIT p_limit;
    ELSE
        RETURN QUERY
            SELECT m.ctid, m.priority, m.message_id FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_receiver_id AND m.sender_id = p_sender_id AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.message_id LIMIT p_limit;
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION lock_merged(p_queue_id integer, p_client_id integer, p_mode smallint, p_sender_id integer, p_limit integer)
RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    v_candidates tid[];
    v_candidate tid;
    v_locked tid;
    v_tids tid[] := ARRAY[]::tid[];
BEGIN
    SELECT array_agg(c.row_tid ORDER BY CASE p_mode WHEN 1 THEN -c.priority END, c.message_id) INTO v_candidates
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

CREATE OR REPLACE FUNCTION lock_for_take(p_queue_id integer, p_client_id integer, p_mode smallint, p_sender_id integer, p_context bigint, p_limit integer)
RETURNS tid[] LANGUAGE plpgsql AS $$
BEGIN
    IF p_context IS NOT NULL THEN
        RETURN ARRAY(
            SELECT m.ctid FROM messages m
            WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_client_id AND m.context = p_context AND m.state = 0
              AND (m.expires IS NULL OR m.expires > queue_clock())
            ORDER BY m.message_id LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
    ELSIF EXISTS (SELECT FROM messages m WHERE m.queue_id = p_queue_id AND coalesce(m.receiver_id, 0) = p_client_id AND m.state = 0) THEN
        RETURN lock_merged(p_queue_id, p_client_id, p_mode, p_sender_id, p_limit);
    ELSE
        RETURN lock_waiting(p_queue_id, 0, p_mode, p_sender_id, p_limit);
    END IF;
END
$$;
