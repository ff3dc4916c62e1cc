"""Label spaces, and the correspondences between them.

A *label space* is an ordered list of class names. A *correspondence* between a center's space
(J classes) and the wanted space (K classes) is the paper's matrix

    M[j, k] = P(center's label = j | wanted label = k),        shape J x K, columns sum to 1.

It projects the model's K-class scores into the center's space, and turns a center's label into a
sharper guess of the wanted one (`posterior`). Spaces need not be nested: a column may be spread
over several classes.
"""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmt.core.errors import FedmtError, listed, nearest

COLUMN_TOLERANCE = 5e-3
"""How far a column's sum may be from 1. Ten classes rounded to three decimals pass, typing errors do not."""


def class_name(text: str) -> str:
    """The form in which class names are compared: without surrounding spaces, and with composed accents
    (NFC).

    macOS writes the names of folders in decomposed form (NFD), and most other systems in composed form. They
    look the same.
    """
    return unicodedata.normalize("NFC", text.strip())


@dataclass(frozen=True)
class LabelSpace:
    """Named classes in a fixed order. Names are compared in the form that `class_name` returns.

    >>> space = LabelSpace("department", ["tops", "shoes"])
    >>> space.index("shoes"), len(space), "bag" in space
    (1, 2, False)
    """

    name: str
    classes: tuple[str, ...]

    def __init__(self, name: str, classes: Sequence[str]) -> None:
        # A set's order changes from one process to the next, and with it what a position means.
        ordered = isinstance(classes, Iterable) and not isinstance(classes, str | set | frozenset)
        given = tuple(classes) if ordered else ()
        if not ordered or not all(isinstance(c, str) for c in given):
            raise FedmtError(f"Label space '{name}': classes must be a list of names, got {classes!r}.")
        names = tuple(class_name(c) for c in given)
        if not names:
            raise FedmtError(f"Label space '{name}' has no classes. Name at least one.")
        if "" in names:
            raise FedmtError(f"Label space '{name}': class {names.index('') + 1} has an empty name.")
        twice = sorted({c for c in names if names.count(c) > 1})
        if twice:
            raise FedmtError(f"Label space '{name}' names {listed(twice)} more than once.")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "classes", names)

    def index(self, label: str, where: str = "") -> int:
        """The position of a class. `where` (a file and line, or a center) is part of the error message."""
        try:
            return self.classes.index(class_name(label))
        except ValueError:
            place = f"{where}: " if where else ""
            raise FedmtError(
                f"{place}label '{label}' is not in label space '{self.name}'."
                f"{nearest(label, self.classes)} Its classes are {listed(self.classes)}."
            ) from None

    def __len__(self) -> int:
        return len(self.classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.classes)

    def __contains__(self, label: object) -> bool:
        return isinstance(label, str) and class_name(label) in self.classes


@dataclass(frozen=True, eq=False)
class Correspondence:
    """The J x K matrix M between a center's space (`coarse`) and the wanted one (`fine`).

    `coarse` need not be coarser in any sense; it is the paper's other space.

    >>> fine = LabelSpace("diagnosis", ["melanoma", "nevus"])
    >>> coarse = LabelSpace("triage", ["malignant", "benign"])
    >>> m = Correspondence.from_mapping(
    ...     fine, coarse, {"melanoma": "malignant", "nevus": {"benign": 0.9, "malignant": 0.1}})
    >>> m.project(torch.tensor([0.5, 0.5]))
    tensor([0.5500, 0.4500])
    """

    matrix: Tensor
    fine: LabelSpace
    coarse: LabelSpace

    def __init__(
        self,
        matrix: Tensor | NDArray[Any] | Sequence[Sequence[float]],
        fine: LabelSpace,
        coarse: LabelSpace,
        source: str = "",
    ) -> None:
        """Checks `matrix` and stores it as float32. `source` (a file or a center) is part of the error
        messages."""
        where = f"{source}: correspondence" if source else "Correspondence"
        where = f"{where} '{fine.name}' -> '{coarse.name}'"
        try:
            values = torch.as_tensor(matrix, dtype=torch.float64).detach()
        except (ValueError, TypeError) as error:
            raise FedmtError(f"{where}: not a matrix of numbers ({error}).") from None
        if values.shape != (len(coarse), len(fine)):
            raise FedmtError(
                f"{where}: the matrix is {' x '.join(map(str, values.shape))}, expected {len(coarse)} x "
                f"{len(fine)} (one row per class of '{coarse.name}', one column per class of '{fine.name}')."
            )
        bad = ~torch.isfinite(values) | (values < 0)
        if bad.any():
            j, k = (int(i) for i in bad.nonzero()[0])
            raise FedmtError(
                f"{where}: entry ('{coarse.classes[j]}', '{fine.classes[k]}') is {values[j, k].item()}; "
                "entries are probabilities between 0 and 1."
            )
        sums = values.sum(0)
        off = (sums - 1).abs() > COLUMN_TOLERANCE
        if off.any():
            k = int(off.nonzero()[0])
            hint = (
                f"say which class of '{coarse.name}' it belongs to"
                if sums[k] == 0
                else "the probabilities of one wanted class over the center's classes must sum to 1"
            )
            raise FedmtError(
                f"{where}: the column of '{fine.classes[k]}' sums to {sums[k].item():.6g}, "
                f"expected 1; {hint}."
            )
        # Renormalized in float64, so that sums within the tolerance are exact from here on.
        object.__setattr__(self, "matrix", (values / sums).to(torch.float32))
        object.__setattr__(self, "fine", fine)
        object.__setattr__(self, "coarse", coarse)

    @classmethod
    def identity(cls, space: LabelSpace) -> Correspondence:
        """The correspondence of a center that labels in the wanted space itself."""
        return cls(torch.eye(len(space)), space, space)

    @classmethod
    def from_mapping(
        cls,
        fine: LabelSpace,
        coarse: LabelSpace,
        mapping: Mapping[str, str | Mapping[str, float]],
        source: str = "",
    ) -> Correspondence:
        """From `{fine class: coarse class}` or `{fine class: {coarse class: probability}}`."""
        where = source or f"Correspondence '{fine.name}' -> '{coarse.name}'"
        matrix = torch.zeros(len(coarse), len(fine), dtype=torch.float64)
        seen = set()
        for name, target in mapping.items():
            k = fine.index(name, where)
            seen.add(fine.classes[k])
            shares = {target: 1.0} if isinstance(target, str) else target
            if not isinstance(shares, Mapping):
                raise FedmtError(
                    f"{where}, class '{name}': {target!r} given, expected a class of '{coarse.name}', or "
                    "classes with their probabilities."
                )
            for label, share in shares.items():
                matrix[coarse.index(label, f"{where}, class '{name}'"), k] += float(share)
        missing = [c for c in fine if c not in seen]
        if missing:
            raise FedmtError(
                f"{where}: no entry for {listed(missing)} of '{fine.name}'; every wanted class needs an "
                "entry."
            )
        return cls(matrix, fine, coarse, source)

    @classmethod
    def from_csv(cls, path: str | Path, fine: LabelSpace, coarse: LabelSpace) -> Correspondence:
        """From a table with the wanted classes across the top and the center's classes down the side.

        Rows and columns may be in any order. Each class of both spaces must occur exactly once.
        """
        path = Path(path)
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file)
                rows = [(reader.line_num, row) for row in reader if any(c.strip() for c in row)]
        except UnicodeDecodeError:
            raise FedmtError(f"{path}: the file is not encoded in UTF-8. Save it as 'CSV UTF-8'.") from None
        except (OSError, csv.Error) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise FedmtError(f"{path}: the correspondence cannot be read ({reason}).") from None
        if len(rows) < 2:
            raise FedmtError(
                f"{path}: expected a header with the classes of '{fine.name}' and a row for each "
                f"class of '{coarse.name}', found {len(rows)} rows."
            )
        header_line, header = rows[0]
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            raise FedmtError(f"{path}, line {header_line}: the cells must be separated by commas.")
        top = header[1:]
        if top and all(name in coarse for name in top) and not any(name in fine for name in top):
            raise FedmtError(
                f"{path}, line {header_line}: the classes of '{coarse.name}' are across the top. Transpose "
                f"the table, so that the classes of '{fine.name}' are across the top and these are down the "
                "side."
            )
        columns = [fine.index(name, f"{path}, line {header_line}") for name in header[1:]]
        _each_once(fine, columns, f"{path}, line {header_line}")
        matrix = torch.zeros(len(coarse), len(fine), dtype=torch.float64)
        lines = []
        for line, row in rows[1:]:
            where = f"{path}, line {line}"
            if len(row) != len(header):
                raise FedmtError(f"{where}: {len(row)} cells, expected {len(header)} as in the header.")
            j = coarse.index(row[0], where)
            lines.append(j)
            for k, cell in zip(columns, row[1:], strict=True):
                try:
                    matrix[j, k] = float(cell)
                except ValueError:
                    raise FedmtError(
                        f"{where}, column '{fine.classes[k]}': '{cell}' is not a number."
                    ) from None
        _each_once(coarse, lines, str(path))
        return cls(matrix, fine, coarse, str(path))

    def to_csv(self, path: str | Path) -> None:
        """Writes the table that `from_csv` reads."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([self.coarse.name, *self.fine])
            for name, row in zip(self.coarse, self.matrix.tolist(), strict=True):
                writer.writerow([name, *(f"{value:.9g}" for value in row)])

    def to_mapping(self) -> dict[str, dict[str, float]]:
        """The table that `from_mapping` reads. It restores the same matrix, bit for bit.

        The float32 entries of a column need not sum to 1 exactly, and dividing by their sum again could
        change a last bit. So the missing amount is spread over the entries, and each changes by less than
        half of its last place.
        """
        found: dict[str, dict[str, float]] = {}
        for name, column in zip(self.fine, self.matrix.T, strict=True):
            values = column.double()
            missing = 1 - float(values.sum())
            for j in values.nonzero().flatten().tolist():
                step = float(torch.nextafter(column[j], torch.tensor(0.0)).double() - values[j])
                room = 0.49 * abs(step)  # below a power of two, the gap to the next number is the smaller one
                change = max(-room, min(room, missing))
                values[j] += change
                missing -= change
            found[name] = {c: float(v) for c, v in zip(self.coarse, values, strict=True) if v}
        return found

    def project(self, probabilities: Tensor) -> Tensor:
        """Wanted-space probabilities [..., K] to the center's space [..., J]: `M f`."""
        return project(probabilities, self.matrix.to(probabilities))

    def posterior(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """`q_k ~ f_k M[label, k]`, [N, K], from probabilities [N, K] and the center's labels [N]."""
        return posterior(probabilities, self.matrix.to(probabilities), labels)

    @property
    def is_partition(self) -> bool:
        """Whether every wanted class belongs to exactly one class of the other space."""
        return bool(((self.matrix == 0) | (self.matrix == 1)).all())

    def map_labels(self, labels: Tensor) -> Tensor:
        """Converts wanted labels [N] to the center's labels, if that is certain (`is_partition`)."""
        if not self.is_partition:
            raise FedmtError(
                f"Correspondence '{self.fine.name}' -> '{self.coarse.name}' is not a partition, so a wanted "
                "label does not determine the other label."
            )
        return self.matrix.argmax(0).to(labels.device)[labels]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Correspondence)
            and (self.fine, self.coarse) == (other.fine, other.coarse)
            and torch.equal(self.matrix, other.matrix)
        )

    def __hash__(self) -> int:
        return hash((self.fine, self.coarse))


def project(probabilities: Tensor, matrix: Tensor) -> Tensor:
    """`M f`: probabilities [..., K] through matrix [J, K] to [..., J]."""
    return probabilities @ matrix.T


def posterior(probabilities: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """`q_ik = f_ik M[y_i, k] / sum_k' f_ik' M[y_i, k']`, [N, K].

    If the model gives no mass at all to the label's classes, the row falls back to M alone (`q_ik ~ M[y_i,
    k]`). If the label has no class either (an all-zero row of M), it falls back to the model, and finally to
    the uniform distribution. Each row is therefore a distribution for any input.
    """
    return Posterior(probabilities)(matrix.double()[labels]).to(probabilities.dtype)


class Posterior:
    """`posterior` of the same probabilities under many matrices, as needed by expectation maximization."""

    def __init__(self, probabilities: Tensor) -> None:
        # In float64, so that the product of two small float32 numbers does not underflow.
        self.scores = probabilities.double().nan_to_num(0.0, 0.0, 0.0)
        known = self.scores.sum(1, keepdim=True) > 0
        self._without_label = torch.where(known, self.scores, 1.0)

    def __call__(self, allowed: Tensor) -> Tensor:
        """allowed: M[y_i, k], the row of each sample's label, float64 [N, K]. Returns float64 [N, K]."""
        joint = self.scores * allowed
        otherwise = torch.where(allowed.sum(1, keepdim=True) > 0, allowed, self._without_label)
        joint = torch.where(joint.sum(1, keepdim=True) > 0, joint, otherwise)
        return joint / joint.sum(1, keepdim=True)


def frobenius_error(estimate: Tensor, truth: Tensor) -> float:
    """`|| M-hat - M ||_F`."""
    return float(torch.linalg.norm(estimate.double().cpu() - truth.double().cpu()))


def _each_once(space: LabelSpace, found: list[int], where: str) -> None:
    missing = [c for i, c in enumerate(space) if i not in found]
    twice = [c for i, c in enumerate(space) if found.count(i) > 1]
    if missing:
        raise FedmtError(f"{where}: {listed(missing)} of '{space.name}' missing. Every class needs an entry.")
    if twice:
        raise FedmtError(f"{where}: {listed(twice)} of '{space.name}' given more than once.")
