-- The embedded twin of sql/0005_order_of_ids.sql.

DROP INDEX messages_by_priority;
DROP INDEX messages_by_priority_and_sender;
DROP INDEX messages_by_time;
DROP INDEX messages_by_time_and_sender;
DROP INDEX messages_by_context;

CREATE INDEX messages_by_priority ON messages
    (queue_id, coalesce(receiver_id, 0), priority DESC, message_id) WHERE state = 0;
CREATE INDEX messages_by_priority_and_sender ON messages
    (queue_id, coalesce(receiver_id, 0), sender_id, priority DESC, message_id) WHERE state = 0;
CREATE INDEX messages_by_time ON messages
    (queue_id, coalesce(receiver_id, 0), message_id) WHERE state = 0;
CREATE INDEX messages_by_time_and_sender ON messages
    (queue_id, coalesce(receiver_id, 0), sender_id, message_id) WHERE state = 0;
CREATE INDEX messages_by_context ON messages
    (queue_id, coalesce(receiver_id, 0), context, message_id) WHERE state = 0 AND context IS NOT NULL;
