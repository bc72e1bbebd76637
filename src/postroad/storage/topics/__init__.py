"""Where the topics service keeps its state: SQLite, or the in-memory twin of the simulator. Both behave alike.

`commit(rows)` is one transaction: all of it is durable when the call returns, or none of it is.
"""
