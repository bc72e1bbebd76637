-- The embedded twin of sql/0007_keys_of_clients.sql.

ALTER TABLE clients ADD COLUMN client_key BLOB;
