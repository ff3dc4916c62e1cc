"""Converts UCI's thyroid0387 to CSV files: one per referral source, a reference center and a test.

    python scripts/thyroid_tables.py thyroid0387.data data/thyroid
    fedmt schema experiments/base/thyroid.toml
    fedmt reproduce thyroid

The centers are the referral sources of the Garvan Institute's laboratory. They know the group of a diagnosis
(hypothyroid). The laboratory is the reference center. It knows the diagnosis itself (compensated
hypothyroid), for at most ten patients per diagnosis. Patients with several diagnoses are left out, and so are
diagnoses of fewer than 14 patients: toxic goitre, secondary toxic, hypothyroid, I131 treatment. WEST, with
three patients, is merged into SVHD. A third of each diagnosis is the test set.
"""

from __future__ import annotations

import csv
import gzip
import random
import sys
from collections import defaultdict
from pathlib import Path

FEATURES = (
    "age", "sex", "on thyroxine", "query on thyroxine", "on antithyroid medication", "sick", "pregnant",
    "thyroid surgery", "I131 treatment", "query hypothyroid", "query hyperthyroid", "lithium", "goitre",
    "tumor", "hypopituitary", "psych", "TSH measured", "TSH", "T3 measured", "T3", "TT4 measured", "TT4",
    "T4U measured", "T4U", "FTI measured", "FTI", "TBG measured", "TBG",
)  # fmt: skip

DIAGNOSES = {
    "-": ("none", "none"),
    "A": ("hyperthyroid", "hyperthyroid conditions"),
    "B": ("T3 toxic", "hyperthyroid conditions"),
    "F": ("primary hypothyroid", "hypothyroid conditions"),
    "G": ("compensated hypothyroid", "hypothyroid conditions"),
    "I": ("increased binding protein", "binding protein"),
    "J": ("decreased binding protein", "binding protein"),
    "K": ("concurrent illness", "general health"),
    "L": ("consistent with therapy", "replacement therapy"),
    "M": ("underreplaced", "replacement therapy"),
    "N": ("overreplaced", "replacement therapy"),
    "O": ("antithyroid drugs", "antithyroid treatment"),
    "Q": ("surgery", "antithyroid treatment"),
    "R": ("discordant assay results", "miscellaneous"),
    "S": ("elevated TBG", "miscellaneous"),
}

PER_DIAGNOSIS = 10
"""Patients per diagnosis at the reference center, but at most a third of a rare one."""

CENTERS = {"other": "other", "SVI": "svi", "SVHC": "svhc", "STMW": "stmw", "SVHD": "svhd", "WEST": "svhd"}


def main(source: Path, out: Path) -> None:
    patients = defaultdict(list)
    with (gzip.open if source.suffix == ".gz" else open)(source, "rt") as file:
        for cells in csv.reader(file):
            letter = cells[29].partition("[")[0].strip()
            age = int(cells[0]) if cells[0] != "?" else 0
            if letter in DIAGNOSES:
                cells[0] = cells[0] if 0 < age <= 120 else "?"  # a few ages are years of birth or worse
                patients[letter].append(cells)
    tables: dict[str, list[list[str]]] = defaultdict(list)
    shuffled = random.Random(0)
    for letter, rows in sorted(patients.items()):
        shuffled.shuffle(rows)
        third = len(rows) // 3
        known = min(PER_DIAGNOSIS, third)
        places = ["test"] * third + ["reference"] * known
        places += [CENTERS[cells[28]] for cells in rows[len(places) :]]
        for place, cells in zip(places, rows, strict=True):
            tables[place].append([*cells[: len(FEATURES)], *DIAGNOSES[letter]])
    out.mkdir(parents=True, exist_ok=True)
    for place, rows in sorted(tables.items()):
        with (out / f"{place}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*FEATURES, "diagnosis", "group"])
            writer.writerows(rows)
        print(f"{out / place}.csv: {len(rows):,} patients")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} thyroid0387.data[.gz] FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
