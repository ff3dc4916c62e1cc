"""Vectors: their views, their sources, and a run from a table to a model in use."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedmt
from fedmt import Center, Federation
from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.inputs import Vectors, from_json, to_json
from fedmt.inputs.vectors import VectorViews, column_statistics
from fedmt.inputs.vectors.views import _row, gaussian, numbers
from fedmt.reports.report import report

KIND, PAIR = LabelSpace("kind", ["a", "b", "c"]), LabelSpace("pair", ["a", "other"])
MIDDLES = np.array([[0.0, 200.0, 5.0], [2.0, -100.0, 5.0], [-2.0, -100.0, 5.0]])

CONFIG = """
input = "vectors"
seed = 1
device = "cpu"
wanted = "kind"
{top}
[method]
{method}
[spaces]
kind = ["a", "b", "c"]
pair = ["a", "other"]
[correspondences]
pair = {{ a = "a", b = "other", c = "other" }}
[training]
rounds = 2
batch_size = 15
warmup_epochs = 5
[reference]
source = "npz"
path = "reference.npz"
[[centers]]
name = "Bonn"
source = "npz"
path = "bonn.npz"
space = "pair"
[[centers]]
name = "Kiel"
source = "npy"
path = "kiel.npy"
[[tests]]
source = "npy"
path = "test.npy"
labels = "labels.npy"
"""


def cloud(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around three means, in columns of very different scales, and their classes."""
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % 3
    values = MIDDLES[truth] + rng.normal(size=(count, 3)) * [0.4, 40.0, 1.0]
    return values.astype(np.float32), truth


def write_csv(path: Path, values: np.ndarray, labels: list[str] | None, more: str = "") -> None:
    header = ["x", "y", "z", *(["label"] if labels else [])]
    rows = [[*map(repr, map(float, row)), *([labels[i]] if labels else [])] for i, row in enumerate(values)]
    path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n" + more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The federation's files, without column names, which npz and npy files do not have."""
    values, truth = cloud(30, 0)
    np.savez(tmp_path / "reference.npz", vectors=values, labels=np.array(["abc"[t] for t in truth]))
    values, truth = cloud(60, 1)
    np.savez(
        tmp_path / "bonn.npz", vectors=values, labels=truth.clip(max=1), classes=np.array(["a", "other"])
    )
    np.save(tmp_path / "kiel.npy", cloud(60, 2)[0])
    values, truth = cloud(60, 3)
    np.save(tmp_path / "test.npy", values)
    np.save(tmp_path / "labels.npy", truth)
    return tmp_path


def config(folder: Path, top: str = "", method: str = 'name = "fedmt"') -> Path:
    path = folder / "federation.toml"
    path.write_text(CONFIG.format(top=top, method=method))
    return path


# -- views ----------------------------------------------------------------------------------------


def test_numbers_are_uniform_and_of_their_sample_alone() -> None:
    seeds = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
    found = numbers(seeds, 6, 0)
    assert found.min() > 0 and found.max() < 1
    assert (found.mean(0) - 0.5).abs().max() < 0.02 and (found.std(0) - 12**-0.5).abs().max() < 0.01
    every = torch.cat([found, numbers(seeds, 6, 1)], 1)
    assert torch.corrcoef(every.T).fill_diagonal_(0).abs().max() < 0.06
    assert torch.equal(numbers(seeds[7:9], 3, 0), found[7:9, :3])
    normal = gaussian(seeds, 6, 0)
    assert normal.isfinite().all() and (normal.std(0) - 1).abs().max() < 0.05
    extreme = torch.tensor([[0.0, 0.0], [1 - 2**-24, 1 - 2**-24]])
    assert gaussian(extreme, 5000, 0).isfinite().all()


def test_views_in_units_of_each_column() -> None:
    samples = torch.from_numpy(cloud(3000, 0)[0])
    input = Vectors.of(samples, "here").settled(samples)
    views = VectorViews(noise=0.1, strong_noise=0.5, masked=0.3).on(input)
    seeds = torch.rand(3000, 4, generator=torch.Generator().manual_seed(0))
    weak = views.weak(samples, seeds[:, :2])
    noise = weak - input.plain(samples)
    assert (noise.std(0) - 0.1).abs().max() < 0.01 and noise.mean(0).abs().max() < 0.01
    strong = views.strong(weak, samples, seeds[:, 2:])
    masked = strong == 0
    assert (masked.float().mean(0) - 0.3).abs().max() < 0.03
    assert ((strong - weak)[~masked].std() - 0.5).abs() < 0.02
    part = views.weak(samples[5:6], seeds[5:6, :2])
    assert torch.equal(part, weak[5:6])
    assert torch.equal(views.strong(part, samples[5:6], seeds[5:6, 2:]), strong[5:6])
    assert views.on(input) == views


def test_standardized_by_the_reference_center() -> None:
    here, there = (torch.from_numpy(cloud(30, seed)[0]) for seed in (0, 1))
    labels = torch.arange(30) % 3
    federation = Federation(
        KIND, Center("r", here, KIND, labels, input=Vectors), (Center("b", there, input=Vectors),)
    )
    input = federation.centers[0].input
    assert input == federation.input
    plain = input.plain(here).double()
    assert plain.mean(0).abs().max() < 1e-5 and (plain.std(0, unbiased=False) - 1).abs().max() < 1e-5
    assert torch.equal(federation.centers[0].values, there)
    assert from_json(json.loads(json.dumps(to_json(input)))) == input
    reference = here.double()
    mean, deviation = column_statistics(here)
    assert torch.allclose(mean, reference.mean(0)) and torch.allclose(
        deviation, reference.std(0, unbiased=False)
    )


def test_a_constant_column_does_not_blow_up() -> None:
    samples = torch.tensor([[1.0, 7.0, 10.0], [3.0, 7.0, 30.0]])
    assert column_statistics(samples)[1].tolist() == [1.0, 1.0, 10.0]
    assert column_statistics(torch.zeros(2, 2))[1].tolist() == [1.0, 1.0]


# -- reading --------------------------------------------------------------------------------------


def read(path: Path, **options: Any):
    from fedmt.data.sources import read_source
    from fedmt.data.specs import SourceSpec
    from fedmt.inputs.vectors import VectorSpec

    space = options.pop("space", None)
    return read_source(SourceSpec(source="table", path=path), VectorSpec(**options), space, "center 'Bonn'")


def test_tables_of_vectors(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values, truth = cloud(6, 0)
    labels = ["abc"[t] for t in truth]
    write_csv(tmp_path / "a.csv", values, labels)
    found = read(tmp_path / "a.csv", space=KIND)
    assert torch.equal(found.samples, torch.from_numpy(values)) and found.input.columns == ("x", "y", "z")
    assert found.labels["kind"].tolist() == truth.tolist()
    table = pyarrow.table({"label": labels, "emb": values.tolist(), "age": values[:, 0]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet", columns=["emb*"])
    assert torch.equal(found.samples, torch.from_numpy(values)) and not found.labels
    assert found.input.columns == ("emb[0]", "emb[1]", "emb[2]")
    again = read(tmp_path / "a.parquet", **found.input.reading(tmp_path).model_dump())
    assert again.input == found.input


def test_what_is_not_a_number(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", cloud(3, 0)[0], ["a", "b", "c"], "1,inf,2,a\n,nan,3,b\n")
    with pytest.raises(FedmtError) as error:
        read(tmp_path / "a.csv")
    said = str(error.value)
    assert "3 values are missing, NaN or infinite, the first on line 5: 1 in 'x', 2 in 'y'." in said
    write_csv(tmp_path / "a.csv", cloud(3, 0)[0], ["a", "b", "c"], "1,high,2,a\n")
    with pytest.raises(FedmtError, match=r"a.csv, line 5: column 'y' has 'high', expected a number"):
        read(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("x,sex\n1,F\n2,M\n")
    with pytest.raises(FedmtError, match=r"'sex' has words, expected numbers; choose the other"):
        read(tmp_path / "b.csv")
    with pytest.raises(FedmtError, match=r"no column 'w'; the columns are 'x', 'y', 'z', 'label'"):
        read(tmp_path / "a.csv", columns=["w"])
    with pytest.raises(FedmtError, match=r"line 5: 'a' is|line 2: .*'a'"):
        read(tmp_path / "a.csv", space=LabelSpace("k", ["b", "c"]))
    with pytest.raises(FedmtError, match=r"Center 'n': 2 values are .*1 in column 0, 1 in column 1"):
        Center("n", torch.tensor([[1.0, float("nan")], [float("inf"), 0.0]]), input=Vectors)


def test_arrays_that_are_none(tmp_path: Path, folder: Path) -> None:
    from fedmt.inputs.vectors.reading import array_2d

    with pytest.raises(FedmtError, match="rows of different lengths"):
        array_2d([[1.0, 2.0], [3.0]], "Bonn")
    with pytest.raises(FedmtError, match=r"an array of object, shape \(2,\); expected numbers"):
        array_2d(np.array([[1.0], "x"], dtype=object), "Bonn")
    with pytest.raises(FedmtError, match=r"vectors of shape \(3,\); expected \[N, features\]"):
        array_2d(np.zeros(3), "Bonn")
    np.savez(folder / "bonn.npz", embeddings=np.zeros((2, 2)))
    with pytest.raises(FedmtError, match=r"no array 'vectors'; its arrays are 'embeddings'"):
        build_federation(load_config(config(folder)))


def test_centers_with_other_columns() -> None:
    labels = torch.arange(4) % 3

    def center(name: str, columns: tuple[str, ...], **more: Any) -> Center:
        values = torch.arange(4.0 * len(columns)).view(4, -1)
        return Center(name, values, input=Vectors((len(columns),), columns), **more)

    reference = center("r", ("age", "sex"), space=KIND, labels=labels)
    with pytest.raises(FedmtError, match=r"'b' has other columns .* it lacks 'sex' and has besides 'ses'"):
        Federation(KIND, reference, (center("b", ("age", "ses")),))
    with pytest.raises(FedmtError, match="it has them in another order"):
        Federation(KIND, reference, (center("b", ("sex", "age")),))


# -- a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", ["", "graphs = true"])
def test_a_run_and_what_is_made_of_it(folder: Path, command, top: str) -> None:
    path = config(folder, top)
    status, said, _ = command("check", path)
    assert status == 0 and "Vectors 3; mlp" in said
    status, said, error = command("run", path, "--out", folder / "run")
    assert status == 0, error
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["accuracy"]["kind"] > 0.9
    assert 'backbone = "mlp"' in (folder / "run" / "config.toml").read_text()
    model = fedmt.load(folder / "run")
    assert model.predict(MIDDLES).argmax(1).tolist() == [0, 1, 2]
    with pytest.raises(FedmtError, match=r"vectors of shape \(2, 2\); expected \[N, 3\]"):
        model.predict(np.zeros((2, 2)))
    write_csv(folder / "new.csv", MIDDLES, None, "1,,3\n")
    status, said, error = command("predict", folder / "run", folder / "new.csv", "--top", 1)
    rows = [line.split(",") for line in said.splitlines()]
    assert status == 0 and rows[0][0] == "vector"
    assert [row[3] for row in rows[1:]] == ["a", "b", "c", ""] and "no finite number in 'y'" in said
    # Too large for float32, and for the network. Both gave NaN as a probability.
    (folder / "new.csv").write_text("x,y,z\n1,1,1e39\n3e38,-3e38,3e38\n1,1,1\n")
    status, said, error = command("predict", folder / "run", folder / "new.csv")
    assert status == 0 and "nan" not in said and "2 of 3 vectors could not be read" in error
    assert "line 2: no finite number in 'z'." in said
    assert "line 3: no prediction, because its numbers are too large." in said
    np.save(folder / "none.npy", np.ones((0, 3)))
    status, said, error = command("predict", folder / "run", folder / "none.npy")
    assert status == 2 and "none.npy: it contains no rows." in error
    report([folder / "run"], folder / "report.html", with_images=True)
    status, said, error = command("export", folder / "run", "--safetensors", folder / "m.safetensors")
    assert status == 0, error
    assert torch.equal(fedmt.load(folder / "m.safetensors").predict(MIDDLES), model.predict(MIDDLES))


def test_it_is_exported_to_onnx(folder: Path, command) -> None:
    """The graph takes raw vectors, because it includes the standardization."""
    onnxruntime = pytest.importorskip("onnxruntime")
    assert command("run", config(folder, method='name = "fedrep"'), "--out", folder / "run")[0] == 0
    _row.cache_clear()  # as in a new process
    status, _, error = command("export", folder / "run", "--onnx", folder / "m.onnx")
    assert status == 0, error
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"))
    found = session.run(["probabilities_kind"], {"vectors": MIDDLES.astype(np.float32)})[0]
    assert found.argmax(1).tolist() == [0, 1, 2]
