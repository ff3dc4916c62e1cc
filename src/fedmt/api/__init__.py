"""The Python interface: `fedmt.train` on a federation in memory, and its `Result` (docs/guides/python.md).

options.py   keyword arguments to the config that `fedmt run` would read
training.py  `train`: the same path as `fedmt run`, with its progress
result.py    `Result`: a run folder as an object
"""
