"""Converts the downloads of TREC and CLINC150 to the CSV files of experiments/trec.toml and clinc150.toml.

    python scripts/text_benchmarks.py trec DOWNLOADS data/trec
    python scripts/text_benchmarks.py clinc150 DOWNLOADS data/clinc150

DOWNLOADS holds `train_5500.label` and `TREC_10.label` (https://cogcomp.seas.upenn.edu/Data/QA/QC), or
`data_full.json` and `domains.json` (https://github.com/clinc/oos-eval). The JSON files may be gzipped. The
new folder gets train.csv, validation.csv and test.csv with the columns text, fine and coarse. TREC has no
validation part, so every tenth line of its training file is copied to validation.csv, and the others to
fit.csv.
Settings are chosen on validation.csv, never on the test file.
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
    parts["validation"] = parts["train"][::10]
    parts["fit"] = [row for number, row in enumerate(parts["train"]) if number % 10]
    return parts


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


def main(name: str, downloads: str, out: str) -> None:
    parts = {"trec": trec, "clinc150": clinc150}[name](Path(downloads))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "fine", "coarse"])
            writer.writerows(rows)
        print(f"{folder / part}.csv: {len(rows)} texts, {len({row[1] for row in rows})} fine labels")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("trec", "clinc150"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
