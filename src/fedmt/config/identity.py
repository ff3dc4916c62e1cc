"""Which key each center of a run between machines must have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fedmt.config.schema import Config
from fedmt.core.errors import FedmtError, listed

HOW = "`ssh-keygen -lf berlin.pub` prints it"


def center_keys(config: Config, names: Collection[str]) -> dict[str, str]:
    """The fingerprint of each center's public key. Empty if the config allows any node to use any name.

    names: the names of all centers, including those of a benchmark, which has no place for keys.
    """
    where, keys = config._where, {c.name: c.key for c in config.centers if c.key is not None}
    insecure = config.deployment is not None and config.deployment.insecure
    if insecure and keys:
        raise FedmtError(
            f"{where}: deployment.insecure = true lets any node use any name, but {listed(keys)} "
            f"{('has a key' if len(keys) == 1 else 'have keys')}; keep only one of the two."
        )
    missing = [name for name in names if name not in keys]
    if missing and not insecure:
        raise FedmtError(
            f"{where}: no key binds the name of {listed(missing)}. Give each of [[centers]] the fingerprint "
            f'of its public key, key = "SHA256:…" ({HOW}). To let any node use any name, as in a trial on '
            "one machine, write insecure = true under [deployment]."
        )
    twice = [key for key, count in Counter(keys.values()).items() if count > 1]
    if twice:
        owners = listed(name for name, key in keys.items() if key in twice)
        raise FedmtError(f"{where}: {owners} have the same key; every center needs its own key.")
    return keys
