-- A registration may be repeated: the answer to the first one may have been lost.

ALTER TABLE clients ADD COLUMN client_key bytea;

DROP FUNCTION request_id(varchar, smallint);

-- With the key of the client that has the name, return that client. Else a name that is taken is a unique_violation.
CREATE FUNCTION request_id(p_client_name varchar, p_mode smallint, p_key bytea DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    found_id integer;
BEGIN
    INSERT INTO clients (client_name, client_mode, client_key) VALUES (p_client_name, p_mode, p_key)
        RETURNING client_id INTO found_id;
    RETURN found_id;
EXCEPTION WHEN unique_violation THEN
    SELECT client_id INTO found_id FROM clients WHERE client_name = p_client_name AND client_key = p_key;
    IF found_id IS NULL THEN
        RAISE;
    END IF;
    RETURN found_id;
END
$$;
