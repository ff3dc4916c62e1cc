"""Center and Federation: who has which samples, and in which space they are labeled.

Training accesses a center only through this class. `truth`, the wanted labels of a center's samples, exists
only if a benchmark was split from a fully labeled set. Methods never read it. It measures the quality of
pseudo-labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedmt.core.errors import FedmtError, listed
from fedmt.core.labels import Correspondence, LabelSpace
from fedmt.core.priors import class_shares
from fedmt.data.member import Member, Roster, with_identity
from fedmt.inputs import DEFAULT_INPUT, Input


@dataclass(frozen=True, eq=False)
class Samples:
    """The data of a center.

    values: [N, ...], as `input` stores them. labels: int64 [N], positions in the center's label space; None
        if it has no labels. truth: int64 [N], positions in the wanted space, if a benchmark knows them.
    snippets: for a test, what a report shows of each sample if its stored form cannot be shown. They are
        never sent or written, except to a report that is asked to show them.
    groups: int64 [N], equal for samples that are never separated (groups.py). They never leave the center.
        For a test, a run keeps which samples belong together, but not these numbers.
    sites: for a test, the site of each sample, if the data names it.
    """

    values: Tensor
    labels: Tensor | None
    truth: Tensor | None
    input: Input
    snippets: tuple[str, ...] | None
    groups: Tensor | None
    sites: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def images(self) -> Tensor:
        """The values, if they are images."""
        return self.values


@dataclass(frozen=True, eq=False, init=False)
class Center(Member, Samples):
    """A member with its samples."""

    def __init__(
        self,
        name: str,
        values: Tensor | None = None,
        space: LabelSpace | None = None,
        labels: Tensor | None = None,
        correspondence: Correspondence | None = None,
        truth: Tensor | None = None,
        input: Input | type[Input] = DEFAULT_INPUT,
        size: int | None = None,
        *,
        images: Tensor | None = None,
        snippets: tuple[str, ...] | None = None,
        groups: Tensor | None = None,
        sites: tuple[str, ...] | None = None,
    ) -> None:
        """values: the samples, in the stored form of `input`; by default, images in uint8. images: an alias.

        space: its label space. labels: int64 [N], positions in it. Give both or neither.
        correspondence: between `space` and the wanted space, if it is known.
        truth: int64 [N], positions in the wanted space, if a benchmark knows them. Methods never read it.
        size: ignored, because it follows from the values.
        snippets: for a test, what a report shows of each sample if its stored form cannot be shown.
        groups: int64 [N], equal for samples that belong together, such as those of a patient.
        sites: for a test, the site of each sample.
        """
        values = images if values is None else values
        if values is None:
            raise FedmtError(f"Center '{name}': no samples are given; give its values.")
        found = (input if isinstance(input, type) else type(input)).of(values, f"Center '{name}'")
        if isinstance(input, Input):  # it may contain more than the values show, such as the names of columns
            found = replace(input, shape=found.shape)
        Samples.__init__(self, values, labels, truth, found, snippets, groups, sites)
        Member.__init__(self, name, space, correspondence, len(values))  # checks them and then the samples

    def __post_init__(self) -> None:
        super().__post_init__()
        where, word, space = f"Center '{self.name}'", self.input.word, self.space
        if len(self) == 0:
            raise FedmtError(f"{where} is empty: it has no {word}s. Give it data or leave it out.")
        if (self.labels is None) != (space is None):
            raise FedmtError(f"{where}: labels and label space go together; give both or neither.")
        for name, labels in (("labels", self.labels), ("truth", self.truth), ("groups", self.groups)):
            if labels is not None and getattr(labels, "dtype", None) != torch.int64:
                kind = f" of dtype {labels.dtype}" if hasattr(labels, "dtype") else ""
                raise FedmtError(
                    f"{where}: {name} are of type {type(labels).__name__}{kind}; expected a tensor of int64. "
                    "Federation.from_arrays accepts other forms."
                )
            if labels is not None and labels.shape != (len(self),):
                raise FedmtError(f"{where}: {len(self)} {word}s but {name} of shape {tuple(labels.shape)}.")
        for what, texts in (("snippets", self.snippets), ("sites", self.sites)):
            if texts is not None and len(texts) != len(self):
                raise FedmtError(f"{where}: {len(self)} {word}s but {len(texts)} {what}.")
        if self.labels is None or space is None:
            return
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(space):
            raise FedmtError(
                f"{where}: label {low if low < 0 else high} is outside label space '{space.name}', which has "
                f"{len(space)} classes (0 to {len(space) - 1})."
            )
        if self.correspondence is not None:
            self._check_correspondence(where, space, self.labels, self.correspondence)

    def __repr__(self) -> str:
        labeled = "without labels" if self.space is None else f"labeled in '{self.space.name}'"
        return f"Center('{self.name}', {len(self):,} {self.input.word}s, {labeled})"

    def contents(self) -> dict[str, Tensor]:
        """A digest of what the center trains with. The labels are included as class names."""
        own = {self.input.name: self.values}
        if self.labels is not None:
            own[f"labels {self.space}"] = self.labels
        if self.correspondence is not None:
            own["correspondence"] = self.correspondence.matrix
        return own

    @staticmethod
    def _check_correspondence(where: str, space: LabelSpace, labels: Tensor, known: Correspondence) -> None:
        """Raises an error for a label that no wanted class has. It would be impossible under every
        prediction, and the loss would be infinite."""
        impossible = known.matrix.sum(1) == 0
        occurring = torch.zeros(len(space), dtype=torch.bool)
        occurring[labels.cpu().unique()] = True
        bad = [space.classes[int(j)] for j in (impossible & occurring).nonzero().flatten()]
        if bad:
            raise FedmtError(
                f"{where}: its data has the label {listed(bad)}, but no class of '{known.fine.name}' "
                "corresponds to it; correct the correspondence or the data."
            )


@dataclass(frozen=True, eq=False)
class Encoded:
    """The origin of features: the original samples, and the frozen network that they were passed through."""

    samples: Federation
    network: nn.Module


@dataclass(frozen=True, eq=False)
class Federation:
    """A reference center, the other centers, and the test sets (one for each space to test in).

    held_out: samples of the reference center that are kept from training, for calibration.
    elsewhere: centers whose data are on other machines.
    notes: sentences about the data for the user, shown at the start of a run.
    encoded: the origin of its samples, if they are features.
    """

    wanted: LabelSpace
    reference: Center
    centers: tuple[Center, ...]
    tests: tuple[Center, ...] = ()
    held_out: Center | None = None
    elsewhere: tuple[Member, ...] = ()
    notes: tuple[str, ...] = ()
    encoded: Encoded | None = None

    def __post_init__(self) -> None:
        ordered = sorted(self.centers, key=lambda c: c.name)
        object.__setattr__(self, "centers", tuple(with_identity(c, self.wanted) for c in ordered))
        if self.reference.space != self.wanted:
            own = self.reference.space.name if self.reference.space else "no space"
            raise FedmtError(
                f"The reference center '{self.reference.name}' must label in the wanted space "
                f"'{self.wanted.name}', but labels in {own}."
            )
        self._settle()
        _ = self.roster  # checks the names and correspondences

    def _settle(self) -> None:
        """Uses one input for all. What it derives from the reference center's samples applies to every
        center."""
        for center in (*self.centers, *self.tests):
            if not center.input.fits(self.input):
                raise FedmtError(f"Center '{center.name}' has {self.input.mismatch(center.input)}.")
        input = self.input.settled(self.reference.values)
        object.__setattr__(self, "reference", _with_input(self.reference, input))
        for name in ("centers", "tests"):
            settled = tuple(_with_input(c, input) for c in getattr(self, name))
            object.__setattr__(self, name, settled)

    @classmethod
    def from_arrays(
        cls,
        wanted: Sequence[str] | LabelSpace | str,
        reference: Any,
        centers: Mapping[str, Any],
        spaces: Mapping[str, Sequence[str]] | None = None,
        test: Any = None,
        *,
        correspondences: Mapping[str, Any] | None = None,
        input: str | type[Input] | None = None,
        reference_name: str = "reference",
        label_column: str = "label",
    ) -> Federation:
        """A federation of arrays in memory. All mistakes are reported in one `FedmtError`.

        wanted: the classes that the model should distinguish. The space is then called 'wanted'. A
        `LabelSpace`, or the name of one of `spaces`, gives it another name.
        reference: the reference center's samples and labels, (x, y).
        centers: by name, `CenterData`, or the tuple (x, y, space), or (x, y) with labels in the wanted space.
        spaces: the classes of every other label space, by its name.
        test: (x, y), or a dictionary of named test sets; each is labeled in the wanted space, unless it is a
            `CenterData` or tuple that names another.
        correspondences: one per label space, for all of its centers. A center's own takes precedence.
        input: what a sample is, such as 'images'. By default, it is inferred from the arrays.
        label_column: the column with the labels, for data frames given without y.

        x: NumPy arrays, torch tensors or lists. Images are uint8 or floats in [0, 1], in color or
            grayscale ([N, 28, 28, 3], [N, 3, 28, 28], [N, 28, 28]). Instead of x and y, a
            `torch.utils.data.Dataset` of (x, y) or a pandas DataFrame with a column of labels is accepted.
        y: class names, or integers that are positions in the label space.
        If several samples are of one patient, use `CenterData(x, y, groups=patients)`, also for tests.

        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.random((6, 8, 8)), ["melanoma", "nevus", "keratosis"] * 2
        >>> Federation.from_arrays(
        ...     wanted=["melanoma", "nevus", "keratosis"],
        ...     reference=(x, y),
        ...     centers={"Berlin": (x, [0, 1, 1, 0, 1, 1], "triage"), "Oslo": (x,)},
        ...     spaces={"triage": ["malignant", "benign"]},
        ...     test=(x, y),
        ... )
        Federation of images (1, 8, 8), wanted: 'melanoma', 'nevus', 'keratosis'
          reference: 6 images
          Berlin: 6 images, labeled in 'triage' (2 classes), M to be estimated
          Oslo: 6 images without labels
          test 1: 6 images, labeled in 'wanted' (3 classes)
        """
        from fedmt.data.arrays import from_arrays  # it needs this module

        return from_arrays(
            wanted, reference, centers, spaces, test, correspondences, input, reference_name, label_column
        )

    def __repr__(self) -> str:
        return described(self)

    @cached_property
    def roster(self) -> Roster:
        """Who takes part, wherever the data are."""
        return Roster(self.wanted, self.reference, (*self.centers, *self.elsewhere))

    @property
    def reference_prior(self) -> Tensor:
        """The frequencies of the wanted classes among the labels that the reference center trains on, with
        one more sample of each class (`class_shares`), [K]."""
        assert self.reference.labels is not None
        return class_shares(self.reference.labels.cpu(), len(self.wanted))

    @property
    def input(self) -> Input:
        """What a sample is."""
        return self.reference.input

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one sample, under its name for images."""
        return self.input.shape

    @property
    def spaces(self) -> tuple[LabelSpace, ...]:
        """Every label space in use, the wanted one first."""
        return self.roster.spaces

    def contents(self) -> dict[str, dict[str, Tensor]]:
        """For each center and test, a digest of its data. The labels are included as class names.

        For features, the digest is of the original samples, because another number of threads may change the
        last bit of a feature.
        """
        if self.encoded is not None:
            return {**self.encoded.samples.contents(), "model.weights": self.encoded.network.state_dict()}
        places = {c.name: c for c in (self.reference, *self.centers)}
        places |= {f"tests/{t.name}": t for t in self.tests}
        if self.held_out is not None:
            places[f"held out/{self.reference.name}"] = self.held_out
        found: dict[str, dict[str, Tensor]] = {}
        for name, center in places.items():
            found[name] = center.contents()
        for member in self.elsewhere:
            known = member.correspondence
            found[f"elsewhere/{member.name}"] = {} if known is None else {"correspondence": known.matrix}
        return found


def described(federation: Federation) -> str:
    """Who has what, one line per center: what a notebook shows instead of the numbers themselves."""
    word = federation.input.word

    def line(member: Member) -> str:
        size = "data elsewhere" if member.size is None else f"{member.size:,} {word}s"
        if member.space is None:
            return f"{member.name}: {size} without labels"
        label = f"labeled in '{member.space.name}' ({len(member.space)} classes)"
        is_center = member not in federation.tests
        known = "M given" if member.correspondence is not None else "M to be estimated"
        matrix = f", {known}" if is_center and member.space != federation.wanted else ""
        return f"{member.name}: {size}, {label}{matrix}"

    reference = f"{federation.reference.name}: {len(federation.reference):,} {word}s"
    lines = [reference, *(line(m) for m in (*federation.roster.members, *federation.tests))]
    shape = federation.input.shape
    head = f"Federation of {federation.input.name} {shape}, wanted: {listed(federation.wanted)}"
    return "\n  ".join([head, *lines])


def _with_input(center: Center, input: Input) -> Center:
    return center if center.input == input else replace(center, input=input)
