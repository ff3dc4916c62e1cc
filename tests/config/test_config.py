"""The config: its valid content, and that each mistake is named with file, line and key."""

import pickle
from pathlib import Path

import pytest

from fedmt.config import Config, build_method, build_strategy, dump_config, load_config, parse_config
from fedmt.core.errors import FedmtError
from fedmt.inputs.images.augment import Augmentation
from fedmt.methods import FedMT, Single, Training

BENCHMARK = """\
seed = 3
[method]
name = "fedmt"
xi = 0.5
[training]
rounds = 4
learning_rate = 0.05
[augmentation]
operations = ["rotate", "shear_x"]
crop = 0.1
[benchmark]
data = { source = "fashion_mnist" }
wanted = "garment"
spaces = { department = 2, layer = 1 }
per_class = 2
samples = 30
"""

FEDERATION = """\
wanted = "fine"
[images]
size = [8, 12]
[spaces]
fine = ["a", "b"]
coarse = ["x", "y"]
interior = ["x", "y"]
[correspondences]
coarse = "tables/coarse.csv"
[reference]
source = "folder"
path = "reference"
[[centers]]
name = "first"
source = "npz"
path = "first.npz"
space = "coarse"
[[centers]]
name = "second"
source = "manifest"
path = "/data/second.csv"
space = "interior"
correspondence = { a = "x", b = { x = 0.25, y = 0.75 } }
[[tests]]
source = "folder"
path = "../test"
"""


@pytest.fixture
def load(tmp_path):
    """Writes a text to a file and loads it."""

    def load(text: str, *overrides: str) -> Config:
        path = tmp_path / "federation.toml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, list(overrides))

    return load


@pytest.fixture
def error_of(load):
    def error_of(text: str, *overrides: str) -> str:
        with pytest.raises(FedmtError) as error:
            load(text, *overrides)
        return str(error.value)

    return error_of


def line_of(text: str, part: str) -> int:
    """The number of the only line that contains `part`."""
    (number,) = [i for i, line in enumerate(text.splitlines(), 1) if part in line]
    return number


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must stand once in the text"
    return text.replace(old, new)


# -- what a config says -----------------------------------------------------------------------------


def test_defaults():
    config = parse_config({"benchmark": {"data": {"source": "fashion_mnist"}, "wanted": "garment",
                                         "spaces": {"layer": 1}, "per_class": 3}})  # fmt: skip
    assert (config.seed, config.device, config.precision, config.checkpoint_every) == (0, "auto", "auto", 1)
    training = Training(smallest_reference_batch=50)  # images, from random weights
    assert config.training == training and config.augmentation == Augmentation()
    assert build_method(config) == FedMT(training)
    assert config.model.backbone == "resnet18" and config.model.weights is None
    assert config.benchmark is not None
    assert (config.benchmark.split, config.benchmark.gamma, config.benchmark.samples) == ("iid", 0.1, None)
    assert config.images.size is None and config.images.channels is None


def test_values_arrive(load):
    config = load(BENCHMARK)
    method = build_method(config)
    assert isinstance(method, FedMT) and method.xi == 0.5
    assert method.training == Training(rounds=4, learning_rate=0.05, smallest_reference_batch=50)
    assert method.augmentation == Augmentation(operations=("rotate", "shear_x"), crop=0.1)
    assert config.seed == 3
    single = build_method(load(changed(BENCHMARK, 'name = "fedmt"\nxi = 0.5', 'name = "single"')))
    assert type(single) is Single and single.training.rounds == 4


def test_the_paper_preset_and_own_values_before_it(load):
    paper = load('preset = "paper"\n' + changed(BENCHMARK, "rounds = 4\nlearning_rate = 0.05\n", ""))
    method = build_method(paper)
    assert isinstance(method, FedMT)
    # The printed values, where they differ from the defaults. xi is set by the config itself.
    assert (method.estimator, method.pseudo_labels, method.projection) == ("counting", "plain", "confident")
    assert method.lambda_2 == 1 / 16 and method.xi == 0.5
    training = paper.training
    assert (training.rounds, training.learning_rate, training.batch_size) == (200, 0.03, 10)
    own = load(
        'preset = "paper"\n' + changed(BENCHMARK, "xi = 0.5", 'estimator = "em"'), "training.batch_size=7"
    )
    method = build_method(own)
    assert isinstance(method, FedMT) and (method.estimator, method.xi) == ("em", 0.95)
    assert (own.training.rounds, own.training.learning_rate, own.training.batch_size) == (4, 0.05, 7)
    assert own.training.clip == 1.0  # from the preset, alongside the config's own value


def test_a_preset_reaches_a_config_without_tables():
    raw = {"preset": "paper", "benchmark": {"data": {"source": "fashion_mnist"}, "wanted": "garment",
                                            "spaces": {"layer": 1}, "per_class": 3}}  # fmt: skip
    before = repr(raw)
    assert parse_config(raw).training.learning_rate == 0.03
    assert repr(raw) == before  # the caller's dictionaries are not changed


def test_the_preset_of_another_method_does_not_disturb(load):
    """`paper` sets FedMT's options. Single has none of them, but still takes its training from the preset."""
    text = 'preset = "paper"\n' + changed(BENCHMARK, 'name = "fedmt"\nxi = 0.5', 'name = "single"')
    assert build_method(load(text)).training.clip == 1.0


def test_relative_paths_are_relative_to_the_config(load, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load(FEDERATION, "model.weights=resnet.pth", "images.cache=cache")
    assert config.reference is not None
    assert config.reference.path == tmp_path / "reference"
    assert [c.path for c in config.centers] == [tmp_path / "first.npz", Path("/data/second.csv")]
    assert config.tests[0].path == tmp_path.parent / "test"
    assert config.correspondences["coarse"] == tmp_path / "tables" / "coarse.csv"
    assert config.model.weights == tmp_path / "resnet.pth"
    assert config.images.cache == tmp_path / "cache"
    # This also holds if the path of the config itself is relative.
    assert load_config(Path("../federation.toml")).reference.path == tmp_path / "reference"


def test_a_home_directory_is_found(load):
    config = load(changed(FEDERATION, "/data/second.csv", "~/second.csv"))
    assert config.centers[1].path == Path.home() / "second.csv"


# -- --set -------------------------------------------------------------------------------------------


def test_overrides(load):
    config = load(
        BENCHMARK,
        "seed=7",
        "training.learning_rate=1e-3",
        "device=cpu",
        'precision="float32"',
        'augmentation.operations=["identity", "rotate"]',
        "augmentation.flip=false",
        "benchmark.data.split=train",
        "benchmark.spaces={ layer = 3 }",
        "images.size=[8, 9]",
        "method.a = 0.5",
    )
    assert (config.seed, config.device, config.precision) == (7, "cpu", "float32")
    assert config.training.learning_rate == 1e-3 and config.training.rounds == 4
    assert config.augmentation.operations == ("identity", "rotate") and config.augmentation.flip is False
    assert config.benchmark is not None
    assert config.benchmark.data.split == "train" and config.benchmark.data.source == "fashion_mnist"
    assert config.benchmark.spaces == {"layer": 3}
    assert config.images.size == (8, 9)
    method = build_method(config)
    assert isinstance(method, FedMT) and (method.a, method.xi) == (0.5, 0.5)


def test_the_last_override_counts_and_goes_before_a_preset(load):
    config = load('preset = "paper"\n' + BENCHMARK, "training.clip=2", "training.clip=3")
    assert config.training.clip == 3
    assert load(BENCHMARK, "preset=paper").training.clip == 1.0


def test_a_value_with_an_equals_sign(load):
    assert load(FEDERATION, "images.cache=a=b").images.cache.name == "a=b"


@pytest.mark.parametrize("item", ["training.rounds", "=3", "", " =3"])
def test_an_override_of_a_bad_form(error_of, item):
    message = error_of(BENCHMARK, item)
    assert f"--set {item}" in message and "key=value" in message


def test_an_override_below_a_value(error_of):
    message = error_of(BENCHMARK, "seed.x=3")
    assert "--set seed.x=3" in message and "'seed' is not a table" in message


def test_an_override_with_an_unknown_key(error_of):
    message = error_of(BENCHMARK, "training.rouns=3")
    assert "training.rouns" in message and "Did you mean 'rounds'?" in message


@pytest.mark.parametrize(("item", "key"), [("training.rounds=0", "training.rounds"), ("seed=x", "seed")])
def test_a_bad_override_is_not_blamed_on_a_line_of_the_file(error_of, item, key):
    """The line in the file has a good value, and the mistake is on the command line."""
    message = error_of(BENCHMARK, item)
    assert key in message and ", line " not in message


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written", "key", "known"),
    [
        (changed(BENCHMARK, "seed = 3", "sed = 3"), "sed = 3", "sed", "seed"),
        (changed(BENCHMARK, "rounds = 4", "rouns = 4"), "rouns", "training.rouns", "rounds"),
        (changed(BENCHMARK, "xi = 0.5", "lamda_1 = 0.5"), "lamda_1", "method.lamda_1", "lambda_1"),
        (changed(BENCHMARK, "crop = 0.1", "corp = 0.1"), "corp", "augmentation.corp", "crop"),
        (changed(BENCHMARK, "crop = 0.1", "strenght = 1"), "strenght", "augmentation.strenght", "strength"),
        (changed(BENCHMARK, "samples = 30", "sampels = 30"), "sampels", "benchmark.sampels", "samples"),
        (
            changed(BENCHMARK, '"fashion_mnist" }', '"fashion_mnist", spilt = "train" }'),
            "spilt",
            "benchmark.data.spilt",
            "split",
        ),
        (changed(FEDERATION, 'path = "/data', 'pth = "/data'), "pth", "centers.1.pth", "path"),
        (changed(FEDERATION, 'path = "first', 'pth = "first'), "pth", "centers.0.pth", "path"),
        (changed(FEDERATION, "size = [8", "sise = [8"), "sise", "images.sise", "size"),
        (changed(FEDERATION, 'path = "../', 'paths = "../'), "paths", "tests.0.paths", "path"),
        (changed(FEDERATION, 'path = "ref', 'roots = "ref'), "roots", "reference.roots", "root"),
        (FEDERATION + "[model]\nmaxpool = true\n", "maxpool", "model.maxpool", "max_pool"),
    ],
)
def test_an_unknown_key(error_of, tmp_path, text, written, key, known):
    message = error_of(text)
    assert f"{tmp_path / 'federation.toml'}, line {line_of(text, written)}: unknown key '{key}'." in message
    assert f"Did you mean '{known}'?" in message


def test_an_option_of_another_method_is_unknown(error_of):
    text = changed(BENCHMARK, 'name = "fedmt"', 'name = "single"')
    message = error_of(text)
    assert f"line {line_of(text, 'xi = 0.5')}" in message and "unknown key 'method.xi'" in message


def test_a_wrong_choice_of_correspondence_is_not_taken_for_a_matrix(error_of):
    message = error_of(changed(BENCHMARK, "xi = 0.5", 'correspondence = "estimate"'))
    assert "method.correspondence" in message and "'estimated'" in message and "CSV" not in message


PRIORS = "input should be 'estimated', 'uniform' or 'ignored', or a table {name = value}"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "method.prior",
            '"unifrom"',
            f"{PRIORS} (got 'unifrom'). Did you mean 'uniform'?",
        ),
        ("method.prior", "3", f"{PRIORS} (got 3)."),
        ("method.prior", "true", f"{PRIORS} (got true)."),
        ("method.prior", "[1, 2]", f"{PRIORS}."),
        ("method.prior.coat", "true", "input should be a valid number (got true)."),
        ("method.prior.coat", '"much"', "input should be a valid number (got 'much')."),
        (
            "training.batch_norm",
            '"statc"',
            "input should be 'static', 'static-reference' or 'running' (got 'statc'). Did you mean 'static'?",
        ),
        ("model.head", "3", "input should be true or false, or text (got 3)."),
        ("model.max_pool", "3", "input should be true or false (got 3)."),
        ("training.rounds", '"many"', "input should be a valid integer (got 'many')."),
        ("training", "3", "input should be a table (got 3)."),
        ("benchmark.data", "3", "input should be a table (got 3)."),
        ("benchmark.data.path", "3", "input should be a path (got 3)."),
    ],
)
def test_a_choice_that_is_none_is_told_in_one_line(error_of, key, value, said):
    """Pydantic has one line for each alternative, and its own words for them."""
    assert error_of(BENCHMARK, f"{key}={value}") == f"--set {key}: {said}"


def test_the_paper_preset_spells_every_option_out():
    """Otherwise the preset would change whenever a default does."""
    import dataclasses

    from fedmt.aggregation import FedAvgM
    from fedmt.methods import METHODS, Training

    def names(options, but=()):
        return {f.name for f in dataclasses.fields(options)} - set(but)

    for method in METHODS.values():
        tables = method.presets["paper"]
        assert set(tables["training"]) == names(Training)
        own = names(method, ("training", "augmentation", "privacy", "correspondence"))
        assert set(tables.get("method", {})) == own
        if method.schedule.centers_train:
            assert set(tables["aggregation"]) == names(FedAvgM) | {"name"}


@pytest.mark.parametrize("name", ["fedmt", "single", "fedtrans", "fedrep", "semifl"])
def test_the_paper_preset_knows_every_method(load, name):
    text = changed(BENCHMARK, '[method]\nname = "fedmt"\nxi = 0.5', f'[method]\nname = "{name}"')
    config = load('preset = "paper"\n' + text)
    assert build_method(config).name == name
    assert config.training.learning_rate == 0.05  # the config itself takes precedence
    assert config.training.clip == 1.0 and config.training.batch_size == 10


def test_several_mistakes_are_all_named(error_of):
    text = changed(changed(BENCHMARK, "seed = 3", 'seed = "x"'), "rounds = 4", "rouns = 4")
    first, second = error_of(text).splitlines()
    assert "training.rouns" in first and "line 1: seed" in second


@pytest.mark.parametrize(
    ("text", "written", "key", "given"),
    [
        (changed(BENCHMARK, "seed = 3", 'seed = "x"'), "seed", "seed", "'x'"),
        (changed(BENCHMARK, "seed = 3", "seed = -1"), "seed", "seed", "-1"),
        (changed(BENCHMARK, "rounds = 4", "rounds = 1.5"), "rounds", "training.rounds", "1.5"),
        (changed(BENCHMARK, "xi = 0.5", 'xi = "high"'), "xi", "method.xi", "'high'"),
        (changed(BENCHMARK, "xi = 0.5", 'estimator = "EM"'), "estimator", "method.estimator", "'em'"),
        (changed(BENCHMARK, "crop = 0.1", 'strength = "big"'), "strength", "augmentation.strength", "'big'"),
        (changed(BENCHMARK, "samples = 30", "samples = 0"), "samples", "benchmark.samples", "0"),
        (changed(BENCHMARK, "samples = 30", "gamma = 1.0"), "gamma", "benchmark.gamma", "1.0"),
        (
            changed(BENCHMARK, '"fashion_mnist"', '"fashionmnist"'),
            "data =",
            "benchmark.data.source",
            "'fashion_mnist'",
        ),
        (changed(FEDERATION, "[8, 12]", "[8, 12, 3]"), "size", "images.size", ""),
        (
            changed(FEDERATION, 'interior = ["x", "y"]', "interior = 3"),
            "interior = 3",
            "spaces.interior",
            "3",
        ),
        (changed(FEDERATION, 'name = "second"', "name = 2"), "name = 2", "centers.1.name", "2"),
    ],
)
def test_a_value_of_the_wrong_type(error_of, tmp_path, text, written, key, given):
    message = error_of(text)
    assert f"{tmp_path / 'federation.toml'}, line {line_of(text, written)}: {key}: " in message
    assert given in message
    assert "pathlib" not in message and "<class" not in message


@pytest.mark.parametrize(
    ("value", "written"), [("3", "coarse = 3"), ('{ a = ["x"], b = "y" }', "coarse = {")]
)
def test_a_correspondence_of_the_wrong_type(error_of, value, written):
    text = changed(FEDERATION, '"tables/coarse.csv"', value)
    message = error_of(text)
    assert f"line {line_of(text, written)}: correspondences.coarse" in message
    assert "<class" not in message  # users see no Python in a message


@pytest.mark.parametrize(
    ("text", "header", "key"),
    [
        (changed(BENCHMARK, "data = ", "# "), "[benchmark]", "benchmark.data"),
        (changed(BENCHMARK, "wanted = ", "# "), "[benchmark]", "benchmark.wanted"),
        (changed(FEDERATION, 'name = "second"\n', ""), None, "centers.1.name"),
        (changed(FEDERATION, 'source = "manifest"\n', ""), None, "centers.1.source"),
    ],
)
def test_a_missing_key(error_of, text, header, key):
    message = error_of(text)
    # For a center, it is the line of its own [[centers]] table, here the second.
    headers = [i for i, line in enumerate(text.splitlines(), 1) if line == (header or "[[centers]]")]
    assert f"line {headers[-1]}: '{key}' is missing" in message


@pytest.mark.parametrize(
    ("new", "key", "said"),
    [
        ("", "per_class", "benchmark.per_class: missing. Set the number"),
        ("per_class = 2\nreference_share = 0.1", "reference_share", "Keep only one of the two"),
        ("reference_share = 1.5", "reference_share", "less than 1"),
        ("per_class = 2\ntest_per_class = 0", "test_per_class", "greater than or equal to 1"),
        ("per_class = 2\naugment_to = [[20, 40]]", "augment_to", "benchmark.samples sets"),
        ("per_class = 2\nat_most = { coat = 0 }", "at_most", "at_most.coat"),
        (
            'per_class = 2\ntest = { source = "fashion_mnist" }\ntest_per_class = 3',
            "test_per_class",
            "benchmark.test also",
        ),
    ],
)
def test_what_a_benchmark_cannot_be(error_of, new, key, said):
    text = changed(BENCHMARK, "per_class = 2", new)
    message = error_of(text)
    written = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
    line = line_of(text, written[0] if written else "[benchmark]")
    assert f"line {line}: benchmark.{key}" in message and said in message


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("[[500, 900], [200, 600]]", "[200, 600] comes after 500"),
        ("[[500, 400]]", "[500, 400] would fill"),
        ("[[500]]", "benchmark.augment_to.0.1"),
    ],
)
def test_rules_for_copies_that_make_no_sense(error_of, pairs, said):
    text = changed(BENCHMARK, "samples = 30", f"augment_to = {pairs}")
    message = error_of(text)
    assert f"line {line_of(text, 'augment_to')}: " in message and said in message


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        ("rounds = 4", "rounds = 0", "training.rounds", "expected at least 1"),
        ("rounds = 4", "momentum = 1.0", "training.momentum", "less than 1"),
        ("rounds = 4", "learning_rate = nan", "training.learning_rate", "nan"),
        ("xi = 0.5", "xi = 2", "method.xi", "0 <= xi < 1"),
        ("xi = 0.5", "a = 0", "method.a", "more than 0"),
        ("crop = 0.1", "cutout = 1.5", "augmentation.cutout", "0 to 1"),
        ('"rotate"', '"rotat"', "augmentation.operations", "Did you mean 'rotate'?"),
        ('"rotate", "shear_x"', "", "augmentation.operations", "identity"),
        ('name = "fedmt"', 'name = "fedtm"', "method.name", "Did you mean 'fedmt'?"),
        ('name = "fedmt"', 'name = ["fedmt"]', "method.name", "'single'"),
        ("seed = 3", 'preset = "papr"', "preset", "Did you mean 'paper'?"),
        ("seed = 3", 'preset = ["paper"]', "preset", "paper"),
    ],
)
def test_a_bad_option(error_of, tmp_path, old, new, key, said):
    text = changed(BENCHMARK, "learning_rate = 0.05\n", "") if "learning_rate" in new else BENCHMARK
    text = changed(text, old, new)
    message = error_of(text)
    line = line_of(text, new or "operations")
    assert f"{tmp_path / 'federation.toml'}, line {line}: {key}: " in message
    assert said in message


def test_training_inside_method_is_sent_to_its_own_table(error_of):
    message = error_of(changed(BENCHMARK, "xi = 0.5", "training = { rounds = 3 }"))
    assert "line 4" in message and "[training]" in message


@pytest.mark.parametrize("key", ["wanted", "reference", "centers"])
def test_part_of_a_federation_is_missing(error_of, tmp_path, key):
    text = {
        "wanted": changed(FEDERATION, 'wanted = "fine"\n', ""),
        "reference": changed(FEDERATION, '[reference]\nsource = "folder"\npath = "reference"\n', ""),
        "centers": FEDERATION[: FEDERATION.index("[[centers]]")],
    }[key]
    message = error_of(text)
    assert str(tmp_path / "federation.toml") in message and f"missing '{key}'" in message
    assert "[benchmark]" in message


def test_neither_benchmark_nor_federation(error_of):
    assert "missing 'wanted', 'reference', 'centers'" in error_of("seed = 1\n")


@pytest.mark.parametrize(
    "addition",
    ['[[tests]]\nsource = "fashion_mnist"\n', '[[centers]]\nname = "a"\nsource = "npz"\n',
     '[reference]\nsource = "npz"\n'],
)  # fmt: skip
def test_both_benchmark_and_federation(error_of, addition):
    assert "both [benchmark] and a federation" in error_of(BENCHMARK + addition)


def test_not_toml(error_of, tmp_path):
    message = error_of("seed = 1\nrounds =\n")
    assert str(tmp_path / "federation.toml") in message and "line 2" in message


def test_not_there_or_not_text(tmp_path):
    for path, content in ((tmp_path / "none.toml", None), (tmp_path / "photo.toml", b"\xff\xd8\xff\xe0")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FedmtError, match=str(path)):
            load_config(path)
    with pytest.raises(FedmtError, match=str(tmp_path)):
        load_config(tmp_path)


def test_a_byte_order_mark_as_windows_editors_write_it(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_bytes(b"\xef\xbb\xbf" + BENCHMARK.encode())
    assert load_config(path).seed == 3


# -- the resolved config -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BENCHMARK, FEDERATION, 'preset = "paper"\n' + BENCHMARK])
def test_a_dump_says_the_same_and_is_stable(load, tmp_path, text):
    config = load(text)
    dumped = dump_config(config)
    # The file is moved, so paths that were relative to the config's folder must have become absolute.
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "config.toml"
    path.write_text(dumped)
    again = load_config(path)
    assert build_method(again) == build_method(config)
    assert build_strategy(again) == build_strategy(config)
    # The dump writes out defaults that the original may omit, so these two tables may contain more.
    own = {"method", "aggregation"}
    assert again.model_dump(exclude=own) == config.model_dump(exclude=own)
    assert dump_config(again) == dumped
    assert load_config(path) == again


def test_a_dump_spells_out_the_defaults(load):
    dumped = dump_config(load(BENCHMARK))
    for part in ('estimator = "em"', "momentum = 0.5", "cutout = 0.5", 'split = "iid"'):
        assert part in dumped


# -- [aggregation] -------------------------------------------------------------------------------------------


def with_aggregation(*lines: str, method: str = 'name = "fedmt"') -> str:
    text = changed(BENCHMARK, 'name = "fedmt"\nxi = 0.5', method)
    return changed(text, "[benchmark]", "\n".join(["[aggregation]", *lines, "[benchmark]"]))


@pytest.mark.parametrize(
    ("lines", "where", "key", "said"),
    [
        (
            ['name = "fedavgg"'],
            "fedavgg",
            "aggregation.name",
            "no strategy 'fedavgg'. Did you mean 'fedavg'?",
        ),
        (["name = 3"], "name = 3", "aggregation.name", "Known: 'fedavg'"),
        (['name = "fedprox"', "mu = -1"], "mu", "aggregation.mu", "expected"),
        (['name = "fedprox"', 'mu = "much"'], "mu", "aggregation.mu", "number"),
        (["momentum = 1.0"], "momentum = 1.0", "aggregation.momentum", "less than 1"),
        (['name = "fedadam"', "tau = 0"], "tau", "aggregation.tau", "more than 0"),
        (['name = "fedyogi"', "beta_2 = 1.0"], "beta_2", "aggregation.beta_2", "less than 1"),
        (["rate = -1"], "rate = -1", "aggregation.rate", "more than 0"),
        (['name = "fedbn"'], "fedbn", "aggregation.name", "set training.batch_norm = 'running'"),
    ],
)
def test_a_bad_aggregation(error_of, tmp_path, lines, where, key, said):
    text = with_aggregation(*lines)
    message = error_of(text)
    assert f"{tmp_path / 'federation.toml'}, line {line_of(text, where)}: {key}: " in message
    assert said in message


@pytest.mark.parametrize(
    ("lines", "key", "said"),
    [
        (['name = "fedprox"', "m = 0.1"], "m", "Did you mean 'mu'?"),
        (['name = "fedavg"', "momentum = 0.1"], "momentum", "'rate'"),
        (['name = "scaffold"', "color = 1"], "color", "Known: 'rate'"),
    ],
)
def test_an_unknown_aggregation_option(error_of, tmp_path, lines, key, said):
    """An option of another strategy is also unknown."""
    text = with_aggregation(*lines)
    message = error_of(text)
    line = line_of(text, lines[-1])
    assert f"{tmp_path / 'federation.toml'}, line {line}: unknown key 'aggregation.{key}'." in message
    assert said in message


@pytest.mark.parametrize(
    ("method", "strategy", "training", "said"),
    [
        ("single", "fedprox", "", "averages nothing. Remove [aggregation]"),
        ("single", "fedavg", "", "averages nothing. Remove [aggregation]"),
        ("fedtrans", "fedbn", 'batch_norm = "running"', "se another strategy"),
        ("fedrep", "fedbn", "", "set training.batch_norm = 'running'"),
    ],
)
def test_a_strategy_that_does_not_go_with_the_method(error_of, tmp_path, method, strategy, training, said):
    text = with_aggregation(f'name = "{strategy}"', method=f'name = "{method}"')
    text = changed(text, "rounds = 4", f"rounds = 4\n{training}")
    message = error_of(text)
    line = line_of(text, f'name = "{strategy}"')
    assert f"{tmp_path / 'federation.toml'}, line {line}: aggregation.name: '{strategy}'" in message
    assert said in message


def test_a_strategy_that_is_set_on_the_command_line_is_blamed_there(error_of):
    assert error_of(BENCHMARK, "aggregation.name=fedbn").startswith("--set aggregation.name: 'fedbn'")


def test_fedbn_with_running_batch_norm_is_taken(load):
    text = changed(with_aggregation('name = "fedbn"'), "rounds = 4", 'rounds = 4\nbatch_norm = "running"')
    assert build_strategy(load(text)).keeps_batch_norm


def test_how_long_to_wait_may_change_when_a_run_goes_on(load):
    """What is sent may not change: it is in the dump, which a resumed run must match."""
    plain = dump_config(load(BENCHMARK))
    patient = load(BENCHMARK + "\n[deployment]\nmin_centers = 2\nwait = 5\ntimeout = 7\n")
    assert patient.deployment is not None and patient.deployment.timeout == 7
    assert dump_config(patient) == plain
    assert 'wire = "bfloat16"' in dump_config(load(BENCHMARK + '\n[deployment]\nwire = "bfloat16"\n'))


def test_a_config_can_be_sent_to_another_process(load) -> None:
    config = load(FEDERATION, "images.size=12")
    again = pickle.loads(pickle.dumps(config))
    assert again == config and type(again) is type(config) and again._where == config._where
    assert dump_config(again) == dump_config(config)


def test_the_resolved_text_is_that_of_earlier_versions(load) -> None:
    """A run folder is resumed only if the resolved config is identical, letter for letter."""
    text = dump_config(load(FEDERATION))
    tables = [line for line in text.splitlines() if line.startswith("[") and not line.startswith("[[")]
    assert tables.index("[model]") + 1 == tables.index("[images]")
    assert "input" not in text.split("[")[0] and "metrics" not in text.split("[")[0]


def test_where_samples_lie_may_change_when_a_run_goes_on(load) -> None:
    prefetching = load("prefetch = true\n" + BENCHMARK)
    assert prefetching.prefetch is True
    assert dump_config(prefetching) == dump_config(load(BENCHMARK))
