"""Secure aggregation: the coordinator learns the sum of the updates and nothing about a single update.

    fixed_point.py  an update as integers, and the sum of such integers as a mean
    masks.py        random vectors from a seed, and seeds from a key that two centers share
    agreement.py    the key pairs of a run, signed, and which of them a center trusts
    statements.py   what the coordinator asks, as bytes
    center.py       a center's side: it masks once, and reveals once
    coordinator.py  the coordinator's side of one sum

It is the protocol of Bonawitz et al. (2017) with one change. The masks of a center that vanishes are removed
with the pairwise seeds of the others, not with its own key. Keys therefore last for a whole run, and a round
has two messages.

    x_i                         an update, as integers modulo 2^32
    b_i                         a random seed, new for every sum, shared among the centers by Shamir's scheme
    s_ij                        HKDF(X25519 key of i and j; run, round, purpose, session)
    y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)          the first message
    for each center j: a share of b_j if y_j arrived, or else s_ij                 the second message

Nothing here knows torch, Flower, files or sockets. docs/guides/secure-aggregation.md has the threat model.
"""
