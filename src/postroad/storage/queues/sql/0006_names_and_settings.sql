-- A queue is created with its settings in one step; a client is found by its name.

DROP FUNCTION create_queue(varchar);

CREATE FUNCTION create_queue(p_queue_name varchar, p_lease_ms bigint DEFAULT 30000, p_max_deliveries integer DEFAULT 0,
                             p_dead_letter_id integer DEFAULT NULL)
RETURNS SETOF queues LANGUAGE sql AS $$
    INSERT INTO queues (queue_name, lease_ms, max_deliveries, dead_letter_id)
        VALUES (p_queue_name, p_lease_ms, p_max_deliveries, p_dead_letter_id) RETURNING *
$$;

CREATE FUNCTION find_client(p_client_name varchar) RETURNS SETOF clients LANGUAGE sql STABLE AS $$
    SELECT * FROM clients WHERE client_name = p_client_name
$$;
