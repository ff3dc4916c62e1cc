"""What a center gives away of its data, and how little of it.

`masking` hides an update inside a sum (docs/guides/secure-aggregation.md). The rest is the arithmetic of
differential privacy, which knows no network: the table [privacy] (`spec`), the accountant (`accounting`),
what a center has spent (`ledger`), and noise that nobody can repeat (`secret`). What is done to gradients is
in `engines/eager/private.py`. docs/guides/differential-privacy.md says what the guarantee covers.
"""

from fedmt.privacy.accounting import Cost
from fedmt.privacy.ledger import Ledger, Overspent
from fedmt.privacy.spec import PrivacySpec

__all__ = ["Cost", "Ledger", "Overspent", "PrivacySpec"]
