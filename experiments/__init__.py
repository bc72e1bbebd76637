"""The figures and tables of the papers, made again with this code: `python -m experiments.run`."""
