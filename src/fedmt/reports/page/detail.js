// One run in detail.
const current = () => page.data.runs[page.run];

function detailControls() {
  const host = byId("detail-controls");
  host.replaceChildren();
  if (page.data.runs.length < 2) return;
  host.append(el("label", {}, "In detail below: ", el("select", { id: "detail", onchange: (event) => { page.run = +event.target.value; drawDetail(); } },
    page.data.runs.map((run, i) => el("option", { value: i, selected: i === page.run }, run.label)))));
}

function drawDetail() {
  drop("detail");
  page.heats = [];
  const run = current();
  const many = page.data.runs.length > 1;
  byId("detail-controls").dataset.shown = run.label;
  const others = page.data.runs.filter((r) => r !== run).map((r) => r.label).join(", ");
  byId("print-detail").textContent = many ? "What follows is of the run " + run.label + ", which was chosen on the screen. Of the others (" + others + ") the summary and the curves tell; choose one there and print again for its details." : "";
  const lead = () => (many ? [el("p", { class: "print-only" }, "Of the run " + run.label + ".")] : []);
  byId("m-body").replaceChildren(...lead());
  drawCorrespondences(run, byId("m-body"));
  byId("classes-body").replaceChildren(...lead(), ...run.notes.map((n) => el("p", { class: "missing" }, "Note: " + n)));
  drawClasses(run, byId("classes-body"));
  byId("centers-body").replaceChildren(...lead(), drawCenters(run));
  drawPriors(run, byId("centers-body"));
  drawUpdates(run, byId("centers-body"));
  byId("again-body").replaceChildren(...lead(), ...drawAgain(run));
}

const classesOf = (run, space) => (run.spaces.find((s) => s.name === space) || { classes: [] }).classes;

// M-hat where it was estimated, M where it was given: the mean over the centers of each space first, then each center.
function drawCorrespondences(run, host) {
  const fine = classesOf(run, run.wanted), all = [...run.estimates, ...run.given];
  if (!all.length) {
    host.append(el("p", {}, run.evaluated == null ? "No M-hat at hand." : "This run used no correspondence between label spaces."));
    return;
  }
  const kinds = [...new Set(all.map((e) => (e.matrix ? "estimated" : "given") + "\n" + e.space))].map((k) => all.filter((e) => (e.matrix ? "estimated" : "given") + "\n" + e.space === k));
  const means = kinds.filter((members) => members.length > 1).map((members) => ({ name: (members[0].matrix ? "mean of the centers in '" : "all centers in '") + members[0].space + "'", groups: [members] }));
  const every = !run.estimates.length && kinds.length > 1 ? [{ name: "every label space", groups: kinds }] : [];
  const choices = [...every, ...means, ...all.map((e) => ({ name: e.center, groups: [[e]] }))];
  const chosen = Math.min(page.centers.get(run.label) || 0, choices.length - 1);
  const shown = el("div", { class: "pair" }), explained = el("p", { class: "note" });
  const one = (members, name, part) => {
    const space = members[0].space, coarse = classesOf(run, space), J = coarse.length, K = fine.length;
    const places = new Set(members.map((m) => m.truth)), same = places.size === 1 && members[0].truth != null;
    const truth = same ? bytes(run.truths[members[0].truth].matrix) : null, estimated = members[0].matrix != null;
    const mean = new Float32Array(J * K);
    for (const m of members) bytes(m.matrix || run.truths[m.truth].matrix).forEach((v, i) => (mean[i] += v / 255 / members.length));
    const guess = (i, j) => mean[i * K + j], real = (i, j) => truth[i * K + j] / 255;
    const say = (v) => (i, j) => "P(" + coarse[i] + " | " + fine[j] + ") = " + v(i, j).toFixed(2) + (estimated && truth ? "\ntrue M " + real(i, j).toFixed(2) + ", M-hat " + guess(i, j).toFixed(2) : "");
    const options = { wide: K > 20, rows: "label at the center", columns: "wanted class", scale: "probability" };
    const beside = !estimated ? [] : truth ? [heat("m-true", "True M", coarse, fine, real, say(real), options)] : [el("p", {}, places.size > 1 ? "Their true correspondences differ; choose one center to see it beside." : "The true correspondence is not known, so nothing stands beside it.")];
    // What a matrix that knows nothing would have: each label equally likely, whatever the class.
    const blind = truth ? Math.sqrt(truth.reduce((sum, v) => sum + (v / 255 - 1 / J) ** 2, 0)) : null;
    explained.textContent = "M-hat error: how far an estimated matrix is from the true one. It is the square root of the sum of the squared differences of all cells (the Frobenius norm). 0 means exactly the true M" + (blind == null ? "." : "; in '" + space + "', a matrix that knows nothing has " + number(blind) + ".");
    return [heat("m-hat" + (part ? "-" + part : ""), (estimated ? "M-hat, " : "M as given, ") + name, coarse, fine, guess, say(guess), options), ...beside];
  };
  const draw = (number_) => {
    page.centers.set(run.label, number_);
    const { name, groups } = choices[number_];
    page.heats = page.heats.filter((h) => !/^m-(hat|true)/.test(h.canvas.id));
    shown.replaceChildren(...groups.flatMap((members, part) => one(members, groups.length > 1 ? "all centers in '" + members[0].space + "'" : name, part)));
  };
  host.append(el("div", { class: "controls" }, el("label", {}, "Center ", el("select", { id: "center", onchange: (event) => draw(+event.target.value) },
    choices.map((c, i) => el("option", { value: i, selected: i === chosen }, c.name))))),
    el("p", { class: "note" }, "Each column is a wanted class and sums to 1: how its " + page.data.word + "s are labeled at the center. M was " + (run.estimates.length ? run.given.length ? "given at some centers and estimated (M-hat) at others." : "estimated (M-hat) at each center." : "given by the config, not estimated.")), shown);
  draw(chosen);
  const lines = run.centers.filter((c) => c.errors).map((c, i) => ({ name: c.name, index: i, x: c.errors[0], y: c.errors[1], width: 1.5 }));
  if (lines.length) { const place = el("div", { class: "pair" }); host.append(place); chart(place, "center-errors", "M-hat error of each center", lines, { zero: true, group: "detail", height: 260 }); place.append(explained); }
}

// With more classes, a table has no room beside its confusion matrix.
const BESIDE = 12;

function drawClasses(run, host) {
  if (!run.tests.length) { host.append(el("p", {}, "No predictions on test data at hand.")); return; }
  host.append(el("p", { class: "note" }, "Of the model after round " + run.evaluated + ", on test " + page.data.word + "s. In a space that is not the wanted one, by the mean of the centers' answers."));
  const parts = run.tests.map((test, t) => {
    const host = el("div");
    const names = classesOf(run, test.space), K = names.length;
    const count = (i, j) => test.confusion[i * K + j];
    const part = (i, j) => count(i, j) / (test.support[i] || 1);
    const say = (i, j) => "true: " + names[i] + "\npredicted: " + names[j] + "\n" + whole(count(i, j)) + " of " + whole(test.support[i]) + " (" + percent(part(i, j)) + ")";
    host.append(el("h3", {}, test.space + ": " + percent(test.accuracy) + " of " + sayPlural(test.n) + " right"));
    const columns = [
      { name: "class", text: true, cell: (k) => names[k], key: (k) => names[k] },
      { name: page.data.word + "s", cell: (k) => whole(test.support[k]), key: (k) => test.support[k] },
      ...page.data.metrics.filter((m) => (run.by_class[m.name] || {})[test.space]).map((m) => {
        const found = run.by_class[m.name][test.space];
        return { name: m.title, cell: (k) => withInterval(m, { value: found.value[k], low: found.low[k], high: found.high[k] }), key: (k) => found.value[k] };
      }),
    ];
    // Of ranking metrics, the run measured the mean with its interval; elsewhere, by the mean of the answers.
    const macro = (m, found) => { const values = found.value.filter((v) => v != null), own = test.space === run.wanted ? run.metrics : run.mean_matrix; return test.macro[m.name] || (own[m.name] || {})[test.space] || (values.length ? { value: values.reduce((a, b) => a + b, 0) / values.length } : null); };
    const rows = el("div", {}, table("classes-" + t, "Metrics by class in " + test.space, columns, names.map((_, k) => k)));
    const total = el("tr", { class: "total" }, el("th", { class: "text", scope: "row" }, "mean (macro)"), el("td", {}, whole(test.n)), page.data.metrics.filter((m) => (run.by_class[m.name] || {})[test.space]).map((m) => el("td", {}, withInterval(m, macro(m, run.by_class[m.name][test.space])))));
    rows.querySelector("table").append(el("tfoot", {}, total));
    host.append(...[el("div", { class: K > BESIDE ? "pair" : "pair beside" },
      heat("confusion-" + t, "Confusion in '" + test.space + "'", names, names, part, say, { wide: K > BESIDE, most: K > BESIDE || K <= 6 ? 44 : 32, rows: "true class", columns: "predicted class", scale: "share of the true class", cell: (i, j) => whole(count(i, j)) }),
      el("figure", { class: "card" + (K > BESIDE ? " wide" : "") }, el("figcaption", {}, "Each class against all others, with 95% intervals"), rows)),
      thresholdPanel(run, test, t), ...calibration(run, test, t)].filter(Boolean));
    const mistakes = run.mistakes[test.space] || [];
    if (mistakes.length) host.append(el("h3", {}, "Most confident mistakes in '" + test.space + "'"), el("div", { class: "gallery" }, mistakes.map((m) => el("figure", {},
      m.image ? el("img", { src: m.image, alt: "Test image " + m.number + ": " + names[m.true] + ", taken for " + names[m.predicted] }) : el("p", {}, m.text),
      el("figcaption", {}, names[m.true] + ", taken for " + names[m.predicted] + " (" + percent(m.confidence) + ")")))));
    return { name: test.space, panel: host, titled: true };
  });
  host.append(...panels("classes", "Label space", parts));
}

// How far confidence can be trusted, before and after temperature scaling, where a temperature was fitted.
function calibration(run, test, t) {
  const { scaled } = test;
  // In the wanted space, the interval that the run itself measured, as everywhere else on the page.
  const before = (m) => { const own = test.space === run.wanted ? (run.metrics[m.name] || {})[test.space] : null, here = test.calibration[m.name]; return own && own.low != null ? { ...own, value: here.value } : here; };
  const rows = ["ece", "log_loss", "brier_score"].map(metricOf).filter((m) => test.calibration[m.name].value != null).map((m) => ({ m, before: before(m), after: scaled && scaled.calibration[m.name], change: scaled && scaled.change[m.name] }));
  const changed = ({ m, change: c }) => (!c || c.value == null ? "–" : [signed(m, c.value), el("small", {}, c.low == null ? "no interval" : signed(m, c.low) + " to " + signed(m, c.high))]);
  const columns = [{ name: "metric", text: true, cell: (r) => metricName(r.m), key: (r) => r.m.title }, { name: scaled ? "before" : "value", cell: (r) => withInterval(r.m, r.before), key: (r) => r.before.value },
    ...(scaled ? [{ name: "after", cell: (r) => withInterval(r.m, r.after), key: (r) => r.after.value }, { name: "change", cell: changed, key: (r) => (r.change || {}).value }] : [])];
  const why = scaled ? "The temperature " + scaled.temperature.toFixed(3) + " was fitted on " + page.data.word + "s of the reference center that were held out from training. It changes no answer, only how confident it is. The change is paired over the same " + page.data.word + "s." : test.space === run.wanted ? "No temperature was fitted, because no " + page.data.word + "s were held out for it ([calibration] in the config)." : "A temperature is fitted in the wanted label space only.";
  const numbers = el("figure", { class: "card" + (scaled ? " wide" : "") }, el("figcaption", {}, scaled ? "Before and after temperature scaling" : "How good the probabilities are"), table("calibration-" + t, "Calibration in " + test.space, columns, rows, { fixed: true }), el("p", { class: "note" }, "Below each value is its 95% interval. " + why));
  return [el("h3", {}, "Calibration"), test.grouped ? el("p", { class: "note" }, tooNarrow(test, "The intervals in the diagram").trim()) : null, el("div", { class: "pair" }, reliabilityDiagram("reliability-" + t, test.space, test, test.n, scaled ? " before temperature scaling" : ""),
    scaled ? reliabilityDiagram("scaled-" + t, test.space, scaled, test.n, " after temperature scaling") : null, numbers)];
}

function drawAgain(run) {
  const facts = Object.entries({ ...run.versions, seed: run.seed, device: run.device, threads: run.threads, "data digest": run.data, trained: run.written, config: run.path }).filter(([, v]) => v != null);
  return [
    el("p", {}, facts.length ? facts.map(([k, v]) => k + " " + v).join(", ") + "." : ""),
    run.finished ? null : el("p", {}, "The run is not finished: versions and device are recorded when it is."),
    el("p", { class: "note" }, "To run it again, save the config as again.toml: fedmt run again.toml --out again"),
    page.data.command ? el("p", { class: "note" }, "To make this page again: " + page.data.command) : null,
    el("details", { id: "config", open: true }, el("summary", {}, "Resolved config"), el("pre", { tabindex: 0, role: "region", "aria-label": "Resolved config" }, run.config)),
  ].filter(Boolean);
}
