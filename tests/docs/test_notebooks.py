"""The notebooks in examples/ run from top to bottom, each in its own folder."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), f"{path.name}: clear its outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            # Progress is one output that is updated in place, not one output per round.
            assert output.output_type in ("display_data", "execute_result", "stream"), output
        assert len(cell.get("outputs", [])) <= 3
    shown = [o.get("data", {}).get("text/plain", "") for c in notebook.cells for o in c.get("outputs", [])]
    assert any("Balanced accuracy" in text for text in shown)  # from the comparison
    assert any("done\nround " in text for text in shown)  # the last state of the progress


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["embeddings", "images_from_arrays"]
