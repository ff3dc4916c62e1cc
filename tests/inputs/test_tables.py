"""Tables: statistics, schema, encoding, and problems of a table."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedmt
from fedmt.config import build_federation, load_config
from fedmt.core.errors import FedmtError
from fedmt.inputs import Tables, from_json, to_json
from fedmt.inputs.tables import Schema, Statistics, pool_moments
from fedmt.inputs.tabular import frame_of, read_frame
from fedmt.reports.report import report

CONFIG = """
input = "tables"
seed = 1
device = "cpu"
wanted = "kind"
[tables]
schema = "schema.toml"
[spaces]
kind = ["a", "b", "c"]
pair = ["a", "other"]
[correspondences]
pair = { a = "a", b = "other", c = "other" }
[training]
rounds = 2
batch_size = 15
warmup_epochs = 10
[reference]
source = "table"
path = "reference.csv"
[[centers]]
name = "Bonn"
source = "table"
path = "bonn.csv"
space = "pair"
label_column = "group"
[[tests]]
source = "table"
path = "test.csv"
"""


def write(path: Path, count: int, seed: int, label: str = "label", classes: str = "abc") -> None:
    """Patients: the class shows in `tsh` and `sex`, some values are missing, and `patient` names the row."""
    rng = np.random.default_rng(seed)
    lines = [f"patient,tsh,age,sex,{label}"]
    for i in range(count):
        kind = i % 3
        tsh = "?" if rng.random() < 0.1 else f"{1000 * kind + 100 * rng.normal():.1f}"
        sex = "" if rng.random() < 0.1 else "FMM"[kind]
        shown = classes[kind] if label == "label" else ["a", "other", "other"][kind]
        lines.append(f"p{seed}-{i},{tsh},{rng.integers(20, 90)},{sex},{shown}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write(tmp_path / "reference.csv", 45, 0)
    write(tmp_path / "bonn.csv", 60, 1, "group")
    write(tmp_path / "test.csv", 60, 2)
    path = tmp_path / "federation.toml"
    path.write_text(CONFIG)
    return path


# -- statistics -----------------------------------------------------------------------------------

Numbers = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=20)


@given(st.lists(Numbers, min_size=1, max_size=5))
def test_pooled_moments_are_those_of_all_rows(parts: list[list[float]]) -> None:
    """Compared with NumPy in float64 on the rows themselves, which a coordinator never sees."""
    every = np.concatenate([np.array(part) for part in parts])
    told = [(len(part), float(np.mean(part)), float(np.var(part))) for part in parts]
    count, mean, variance = pool_moments([*told, (0, 0.0, 0.0)])
    assert count == len(every)
    scale = max(1.0, float(np.abs(every).max()))
    assert mean == pytest.approx(every.mean(), abs=1e-9 * scale)
    assert variance == pytest.approx(every.var(), abs=1e-9 * scale**2)


def test_a_schema_is_that_of_the_rows_together() -> None:
    one = {"age": [30.0, 50.0, None], "sex": ["F", "M", ""], "code": [1, 2, 1]}
    two = {"age": [70.0, 10.0], "sex": ["F", "X"], "code": [3, 3]}
    parts = [Statistics.of(t, n, categorical=["code"]) for n, t in (("one", one), ("two", two))]
    schema = Schema.pooled(parts)
    age, sex, code = schema.columns
    every = np.array([30.0, 50.0, 70.0, 10.0])
    assert (age.mean, age.deviation, age.missing) == (
        pytest.approx(every.mean()),
        pytest.approx(every.std()),
        True,
    )
    assert sex.categories == ("F", "M", "X") and code.categories == ("1", "2", "3") and not code.missing
    assert schema.features == (
        "age", "age is missing", "sex = F", "sex = M", "sex = X", "code = 1", "code = 2", "code = 3",
    )  # fmt: skip
    encoded = schema.encode(one)
    expected = [
        [(30 - 40) / every.std(), 0, 1, 0, 0, 1, 0, 0],
        [(50 - 40) / every.std(), 0, 0, 1, 0, 0, 1, 0],
    ]
    assert torch.allclose(encoded[:2], torch.tensor(expected, dtype=torch.float32))
    assert encoded[2].tolist() == [0, 1, 0, 0, 0, 1, 0, 0]
    assert schema.cells(encoded[2].tolist()) == [("age", "missing"), ("sex", "missing"), ("code", "1")]
    assert schema.told(encoded[2].tolist()) == ["code: 1", "age: missing", "sex: missing"]
    assert schema.told(encoded[0].tolist()) == ["age: 30", "sex: F", "code: 1"]


def test_files_keep_everything(tmp_path: Path) -> None:
    statistics = Statistics.of({"age": [1.0, 2.5, None], "sex": ["F", "ü", "F"]}, "Bonn")
    (tmp_path / "bonn.json").write_text(statistics.to_json())
    assert Statistics.from_json(tmp_path / "bonn.json") == statistics
    schema = Schema.pooled([statistics])
    (tmp_path / "schema.toml").write_text(schema.to_toml("From Bonn."), encoding="utf-8")
    assert Schema.read(tmp_path / "schema.toml") == schema
    input = Tables.by(schema)
    assert from_json(json.loads(json.dumps(to_json(input)))) == input
    with pytest.raises(FedmtError, match=r"schema.toml: these are not the statistics of a table. `fedmt"):
        Statistics.from_json(tmp_path / "schema.toml")
    (tmp_path / "schema.toml").write_text('[[columns]]\nname = "a"\ntype = "number"\n')
    with pytest.raises(FedmtError, match=r"'columns.0.type'.*'numeric' or 'categorical'"):
        Schema.read(tmp_path / "schema.toml")


def test_identifiers_are_no_features() -> None:
    table = {
        "patient_id": [str(i * 7919 % 1000) for i in range(20)],
        "row": list(range(20)),
        "name": [f"patient {i}" for i in range(20)],
        "age": [20 + i * 37 % 61 for i in range(20)],
        "weight": [50 + i / 3 for i in range(20)],
        "sex": ["F", "M"] * 10,
    }
    kinds = {name: column.kind for name, column in Statistics.of(table, "x").columns.items()}
    assert kinds == {
        "patient_id": "identifier", "row": "identifier", "name": "identifier",
        "age": "numeric", "weight": "numeric", "sex": "categorical",
    }  # fmt: skip
    assert [c.name for c in Schema.pooled([Statistics.of(table, "x")]).columns] == ["age", "weight", "sex"]
    assert "patient 3" not in Statistics.of(table, "x").to_json()


def test_tables_that_do_not_fit_each_other() -> None:
    one = Statistics.of({"age": [1.0], "sex": ["F"], "hb": [None]}, "Bonn")
    two = Statistics.of({"age": ["old"], "gender": ["F"], "hb": [1.5]}, "Kiel")
    with pytest.raises(FedmtError) as error:
        Schema.pooled([one, two])
    said = str(error.value)
    assert "column 'age' differs between the centers (Bonn: numeric, Kiel: categorical)" in said
    assert "'sex' differs between the centers (Bonn: categorical, Kiel: not there)" in said
    assert "'gender'" in said and "'hb'" not in said


# -- encoding -------------------------------------------------------------------------------------


def test_cells_that_do_not_fit(tmp_path: Path) -> None:
    schema = Schema.pooled([Statistics.of({"age": [1.0, 3.0], "sex": ["F", "M"]}, "x")])
    path = tmp_path / "a.csv"
    path.write_text("age,sex\n1,F\nold,D\n\n2,D\n")
    with pytest.raises(FedmtError) as error:
        schema.encode(read_frame(path))
    said = str(error.value)
    assert f"{path}, line 3: column 'age' has 'old', expected a number." in said
    assert f"{path}, line 3: column 'sex' has 'D', which the schema does not know." in said
    assert (
        "Its categories are 'F', 'M'; correct" in said and "(2 rows in all)" in said and "line 5" not in said
    )
    with pytest.raises(FedmtError, match=r"no column 'sex', which the schema has; .* 'age', 'sx'"):
        schema.encode({"age": [1.0], "sx": ["F"]})
    far = schema.encode({"age": [1e9, -1e9], "sex": ["F", "M"]})
    assert far[:, 0].tolist() == [10.0, -10.0]


def test_every_spelling_of_a_missing_number(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,none\n1,NAN\nNULL,NULL\nnan,NAN\n3,nan\n")
    statistics = Statistics.of(read_frame(path), "x")
    assert statistics.columns["none"].kind == "empty"
    schema = Schema.pooled([statistics])
    assert [(c.name, c.mean, c.deviation, c.missing) for c in schema.columns] == [("age", 2.0, 1.0, True)]
    assert schema.encode(read_frame(path)).tolist() == [[-1, 0], [0, 1], [0, 1], [1, 0]]


def test_moments_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """Each value would become 0 or NaN."""
    with np.errstate(over="ignore"):
        statistics = Statistics.of({"age": [1.0, 1e308, -1e308]}, "x")
    with pytest.raises(FedmtError, match=r"'age' has the mean -?\d.* and the deviation inf. Both must be"):
        Schema.pooled([statistics])
    (tmp_path / "schema.toml").write_text('[[columns]]\nname = "age"\ntype = "numeric"\nmean = nan\n')
    with pytest.raises(FedmtError, match=r"schema.toml: column 'age' has the mean nan"):
        Schema.read(tmp_path / "schema.toml")


def test_infinite_numbers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("age,sex\n1,F\ninf,M\n-inf,F\n")
    with pytest.raises(FedmtError, match=r"a.csv, line 3: column 'age' is infinite, as in 1 more row, exp"):
        Statistics.of(read_frame(path), "x")
    with pytest.raises(FedmtError, match=r"x, row 1: column 'age' is infinite, expected a number"):
        Statistics.of(frame_of({"age": [2.0, float("inf")]}, "x"), "x")


def test_accents_composed_and_decomposed_are_one_category(tmp_path: Path) -> None:
    for name, form in (("a", "NFC"), ("b", "NFD")):
        text = unicodedata.normalize(form, "m\u00e9thode,label\nk\u00e9ratome,p\nautre,q\n")
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8")
    parts = [Statistics.of(read_frame(tmp_path / f"{n}.csv"), n, {"label"}) for n in "ab"]
    [column] = Schema.pooled(parts).columns
    assert (column.name, column.categories) == ("m\u00e9thode", ("autre", "k\u00e9ratome"))


def test_long_whole_numbers_stay_apart() -> None:
    """As float64, the two identifiers would be one."""
    frame = frame_of({"patient": [2**53, 2**53 + 1], "x": [2**53, 1]}, "x")
    assert frame.text("patient") == ["9007199254740992", "9007199254740993"]
    assert frame.is_numeric("patient") and frame.columns["x"].dtype == np.float64


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [30, None, 50], "sex": ["F", None, "M"], "smokes": [True, False, True]})
    frame["site"] = pandas.Categorical(["u", "v", "u"])
    schema = Schema.pooled([Statistics.of(frame, "Bonn")])
    assert [c.type for c in schema.columns] == ["numeric", "categorical", "numeric", "categorical"]
    encoded = schema.encode(frame)
    assert encoded.shape == (3, len(schema.features)) and encoded[1, :4].tolist() == [0, 1, 0, 0]
    assert torch.equal(encoded, schema.encode({name: list(frame[name]) for name in frame}))
    assert len(frame_of(frame, "x")) == 3


# -- from a table to a model ----------------------------------------------------------------------


def test_the_number_of_a_patient_with_several_rows_is_no_feature(config: Path, command) -> None:
    """As at a center (`fedmt schema --statistics`), so that a rehearsal has the same features."""
    folder = config.parent
    for path in folder.glob("*.csv"):
        first, *rows = path.read_text().splitlines()
        numbered = [f"{number // 3},{row}" for number, row in enumerate(rows)]
        path.write_text("\n".join([f"patient_id,{first}", *numbered]) + "\n")
    status, said, error = command("schema", config)
    assert status == 0, error
    assert "left out as identifiers because of their titles: 'patient_id'" in " ".join((said + error).split())
    assert "patient_id" not in (folder / "schema.toml").read_text()
    kept = ("schema", config, "--out", folder / "kept.toml", "--categorical", "patient_id")
    assert command(*kept)[0] == 0 and "patient_id" in (folder / "kept.toml").read_text()


def test_a_missing_schema_names_the_command(config: Path, command) -> None:
    status, _, said = command("check", config)
    assert status == 2 and "this schema does not exist. `fedmt schema federation.toml` makes it" in said
    config.write_text(CONFIG.replace('schema = "schema.toml"', ""))
    status, _, said = command("check", config)
    assert status == 2 and 'set [tables] schema = "schema.toml"' in said


def test_from_tables_to_a_report(config: Path, command) -> None:
    folder = config.parent
    status, said, error = command("schema", config)
    assert status == 0, error
    assert "2 numeric and 1 categorical columns become 5 features" in said + error
    assert "identifiers" in said + error and "'patient'" in said + error
    status, _, error = command("schema", config)
    assert status == 2 and "schema.toml already exists" in error
    status, said, error = command("check", config)
    assert status == 0, error
    assert "Rows 5; mlp" in said
    status, _, error = command("run", config, "--out", folder / "run")
    assert status == 0, error
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["accuracy"]["kind"] > 0.8
    (folder / "new.csv").write_text("tsh,age,sex\n5,50,F\n2010,50,M\n2010,50,D\n")
    status, said, error = command("predict", folder / "run", folder / "new.csv", "--top", 1)
    rows = [line.split(",") for line in said.splitlines()]
    assert status == 0 and rows[0][0] == "row" and [row[3] for row in rows[1:3]] == ["a", "c"]
    assert "column 'sex' has 'D'" in said
    (folder / "short.csv").write_text("tsh,age\n5,50\n")
    status, said, error = command("predict", folder / "run", folder / "short.csv")
    assert (status, said) == (2, "") and "no column 'sex', which the schema has" in error
    model = fedmt.load(folder / "run")
    assert model.predict({"tsh": [5.0], "age": [50], "sex": ["F"]}).argmax(1).tolist() == [0]
    page = folder / "report.html"
    report([folder / "run"], page, with_images=True)
    assert "tsh: " in page.read_text()
    status, _, error = command("export", folder / "run", "--safetensors", folder / "m.safetensors")
    assert status == 0, error
    again = fedmt.load(folder / "m.safetensors")
    assert again.input == model.input


def test_statistics_from_sites_give_the_same_schema(config: Path, command) -> None:
    folder = config.parent
    assert command("schema", config)[0] == 0
    bonn, reference = folder / "bonn.json", folder / "reference.json"
    for table, out, label in (("bonn.csv", bonn, "group"), ("reference.csv", reference, "label")):
        arguments = ("schema", "--statistics", folder / table, "--out", out, "--label-column", label)
        assert command(*arguments)[0] == 0
    assert "p1-3" not in bonn.read_text()
    assert command("schema", "--pool", reference, bonn, "--out", folder / "again.toml")[0] == 0
    assert Schema.read(folder / "again.toml") == Schema.read(folder / "schema.toml")


def test_statistics_reveal_no_column_by_a_slip(config: Path, command) -> None:
    """A wrong --label-column or --ignore made features of labels, and revealed what should stay."""
    folder = config.parent
    text = (folder / "bonn.csv").read_text().splitlines()
    lines = [f"{line},{'mrn' if i == 0 else f'P{i // 20}'}" for i, line in enumerate(text)]
    (folder / "bonn.csv").write_text("\n".join(lines) + "\n")
    out = folder / "bonn.json"
    sites = ("schema", "--statistics", folder / "bonn.csv", "--out", out)
    status, _, said = command(*sites)
    assert status == 2 and "bonn.csv: no column 'label'; the columns are" in said and not out.exists()
    status, _, said = command(*sites, "--label-column", "group", "--ignore", "sxe")
    assert status == 2 and "--ignore sxe: no table has this column" in said and "mean 'sex'?" in said
    status, printed, _ = command(*sites, "--label-column", "group", "--ignore", "sex")
    assert status == 0 and "because of their titles: 'patient', 'mrn'" in printed
    assert not {"mrn", "sex", "group"} & set(Statistics.from_json(out).columns)
    assert command("schema", config, "--ignore", "sxe")[0] == 2
    pooled = ("schema", "--pool", out, "--out", folder / "pooled.toml", "--ignore")
    assert command(*pooled, "agee")[0] == 2 and command(*pooled, "age")[0] == 0
    assert "age" not in [column.name for column in Schema.read(folder / "pooled.toml").columns]


@pytest.mark.parametrize("wrong", [{"count": -5}, {"variance": -1.0}, {"mean": float("nan")}])
def test_statistics_that_no_table_has(tmp_path: Path, wrong: dict[str, float]) -> None:
    raw = json.loads(Statistics.of({"age": [1.0, 2.0]}, "x").to_json())
    raw["columns"]["age"] |= wrong
    (tmp_path / "x.json").write_text(json.dumps(raw))
    with pytest.raises(FedmtError, match=r"x.json: these are not the statistics of a table"):
        Statistics.from_json(tmp_path / "x.json")


def test_a_center_elsewhere_reads_by_the_schema_it_was_sent(config: Path, command) -> None:
    assert command("schema", config)[0] == 0
    federation, _ = build_federation(load_config(config))
    sent = from_json(json.loads(json.dumps(to_json(federation.input))))
    (config.parent / "schema.toml").unlink()
    options = sent.reading(config.parent)
    values, input = options.samples(read_frame(config.parent / "bonn.csv"), {"group"})
    assert torch.equal(values, federation.centers[0].values) and input == federation.input


def test_init_recognizes_tables(config: Path, command, monkeypatch: pytest.MonkeyPatch) -> None:
    config.unlink()
    monkeypatch.chdir(config.parent)
    status, said, error = command("init", ".", "--yes")
    assert status == 0, error
    text = config.read_text()
    assert 'input = "tables"' in text and 'label_column = "group"' in text and 'backbone = "mlp"' in text
    assert "Numeric columns: 'tsh', 'age'" in said + error and "identifiers" in said + error
    assert [c.name for c in Schema.read(config.parent / "schema.toml").columns] == ["tsh", "age", "sex"]
    status, said, error = command("check", config)
    assert status == 0, error
    (config.parent / "schema.toml").unlink()
    config.unlink()
    (config.parent / "bonn.csv").write_text("tsh,sex,group\n" + "1,F,a\n2,M,other\n" * 5)
    status, _, error = command("init", ".", "--yes")
    assert (
        status == 2
        and "column 'age' differs between the centers (reference: numeric, bonn: not there)" in error
    )
    assert not config.exists() and not (config.parent / "schema.toml").exists()
