"""Center and Federation: who has which images, labelled in which space.

Training sees a center through this class alone. `truth`, the wanted labels of a center's images,
exists only where a benchmark was split from a fully labelled set; methods never read it, it
measures the quality of pseudo-labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmt.errors import FedmtError, listed
from fedmt.labels import Correspondence, LabelSpace


@dataclass(frozen=True, eq=False)
class Center:
    """One center's images and labels.

    images: uint8 [N, channels, height, width], channels 1 or 3.
    labels: int64 [N], positions in `space`; None for a center that has no labels at all.
    correspondence: between `space` and the wanted space; None where it is not known.
    truth: int64 [N], positions in the wanted space, where a benchmark knows them.
    remote: its data are on another machine, and one blank image stands for them here.
    """

    name: str
    images: Tensor
    space: LabelSpace | None = None
    labels: Tensor | None = None
    correspondence: Correspondence | None = None
    truth: Tensor | None = None
    remote: bool = False

    def __post_init__(self) -> None:
        where = f"Center '{self.name}'"
        if self.images.dtype != torch.uint8 or self.images.dim() != 4 or self.images.shape[1] not in (1, 3):
            raise FedmtError(
                f"{where}: images must be uint8 [N, 1 or 3, height, width], "
                f"got {self.images.dtype} {tuple(self.images.shape)}."
            )
        if len(self.images) == 0:
            raise FedmtError(f"{where} is empty: it has no images. Give it data or leave it out.")
        if (self.labels is None) != (self.space is None):
            raise FedmtError(f"{where}: labels and label space go together; give both or neither.")
        for name, labels in (("labels", self.labels), ("truth", self.truth)):
            if labels is not None and labels.shape != (len(self.images),):
                raise FedmtError(
                    f"{where}: {len(self.images)} images but {name} of shape {tuple(labels.shape)}."
                )
        if self.labels is not None and self.space is not None:
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < 0 or high >= len(self.space):
                raise FedmtError(
                    f"{where}: label {low if low < 0 else high} is outside label space "
                    f"'{self.space.name}', which has {len(self.space)} classes (0 to {len(self.space) - 1})."
                )
        if self.correspondence is not None:
            self._check_correspondence(where)

    def _check_correspondence(self, where: str) -> None:
        assert self.correspondence is not None
        if self.labels is None or self.space is None:
            raise FedmtError(f"{where} has a correspondence but no labels; remove one or add the other.")
        if self.correspondence.coarse != self.space:
            raise FedmtError(
                f"{where} labels in '{self.space.name}', but its correspondence is for "
                f"'{self.correspondence.coarse.name}'."
            )
        # Such a label has probability 0 under every prediction: an infinite loss, so an error here.
        impossible = self.correspondence.matrix.sum(1) == 0
        occurring = torch.zeros(len(self.space), dtype=torch.bool)
        occurring[self.labels.cpu().unique()] = True
        bad = [self.space.classes[int(j)] for j in (impossible & occurring).nonzero().flatten()]
        if bad:
            raise FedmtError(
                f"{where}: its data has the label {listed(bad)}, but no class of "
                f"'{self.correspondence.fine.name}' corresponds to it; correct the correspondence or "
                "the data."
            )

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Federation:
    """A reference center, the centers beside it, and the test sets (one for each space to test in).

    held_out: images of the reference center that are not trained on, to calibrate with.
    """

    wanted: LabelSpace
    reference: Center
    centers: tuple[Center, ...]
    tests: tuple[Center, ...] = ()
    held_out: Center | None = None

    def __post_init__(self) -> None:
        # One fixed order, so that neither the config's order nor arrival changes a sum.
        ordered = sorted(map(self._with_identity, self.centers), key=lambda c: c.name)
        object.__setattr__(self, "centers", tuple(ordered))
        names = [self.reference.name, *(c.name for c in self.centers)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise FedmtError(f"Center names must differ: {listed(twice)} occurs more than once.")
        if self.reference.space != self.wanted:
            own = self.reference.space.name if self.reference.space else "no space"
            raise FedmtError(
                f"The reference center '{self.reference.name}' must label in the wanted space "
                f"'{self.wanted.name}', but labels in {own}."
            )
        shape = self.reference.images.shape[1:]
        for center in (*self.centers, *self.tests):
            if center.images.shape[1:] != shape:
                raise FedmtError(
                    f"Center '{center.name}' has images of shape {tuple(center.images.shape[1:])}, the "
                    f"reference center {tuple(shape)}; set images.size and images.channels so that all agree."
                )
            if center.correspondence is not None and center.correspondence.fine != self.wanted:
                raise FedmtError(
                    f"Center '{center.name}': its correspondence leads to "
                    f"'{center.correspondence.fine.name}', not to the wanted space '{self.wanted.name}'."
                )

    def _with_identity(self, center: Center) -> Center:
        """A center that labels in the wanted space has the identity for its correspondence."""
        if center.space == self.wanted and center.correspondence is None:
            return replace(center, correspondence=Correspondence.identity(self.wanted))
        return center

    @property
    def spaces(self) -> tuple[LabelSpace, ...]:
        """Every label space in use, the wanted one first."""
        found = [self.wanted]
        for center in self.centers:
            if center.space is not None and center.space not in found:
                found.append(center.space)
        return tuple(found)

    def contents(self) -> dict[str, dict[str, Tensor]]:
        """By center and test, what it trains or is tested with; the labels under the classes they mean."""
        members = {c.name: c for c in (self.reference, *self.centers)}
        members |= {f"tests/{t.name}": t for t in self.tests}
        if self.held_out is not None:
            members[f"held out/{self.reference.name}"] = self.held_out
        found: dict[str, dict[str, Tensor]] = {}
        for name, center in members.items():
            own = found[name] = {"images": center.images}
            if center.labels is not None:
                own[f"labels {center.space}"] = center.labels
            if center.correspondence is not None:
                own["correspondence"] = center.correspondence.matrix
        return found

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.reference.images.shape[1:]
        return channels, height, width
