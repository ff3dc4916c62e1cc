"""The distributed engine: the same methods over Flower, between machines (docs/guides/deployment.md).

The coordinating site, where the reference center is, runs a SuperLink and in it `server:app`; each center
runs a SuperNode and in it `center:app`. Transport, TLS and authentication are Flower's.

    wire.py         tensors and facts as Flower's records
    plan.py         what the coordinator tells the centers of a run
    center.py       the ClientApp: what a center answers
    task.py         a message, and the center that is to answer it
    settings.py     a center's own file, center.toml
    beforehand.py   what a center can check before a coordinator asks: `fedmt check center.toml`
    allowing.py     what a plan may name at a center
    memory.py       what a center keeps, on its own disk
    server.py       the ServerApp
    coordinator.py  the engine: the local engine's round, with centers on other machines
    summed.py       the same engine with secure aggregation, where it learns only sums
    masked.py       a center's side of it
    roll.py         which node is which center; asking them, and waiting
    arriving.py     how long to wait for the rest of an answer
    identity.py     who a node is, by its key, and whether an answer is its own
    checking.py     whether a center is what the config says
    answers.py      what a center's answer contains, checked before it counts
    trail.py        what is exchanged, in the audit log of each side
    keys.py         fingerprints and signatures; a throwaway authority and keys, for trials
    node.py         starts a SuperNode that runs only fedmt, unless center.toml or the clock is wrong
    supernode.py    Flower's SuperNode in a process that ends with its connection
    clientapp.py    the program that it starts for each message, a relay to a process that stays
    resident.py     that process
    conversation.py what is said about a message between a SuperNode and a center's process
    processes.py    a whole deployment on one machine, for the demo, the tests and the benchmark

Nothing is imported here, because the relay is started again for every message.
"""
