"""Congestion control in a reliable scalable message-oriented middleware (Pietzuch and Bhola)."""
