"""The distributed engine: the same methods over Flower, between machines (docs/deployment.md).

The coordinating site, where the reference center is, runs a SuperLink and in it `server:app`; each center
runs a SuperNode and in it `center:app`. Transport, TLS and authentication are Flower's.

    wire.py         tensors and facts as Flower's records
    plan.py         what the coordinator tells the centers of a run
    center.py       the ClientApp: what a center answers
    settings.py     a center's own file, center.toml
    memory.py       what a center keeps, on its own disk
    server.py       the ServerApp
    coordinator.py  the engine: the local one's round, with centers that are elsewhere
    roll.py         which node is which center; asking them, and waiting
    keys.py         a throw-away authority and keys, to try it
    processes.py    a whole deployment on one machine, for the demo, the tests and the benchmark

Nothing is imported here: a center's process starts anew for every message.
"""
