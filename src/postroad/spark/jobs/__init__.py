"""The jobs of the data pipeline: functions from DataFrames to DataFrames, with `postroad pipeline` on top.

`docs/internals/pipeline.md` is the theory; `docs/reference/pipeline.md` has every column.
"""
