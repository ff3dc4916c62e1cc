"""What a center reveals about its data, and how to limit it.

`masking` hides an update inside a sum (docs/guides/secure-aggregation.md). The rest is the arithmetic of
differential privacy, which does not depend on a network: the table [privacy] (`spec`), the accountant
(`accounting`), what a center has spent (`ledger`), and noise that nobody can repeat (`secret`). Gradients are
clipped and noised in `engines/eager/private.py`. docs/guides/differential-privacy.md explains what the
guarantee covers.
"""

from fedmt.privacy.accounting import Cost
from fedmt.privacy.ledger import Ledger, Overspent
from fedmt.privacy.spec import PrivacySpec

__all__ = ["Cost", "Ledger", "Overspent", "PrivacySpec"]
