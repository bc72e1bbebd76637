"""Commands for those who run brokers."""
