"""Audits over time: what earlier ones decided, kept in a table, so that the next one continues behind it."""
