"""The sentences of docs/results/paper.md agree with the raw files."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "results" / "paper.md"
T, E = "FedMT (T)", "FedMT (E)"
COARSE = "accuracy.coarse"


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join(PAGE.read_text().split())


@pytest.fixture(scope="module")
def found(tables):
    """The held-out accuracies of the search."""
    rows = tables.rows("baselines_search")
    return {row: tables.value("baselines_search", row, "held out") for row in rows}


def rows_of(tables, name, columns, metric="accuracy.fine"):
    """Each row's figures in these columns."""
    return {row: [tables.value(name, row, c, metric) for c in columns] for row in tables.rows(name)}


def printed(tables, row, column):
    return tables.printed("main", row, column, "accuracy.fine")[0]


def test_both_versions_of_fedmt_and_the_paper(tables, page):
    figures = rows_of(tables, "main", (T, E))
    above = [given - printed(tables, row, T) for row, (given, _) in figures.items()]
    assert f"it is {-above[0]:.1f} points below it at n = 5" in page
    assert f"and {min(above[1:]):.1f} to {max(above[1:]):.1f} points above it elsewhere" in page
    longer = tables.value("paper_network", "n = 5", T)
    assert f"At n = 5, it is still {57.12 - longer:.1f} points below the paper after 150 rounds" in page
    below = [given - estimated for given, estimated in figures.values()]
    assert f"{below[0]:.1f} points below it at n = 5, where the paper has {57.12 - 46.41:.1f}" in page
    assert f"at most {max(below[1:]):.1f} below from n = 10 on" in page


def test_the_lead_over_the_baselines(tables, page):
    for column in ("Single", "FedTrans", "FedRep", "SemiFL", "Single (ImageNet)", "FedRep (ImageNet)"):
        for row, (ours, theirs) in rows_of(tables, "main", (T, column)).items():
            larger = ours - theirs > printed(tables, row, T) - printed(tables, row, column)
            assert larger == (column == "SemiFL"), (row, column)
    single, fedrep, fedmt = (tables.value("main", "n = 25", c) for c in ("Single", "FedRep", T))
    assert f"{fedmt - fedrep:.0f} points above FedRep, where the paper has {66.70 - 26.53:.0f}." in page
    assert f"Single reaches {single:.1f}, where the paper has 17.7" in page


def test_semifl(tables, page):
    figures = rows_of(tables, "main", ("SemiFL", "Single"))
    weaker = [printed(tables, row, "SemiFL") - semifl for row, (semifl, _) in figures.items()]
    assert round(min(weaker)) == 1 and round(max(weaker)) == 6
    assert "because SemiFL is one to six points weaker here" in page
    assert f"and {weaker[0]:.1f} below the paper's figure" in page
    semifl, single = figures["n = 5"]
    assert 0.4 < semifl - single < 0.6  # "half a point above Single"
    for least in tables.finished("main", "n = 5", "SemiFL"):
        right = [v for v in least.series["pseudo_label_accuracy"] if v is not None]
        assert max(right) < 0.51 and 0.29 < right[-1] < 0.37  # "at best half", "about a third"
    most = tables.value("main", "n = 25", "SemiFL", "pseudo_label_accuracy")
    assert f"At n = 25, {most:.0f}% are" in page


def test_what_makes_the_baselines_stronger(tables, found, page):
    views = found["Single: the recipe"] - found["Single: weak views"]
    assert f"gain {views:.0f} points over weak views in Single" in page
    fedrep, fedtrans = (
        found[f"{m}, ResNet18: the recipe"] - found[f"{m}, ResNet18: weak views"]
        for m in ("FedRep", "FedTrans")
    )
    assert f"with ResNet18 only {fedrep:.1f} in FedRep and nothing in FedTrans" in page and fedtrans < 0.6
    epochs = found["FedRep: 16 reference epochs"] - found["FedRep: the recipe"]
    assert f"instead of four gain FedRep {epochs:.1f} points" in page
    gains = [
        found[f"{m}: the recipe"] - found[f"{m}, ResNet18: the recipe"]
        for m in ("FedRep", "FedTrans", "SemiFL")
    ]
    assert "ResNet9 gains FedRep {:.0f} points, FedTrans {:.0f} and SemiFL {:.0f} over".format(*gains) in page
    longer = tables.value("paper_network", "n = 25", "FedRep")
    assert f"FedRep reaches {longer:.1f}, where the paper has 26.5" in page


def test_the_search(found, page):
    start, eight, sixteen = (
        found[f"FedRep: {words}"] for words in ("the recipe", "8 reference epochs", "16 reference epochs")
    )
    assert f"**FedRep** gains {eight - start:.0f} points with eight epochs" in page
    assert f"and another {sixteen - eight:.1f} with sixteen" in page
    assert found["FedRep: 32 reference epochs"] < sixteen  # "nothing more"
    assert found["SemiFL: xi 0.4"] - found["SemiFL: the recipe"] < 1  # "gains less than a point"
    assert f"0.8 costs {found['SemiFL: the recipe'] - found['SemiFL: xi 0.8']:.0f} points" in page
    tuned = [
        found["FedTrans: the recipe"] - found[f"FedTrans: {other}"]
        for other in ("fine-tuning at 0.03", "300 epochs of fine-tuning")
    ]
    assert f"for longer costs {min(tuned):.0f} to {max(tuned):.0f} points" in page
    rate = found["Single (ImageNet): rate 0.01"] - found["Single (ImageNet): rate 0.03, the default"]
    assert page.count(f"gains {rate:.1f} points") == 2
    assert found["Single (ImageNet): rate 0.003"] < found["Single (ImageNet): rate 0.01"]  # "no better"
    for method, others in {"FedTrans": ("rate 0.01",), "FedRep": ("rate 0.01", "8 reference epochs")}.items():
        for other in others:  # "gains nothing": less than the standard error
            default = found[f"{method} (ImageNet): rate 0.03, the default"]
            assert found[f"{method} (ImageNet): {other}"] - default < 0.6


def test_imagenet_weights(tables, found, page):
    gains = [
        found[f"{m} (ImageNet): rate 0.03, the default"] - found[f"{m}, ResNet18: the recipe"]
        for m in ("FedTrans", "FedRep")
    ]
    assert "they gain FedTrans {:.0f} points and FedRep {:.0f} points.".format(*gains) in page
    longer = tables.value("paper_network", "n = 25", "FedRep")
    behind = tables.value("main", "n = 25", "FedRep (ImageNet)") - longer
    assert f"FedRep from random weights is only {behind:.0f} points behind" in page
    better = [
        tables.value("main", row, method) - tables.value("main", row, f"{method} (ImageNet)")
        for row in ("n = 25", "n = 5")
        for method in ("FedTrans", "FedRep")
    ]
    assert [round(gain) for gain in better[:2]] == [1, -1]  # "as good", "a point worse"
    assert f"FedTrans is {better[2]:.0f} points better, and FedRep {-better[3]:.0f} points worse" in page
    for row, (ours,) in rows_of(tables, "main", ("FedTrans (ImageNet)",)).items():
        second = printed(tables, row, "FedTrans (ImageNet)")
        sixth = tables.printed("initialization", f"ImageNet, {row}", "FedTrans", "accuracy.fine")[0]
        if row == "n = 5":
            assert f"by {second - ours:.0f} or {sixth - ours:.0f} points, depending" in page
        else:
            assert second < ours < sixth


def test_fedmt_and_fedrep_from_imagenet_weights(tables, page):
    above, theirs = [], []
    for row in tables.rows("main"):
        known = {column: tables.value("main", row, column) for column in tables.columns("main")}
        best = max((c for c in known if c not in (T, E)), key=known.__getitem__)
        assert best == "FedRep (ImageNet)"
        above.append(known[T] - known[best])
        theirs.append(printed(tables, row, T) - printed(tables, row, best))
    assert f"{min(above):.0f} to {max(above):.0f} points above FedRep from ImageNet weights" in page
    assert f"In the paper, it is {min(theirs):.0f} to {max(theirs):.0f} points above." in page
    fedrep, given, estimated, semifl = (
        tables.value("backbones", "ResNet18, ImageNet", c) for c in ("FedRep", T, E, "SemiFL")
    )
    assert f"{T} is {given - fedrep:.1f} points above FedRep, and {E} {estimated - fedrep:.1f}." in page
    assert f"There, {E} is {estimated - given:.1f} points above {T}" in page
    longer = [tables.value("paper_network", "n = 25", c) for c in (T, E)]
    words = "{:.1f} and {:.1f} from ImageNet weights in 40 rounds, and {:.1f} and {:.1f} from random weights"
    assert words.format(given, estimated, *longer) in page
    random = tables.value("backbones", "ResNet9, random", "SemiFL")
    assert f"SemiFL is {semifl - random:.0f} points better with ResNet18" in page


def test_coarse_classes(tables, page):
    trans, rep, ours = (tables.value("coarse", "n = 5", c, COARSE) for c in ("FedTrans", "FedRep", E))
    assert f"only {ours - trans:.1f} and FedRep {ours - rep:.1f} points below {E}" in page
    columns = ("FedTrans (ImageNet)", "FedRep (ImageNet)", T, E)
    for row, (trans, rep, *fedmt) in rows_of(tables, "coarse", columns, COARSE).items():
        if row == "n = 5":
            assert f"FedTrans by {trans - max(fedmt):.1f} to {trans - min(fedmt):.1f} points" in page
            assert f"and FedRep by {rep - max(fedmt):.1f} to {rep - min(fedmt):.1f}." in page
        else:
            assert all(abs(trans - value) < 1 for value in fedmt)
    columns = (T, "Single", "SemiFL", "Single (ImageNet)")
    behind = [
        given - other
        for given, *others in rows_of(tables, "coarse", columns, COARSE).values()
        for other in others
    ]
    assert f"are {min(behind):.0f} to {max(behind):.0f} points below {T}" in page


def test_non_iid_centers(tables, page):
    equal, mild, strong, extreme = rows_of(tables, "noniid", ("SemiFL", T, E)).values()
    uniform = [tables.value("main", "n = 25", c) for c in (T, E)]
    less = [a - b for a, b in zip(uniform, equal[1:], strict=True)]
    assert "it reaches {:.1f} (T) and {:.1f} points (E) less (the IID row".format(*less) in page
    above = [value - semifl for semifl, *fedmt in (mild, strong) for value in fedmt]
    assert f"by {min(above):.0f} to {max(above):.0f} points at gamma 0.1 and 0.9" in page
    above = [value - extreme[0] for value in extreme[1:]]
    assert f"and by {min(above):.0f} to {max(above):.0f} at gamma 0.99" in page
    lost = [round(before - after) for before, after in zip(equal, extreme, strict=True)]
    assert lost[1] == lost[2] and f"FedMT loses {lost[1]} points and SemiFL {lost[0]}." in page
    assert f"FedMT reaches {extreme[2]:.1f}, where the paper has 41.1" in page
    assert 0 < strong[1] - strong[2] < 0.1  # "as much as FedMT (T)"
    assert round(extreme[1] - extreme[2]) == 1  # "or one point less"


def test_non_iid_centers_in_the_coarse_classes(tables, page):
    *_, strong, extreme = rows_of(tables, "noniid", (E, T), COARSE).values()
    assert "it reaches {:.1f} instead of {:.1f}".format(*strong) in page
    assert "and {:.1f} instead of {:.1f}.".format(*extreme) in page
    assert f"only {{:.1f}} at gamma 0.99, where {T} has {{:.1f}}".format(*extreme) in page
    errors = rows_of(tables, "estimators", (E,), "correspondence_error").values()
    *_, (strong,), (extreme,) = errors
    words = f"(#estimators-of-the-correspondence-table-9) of {strong:.1f}, and at gamma 0.99 of {extreme:.1f}"
    assert words in page


def test_many_centers(tables, page):
    columns = ("SemiFL", T, E)
    few, many = ([tables.value("scalability", row, c) for c in columns] for row in ("C = 10", "C = 80"))
    above = [ours - many[0] for ours in many[1:]]
    assert f"**, by {min(above):.0f} to {max(above):.0f} points, but it is not more robust" in page
    semifl, given, estimated = (100 * (a - b) / a for a, b in zip(few, many, strict=True))
    assert round(given) == round(estimated)
    assert (
        f"FedMT loses {given:.0f}% of its accuracy, and SemiFL {semifl:.0f}%. In the paper, {E} loses 36%, "
        f"and SemiFL {100 * (55.98 - 26.10) / 55.98:.0f}%." in page
    )


def test_estimators(tables, page):
    others = ("FedMT (E, counting)", "FedMT (E, counting) + Average", "Learnable", "Learnable + Average")
    ours, counting, average, learned = (tables.value("estimators", "IID", c) for c in (E, *others[:3]))
    assert f"reaches {ours:.1f}, and with the paper's estimator, {counting:.1f}" in page
    assert f"averaging the counts over the centers helps, by {average - counting:.1f} points" in page
    assert f"A learned M reaches {learned:.1f}, where the paper has 56.5" in page
    best, lost, errors = [], [], []
    for column in others:
        (one,) = tables.finished("estimators", "IID", column)
        curve = one.curve("accuracy.fine")
        assert max(curve, key=curve.__getitem__) in (32, 33)
        best.append(max(curve.values()))
        lost.append(best[-1] - curve[40])
        errors.append(one.last("correspondence_error"))
    assert f"they are still {min(errors):.0f} to {max(errors):.0f} after 40 rounds" in page
    assert f"best in round 32 or 33, with {min(best):.0f} to {max(best):.0f} on the test images" in page
    assert f"lose {min(lost):.0f} to {max(lost):.0f} points in the last rounds" in page
    coarse = tables.value("estimators", "IID", "Learnable", COARSE)
    assert f"the coarse classes rises to {coarse:.1f}" in page


def test_ingredients(tables, page):
    name = "cifar100_ablation"
    known = {row: value for row, (value,) in rows_of(tables, name, (T,)).items() if value is not None}
    recipe = known.pop("the recipe")
    first, second = sorted(known, key=known.__getitem__)[:2]
    assert (first, second) == ("targets for confident samples alone", "8 rounds x 5 local epochs")
    assert f"(#what-each-ingredient-is-worth): {recipe - known[first]:.1f} points" in page
    assert f"{T} loses {recipe - known[second]:.1f} points" in page
    both = "R^p in addition", "guesses without the center's label"
    with_label, without = (known[row] for row in both)
    assert f"At this cost, R^p loses {recipe - with_label:.1f} points" in page
    assert abs(with_label - without) < 0.6  # "are as good in the fine classes": within the standard error
    with_label, without = (tables.value(name, row, T, COARSE) for row in both)
    assert f"and {with_label - without:.1f} points worse in the coarse ones" in page


def test_participation(tables, page):
    lost = [
        tables.value("cifar100_participation", "all", c) - tables.value("cifar100_participation", "20 %", c)
        for c in ("SemiFL", T, E)
    ]
    assert [round(loss) for loss in lost[1:]] == [5, 5]
    assert f"FedMT loses 5 points, and SemiFL {lost[0]:.0f}" in page


def test_skin_images(tables, page):
    columns = ("FedRep", "Single", "FedTrans", "SemiFL")
    best = []
    for ours, *others in rows_of(tables, "fitzpatrick", (E, *columns), "accuracy.nine").values():
        assert max(others) == others[0]
        best.append(ours - others[0])
    assert f"{min(best):.0f} to {max(best):.0f} points above FedRep, the best baseline" in page
    assert best[1] > 6 > max(best[0], best[2])  # "Only that for a share of 10% is larger"
    three = rows_of(tables, "fitzpatrick", ("FedTrans", E), "accuracy.three").values()
    *first, last = (trans - ours for trans, ours in three)
    assert f"FedTrans is {min(first):.0f} to {max(first):.0f} points above {E}" in page
    assert round(-last) == 1  # "one below it"


def test_readings_and_seeds(tables, page):
    assert f"{tables.value('readings', 'as printed', T):.1f} where the paper has 66.7" in page
    ranges = []
    for cell in tables.cells("main"):
        values = [run.last("accuracy.fine") for run in tables.finished("main", *cell)]
        ranges.append(max(values) - min(values))
    assert f"two seeds of the same method differ by up to {max(ranges):.1f} points" in page
