"""Converts the downloads of TREC and CLINC150 to the CSV files of experiments/trec.toml and clinc150.toml.

    python scripts/text_benchmarks.py trec DOWNLOADS data/trec
    python scripts/text_benchmarks.py trec-parts DOWNLOADS data/trec
    python scripts/text_benchmarks.py clinc150 DOWNLOADS data/clinc150

DOWNLOADS holds `train_5500.label` and `TREC_10.label` (https://cogcomp.seas.upenn.edu/Data/QA/QC), or
`data_full.json` and `domains.json` (https://github.com/clinc/oos-eval). The JSON files may be gzipped. The
new folder gets train.csv, validation.csv and test.csv with the columns text, fine and coarse. TREC has no
validation part, so every tenth line of its training file is copied to validation.csv, and the others to
fit.csv. `trec-parts` does this for each of the ten tenths: validation-0.csv and fit-0.csv, and so on.
Settings are chosen on validation files, never on the test file.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

Row = tuple[str, str, str]
"""Text, fine label, coarse label."""


def trec(folder: Path) -> dict[str, list[Row]]:
    """Reads lines such as `NUM:dist How far is it from Denver to Aspen ?`."""
    parts = {}
    for name, file in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        lines = (folder / file).read_text(encoding="latin-1").splitlines()
        split = [line.partition(" ") for line in lines if line.strip()]
        parts[name] = [(text, fine, fine.partition(":")[0]) for fine, _, text in split]
    # The training file repeats some questions, a few of them with a different label. The first one counts.
    first = {text: (text, fine, coarse) for text, fine, coarse in reversed(parts["train"])}
    parts["train"] = list(reversed(first.values()))
    parts["validation"], parts["fit"] = _tenth(parts["train"], 0)
    return parts


def trec_parts(folder: Path) -> dict[str, list[Row]]:
    """Each tenth of the training file as validation, and the others to train on."""
    rows, parts = trec(folder)["train"], {}
    for number in range(10):
        parts[f"validation-{number}"], parts[f"fit-{number}"] = _tenth(rows, number)
    return parts


def _tenth(rows: list[Row], number: int) -> tuple[list[Row], list[Row]]:
    """Every tenth row from `number` on, and the others."""
    return rows[number::10], [row for at, row in enumerate(rows) if at % 10 != number]


def clinc150(folder: Path) -> dict[str, list[Row]]:
    """Sentences with one of 150 intents from ten domains. Out-of-scope sentences are left out."""
    domains = _json(folder / "domains.json")
    domain = {intent: name for name, intents in domains.items() for intent in intents}
    data = _json(folder / "data_full.json")
    parts = {"train": "train", "validation": "val", "test": "test"}
    return {
        name: [(text, intent, domain[intent]) for text, intent in data[key]] for name, key in parts.items()
    }


def _json(path: Path) -> Any:
    packed = path.with_name(path.name + ".gz")
    if packed.exists():
        return json.loads(gzip.decompress(packed.read_bytes()))
    return json.loads(path.read_text(encoding="utf-8"))


READERS = {"trec": trec, "trec-parts": trec_parts, "clinc150": clinc150}


def main(name: str, downloads: str, out: str) -> None:
    parts = READERS[name](Path(downloads))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "fine", "coarse"])
            writer.writerows(rows)
        print(f"{folder / part}.csv: {len(rows)} texts, {len({row[1] for row in rows})} fine labels")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in READERS:
        sys.exit(__doc__)
    main(*sys.argv[1:])
