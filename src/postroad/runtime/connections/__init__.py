"""The connections of a broker: who may connect, who is there, and the links to other brokers."""
