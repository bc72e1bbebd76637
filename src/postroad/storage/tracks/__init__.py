"""Tracks on disk: histories and the records beside them, as Parquet files that plain Spark reads."""
