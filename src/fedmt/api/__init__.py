"""The door for Python: `fedmt.train` on a federation in memory, and the `Result` it gives (docs/python.md).

options.py   keyword arguments to the config that `fedmt run` would read
training.py  `train`: the same path as `fedmt run`, with its progress
result.py    `Result`: a run folder as an object
"""
