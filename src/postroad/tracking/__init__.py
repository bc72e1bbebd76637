"""Message tracking: who sent a message, which brokers routed it, who received it. `docs/internals/tracking.md` is the theory."""
