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
  drawUpdates(run, byId("centers-body"));
  byId("again-body").replaceChildren(...lead(), ...drawAgain(run));
}

const classesOf = (run, space) => (run.spaces.find((s) => s.name === space) || { classes: [] }).classes;

function drawCorrespondences(run, host) {
  const fine = classesOf(run, run.wanted);
  if (!run.estimates.length) {
    host.append(el("p", {}, run.evaluated == null ? "No M-hat at hand." : "This run estimated no correspondence."));
    return;
  }
  // The mean over the centers of each space first, then each center.
  const spaces = [...new Set(run.estimates.map((e) => e.space))];
  const choices = [
    ...spaces.map((space) => ({ name: "mean of the centers in '" + space + "'", space, members: run.estimates.filter((e) => e.space === space) })),
    ...run.estimates.map((e) => ({ name: e.center, space: e.space, members: [e] })),
  ];
  const chosen = Math.min(page.centers.get(run.label) || 0, choices.length - 1);
  const shown = el("div");
  const draw = (number_) => {
    page.centers.set(run.label, number_);
    const { name, space, members } = choices[number_], coarse = classesOf(run, space), J = coarse.length, K = fine.length;
    const mean = new Float32Array(J * K);
    for (const m of members) bytes(m.matrix).forEach((v, i) => (mean[i] += v / 255 / members.length));
    const places = new Set(members.map((m) => m.truth));
    const truth = places.size === 1 && members[0].truth != null ? bytes(run.truths[members[0].truth].matrix) : null;
    const say = (v) => (i, j) => "P(" + coarse[i] + " | " + fine[j] + ") = " + v(i, j).toFixed(2) + (truth ? "\ntrue M " + (truth[i * K + j] / 255).toFixed(2) + ", M-hat " + mean[i * K + j].toFixed(2) : "");
    const guess = (i, j) => mean[i * K + j], real = (i, j) => truth[i * K + j] / 255;
    const width = K > 14 ? 1180 : 560;
    page.heats = page.heats.filter((h) => !/^m-(hat|true)$/.test(h.canvas.id));
    shown.replaceChildren(
      heat("m-hat", "M-hat, " + name, coarse, fine, guess, say(guess), { width }),
      truth ? heat("m-true", "True M", coarse, fine, real, say(real), { width }) : el("p", {}, places.size > 1 ? "Their true correspondences differ; choose one center to see it beside." : "The true correspondence is not known, so nothing stands beside."));
  };
  shown.className = "pair";
  host.append(el("div", { class: "controls" }, el("label", {}, "Center ", el("select", { id: "center", onchange: (event) => draw(+event.target.value) },
    choices.map((c, i) => el("option", { value: i, selected: i === chosen }, c.name))))),
    el("p", { class: "note" }, "Each column is a wanted class and sums to 1: how its samples are labelled at the center."), shown);
  draw(chosen);
  const lines = run.centers.filter((c) => c.errors).map((c, i) => ({ name: c.name, index: i, x: c.errors[0], y: c.errors[1], width: 1.5 }));
  if (lines.length) chart(host, "center-errors", "Error of each center's M-hat (Frobenius norm)", lines, { zero: true, group: "detail", height: 260 });
}

function drawClasses(run, host) {
  if (!run.tests.length) { host.append(el("p", {}, "No predictions on test data at hand.")); return; }
  host.append(el("p", { class: "note" }, "Of the model after round " + run.evaluated + ", on test samples. In a space that is not the wanted one, by the mean of the centers' answers."));
  run.tests.forEach((test, t) => {
    const names = classesOf(run, test.space), K = names.length;
    const count = (i, j) => test.confusion[i * K + j];
    const part = (i, j) => count(i, j) / (test.support[i] || 1);
    const say = (i, j) => "true: " + names[i] + "\npredicted: " + names[j] + "\n" + whole(count(i, j)) + " of " + whole(test.support[i]) + " (" + percent(part(i, j)) + ")";
    host.append(el("h3", {}, test.space + ": " + percent(test.accuracy) + " of " + whole(test.n) + " right"));
    const columns = [
      { name: "class", text: true, cell: (k) => names[k], key: (k) => names[k] },
      { name: "samples", cell: (k) => whole(test.support[k]), key: (k) => test.support[k] },
      ...page.data.metrics.filter((m) => (run.by_class[m.name] || {})[test.space]).map((m) => {
        const found = run.by_class[m.name][test.space];
        return { name: m.title, cell: (k) => withInterval(m, { value: found.value[k], low: found.low[k], high: found.high[k] }, 0), key: (k) => found.value[k] };
      }),
    ];
    host.append(el("div", { class: "pair" },
      heat("confusion-" + t, "Confusion in '" + test.space + "': rows true, columns predicted, shade: share of the true class", names, names, part, say, { width: K > 20 ? 1180 : 620, cell: (i, j) => whole(count(i, j)) }),
      el("figure", {}, el("figcaption", {}, "Each class against all others, with 95% intervals"), table("classes-" + t, "Metrics by class in " + test.space, columns, names.map((_, k) => k))),
      reliabilityDiagram("reliability-" + t, test)));
    const mistakes = run.mistakes[test.space] || [];
    if (mistakes.length) host.append(el("h3", {}, "Most confident mistakes in '" + test.space + "'"), el("div", { class: "gallery" }, mistakes.map((m) => el("figure", {},
      m.image ? el("img", { src: m.image, alt: "Test image " + m.number + ": " + names[m.true] + ", taken for " + names[m.predicted] }) : el("p", {}, m.text),
      el("figcaption", {}, names[m.true] + ", taken for " + names[m.predicted] + " (" + percent(m.confidence, 0) + ")")))));
  });
}

function drawCenters(run) {
  const kinds = [...new Set(run.centers.flatMap((c) => Object.keys(c.missed)))];
  const names = { left_out: "left out", abstained: "abstained", "dropped out": "dropped out", "not chosen": "not chosen" };
  const columns = [
    { name: "center", text: true, cell: (c) => c.name + (c.reference ? " (reference)" : ""), key: (c) => c.name },
    { name: "samples", cell: (c) => whole(c.samples), key: (c) => c.samples },
    { name: "label space", text: true, cell: (c) => c.space || "–", key: (c) => c.space },
    ...(run.centers.some((c) => c.correspondence) ? [{ name: "M", text: true, cell: (c) => c.correspondence || "–", key: (c) => c.correspondence }] : []),
    { name: "rounds trained", cell: (c) => (c.reference ? "–" : whole(c.trained)), key: (c) => (c.reference ? null : c.trained) },
    ...["abstained", "dropped out", ...kinds.filter((k) => k !== "abstained" && k !== "dropped out")].map((k) => ({ name: names[k] || k, cell: (c) => (c.reference ? "–" : whole(c.missed[k] || 0)), key: (c) => (c.reference ? null : c.missed[k] || 0) })),
    ...(run.centers.some((c) => c.clipped) ? [{ name: "rounds clipped", cell: (c) => (c.reference ? "–" : whole(c.clipped)), key: (c) => (c.reference ? null : c.clipped) }] : []),
    { name: "last loss", cell: (c) => number(c.loss), key: (c) => c.loss },
    { name: "confident", cell: (c) => percent(c.confident_share), key: (c) => c.confident_share },
    { name: "pseudo-labels right", cell: (c) => percent(c.pseudo_label_accuracy), key: (c) => c.pseudo_label_accuracy },
    ...(run.centers.some((c) => c.prior_error != null) ? [{ name: "error of class frequencies", cell: (c) => number(c.prior_error), key: (c) => c.prior_error }] : []),
    { name: "error of M-hat", cell: (c) => (c.errors ? number(c.errors[1].at(-1)) : "–"), key: (c) => (c.errors ? c.errors[1].at(-1) : null) },
  ];
  const reasons = run.centers.flatMap((c) => Object.entries(c.reasons).map(([why, n]) => c.name + ", " + n + " rounds: " + why));
  return el("div", {}, table("members", "Centers: samples, label space, where M came from, rounds missed and why", columns, run.centers),
    reasons.length ? el("details", {}, el("summary", {}, "Why centers abstained or were left out"), el("ul", {}, reasons.map((r) => el("li", {}, r)))) : null);
}

// Who is odd: one center's line apart from all others. A norm of 1e6 among ones would hide all the others, so
// beyond a factor of 30 its logarithm is drawn.
function drawUpdates(run, host) {
  const lines = (pick) => run.centers.filter((c) => c[pick]).map((c, i) => ({ name: c.name, index: i, x: c[pick][0], y: c[pick][1], width: 1.5 }));
  const norms = lines("norms"), cosines = lines("cosines");
  if (!norms.length) return;
  const positive = norms.flatMap((l) => l.y).filter((y) => y > 0), log = Math.max(...positive) > 30 * Math.min(...positive);
  const drawn = log ? norms.map((l) => ({ ...l, y: l.y.map((y) => (y > 0 ? Math.log10(y) : null)) })) : norms;
  const power = (v) => (v == null ? "–" : Math.abs(v) > 3 ? (10 ** v).toExponential(0) : number(10 ** v, 2));
  chart(host, "center-norms", "Norm of each center's update" + (log ? " (logarithmic)" : ""), drawn, { zero: !log, group: "detail", height: 260, ...(log ? { format: (v) => (v == null ? "–" : number(10 ** v)), tick: power } : {}) });
  if (cosines.length) chart(host, "center-cosines", "Cosine of each center's update to the mean of all", cosines, { group: "detail", height: 260, most: 1 });
  host.append(el("p", { class: "note" }, "A center that stands apart may have other data, a technical problem, or bad intentions: look at it."));
}

function drawAgain(run) {
  const facts = Object.entries({ ...run.versions, seed: run.seed, device: run.device, threads: run.threads }).filter(([, v]) => v != null);
  return [
    el("p", {}, facts.length ? facts.map(([k, v]) => k + " " + v).join(", ") + "." : ""),
    run.finished ? null : el("p", {}, "The run is not finished: versions and device are recorded when it is."),
    el("p", { class: "note" }, "To run it again, save the config as again.toml: fedmt run again.toml --out again"),
    el("details", { id: "config", open: true }, el("summary", {}, "Resolved config"), el("pre", { tabindex: 0, role: "region", "aria-label": "Resolved config" }, run.config)),
  ].filter(Boolean);
}
