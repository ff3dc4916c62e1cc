// The first things a reader sees: the verdict, the main figures, and the table of all configurations.
const VERDICTS = { better: "Better than the baseline", worse: "Worse than the baseline", "no difference": "No clear difference" };

// A configuration is one run, or several seeds of it.
const configurationOf = (run) => page.data.configurations.findIndex((c) => c.places.includes(run));
// A name that fits into a tile.
const brief = (c) => (plainName(c).length > 24 ? "baseline" : plainName(c)), plainName = (c) => c.name.replace(/ \(\d+ seeds\)$/, "");
const sayPlural = (n) => whole(n) + " " + page.data.word + (n === 1 ? "" : "s");

function words() {
  const { verdict } = page.data.answer;
  return [verdict ? el("span", { class: "badge" }, VERDICTS[verdict]) : null, ...page.data.words.map((w) => el("p", {}, w))].filter(Boolean);
}

// Every configuration against the baseline; nothing where nothing was compared.
function againstBaseline() {
  const { answer, configurations, even_handed: even } = page.data;
  const base = answer.baseline == null ? null : configurations[configurationOf(answer.baseline)];
  const rows = !base ? [] : configurations.flatMap((c, index) => {
    const d = (answer.differences[c.places[0]] || {})[even];
    if (!d || d.value == null) return [];
    return [{ name: plainName(c), note: c.places.length > 1 ? c.places.length + " seeds" : "", marks: [{ value: d.value, low: d.low, high: d.high, index, label: c.name, text: points(d.value) + " points" + (d.low == null ? "" : ", 95% interval " + points(d.low) + " to " + points(d.high)) }] }];
  });
  if (!rows.length) return [];
  return [forest("against", "Difference from " + plainName(base), rows, { zero: true, xName: "percentage points of balanced accuracy, with 95% intervals", xShort: "points of balanced accuracy", format: points, tick: (v) => (v === 0 ? "0" : points(v).replace(".0", "")) })];
}

function summaryTable() {
  const rows = page.data.configurations.map((c, index) => ({ c, index, run: page.data.runs[c.places[0]] }));
  const { answer, even_handed: even, headline } = page.data;
  const spaces = [...new Set(page.data.runs.flatMap((r) => Object.keys(r.accuracy)))];
  const sizes = new Map(page.data.runs.flatMap((r) => r.spaces.map((s) => [s.name, s.classes.length])));
  const wanted = new Set(page.data.runs.map((r) => r.wanted));
  const of = (row, name, space) => (row.c.metrics[name] || {})[space], known = (row, s) => (row.run.accuracy[s] ? of(row, headline, s) : null);
  const difference = ({ c }) => (answer.differences[c.places[0]] || {})[even];
  const is = (place, { c }) => place != null && c.places.includes(place);
  const first = (row) => is(answer.best, row) && rows.length > 1;
  const all = ({ c }) => c.places.map((p) => page.data.runs[p]);
  const times = (row) => { const sorted = all(row).sort((a, b) => a.seconds - b.seconds).map((r) => r.duration); return sorted[0] === sorted.at(-1) ? sorted[0] : sorted[0] + " to " + sorted.at(-1); };
  const columns = [
    { name: "run", text: true, cell: (row) => el("span", { class: "named" }, swatch(row.index), el("span", {}, row.c.name, is(answer.baseline, row) ? el("span", { class: "tag" }, "baseline") : null, first(row) ? el("span", { class: "tag first" }, "shown below") : null)), key: ({ c }) => c.name },
    { name: "method", text: true, cell: ({ run }) => run.method + (run.strategy && run.centers.some((c) => c.trained) ? ", " + run.strategy : ""), key: ({ run }) => run.method },
    { name: "balanced accuracy", cell: (row) => withInterval(metricOf(even), of(row, even, row.run.wanted)), key: (row) => (of(row, even, row.run.wanted) || {}).value },
    ...(answer.baseline == null ? [] : [{ name: "against the baseline", cell: (row) => { const d = difference(row); return d ? [points(d.value), el("small", {}, d.low == null ? "no interval" : points(d.low) + " to " + points(d.high))] : "–"; }, key: (row) => (difference(row) || {}).value }]),
    ...spaces.map((s) => ({
      name: "accuracy in '" + s + "'" + (sizes.has(s) ? ", " + sizes.get(s) + " classes" + (wanted.has(s) ? ", wanted" : "") : ""),
      cell: (row) => withInterval(metricOf(headline), known(row, s)), key: (row) => (known(row, s) || {}).value,
    })),
    { name: "rounds", cell: (row) => [...new Set(all(row).map((r) => (r.finished ? r.round : r.round + " of " + r.planned)))].join(", "), key: ({ run }) => run.round },
    { name: "time", cell: times, key: ({ run }) => run.seconds },
  ];
  return el("div", {}, table("runs", "Runs: method, balanced accuracy, difference from the baseline, accuracy by label space, and time", columns, rows,
    { className: (row) => (page.hidden.has(row.index) ? "off" : first(row) ? "best" : null) }));
}

function summaryNote() {
  const { answer, configurations, runs, word } = page.data, seeds = configurations.some((c) => c.places.length > 1), alone = configurations.some((c) => c.places.length === 1);
  const spaces = runs.flatMap((r) => Object.keys(r.accuracy).map((s) => s !== r.wanted));
  if (!spaces.length) return "";  // nothing was tested, so there is nothing to explain
  return el("p", { class: "note" }, "After the last round, on test " + word + "s." + (alone ? " Below each value is its 95% interval: it tells what other test " + word + "s would change, not other seeds." : "")
    + (seeds ? " Of several seeds, the mean is shown, with the standard deviation between seeds (±)." : "")
    + (answer.baseline == null ? "" : " Against the baseline: the difference in balanced accuracy, in percentage points, paired over the same test " + word + "s" + (answer.seeds.length ? " and averaged over the seeds" : "") + ".")
    + (spaces.includes(true) ? " Outside the wanted space, values are means over centers, each through its own matrix or head." : ""));
}

// The main figures of the configuration that the page opens on.
function tiles() {
  const { answer, runs, configurations } = page.data;
  if (!runs.length) return [];
  const best = configurations[configurationOf(answer.best)], base = answer.baseline == null ? null : configurations[configurationOf(answer.baseline)];
  const wanted = runs[answer.best].wanted, of = (c, m) => (c.metrics[m.name] || {})[wanted];
  return ["balanced_accuracy", "accuracy", "macro_f1", "auroc", "ece"].map(metricOf).flatMap((m) => {
    const found = of(best, m), other = base && base !== best ? of(base, m) : null, paired = base === best ? null : (answer.differences[answer.best] || {})[m.name];
    if (!found || found.value == null) return [];
    const sure = paired && paired.low != null && (paired.low > 0 || paired.high < 0);
    const scaled = m.name === "ece" ? ((runs[answer.best].tests.find((t) => t.space === wanted) || {}).scaled || null) : null;
    return [el("div", { class: "tile" }, el("span", { class: "name" }, metricName(m)),
      el("b", {}, figure(m, found.value), paired && paired.value != null ? el("span", { class: "chip " + (!sure ? "even" : (paired.value > 0) === (m.better === "higher") ? "up" : "down"), title: paired.low == null ? null : "95% interval " + signed(m, paired.low) + " to " + signed(m, paired.high) + ", paired" }, signed(m, paired.value) + (m.unit === "share" ? " points" : "")) : null),
      el("span", {}, found.seeds ? "± " + spread(m, found.spread) + " over " + found.seeds + " seeds" : found.low == null ? "no interval" : interval(m, found.low, found.high)),
      scaled ? el("span", {}, "after temperature scaling: " + figure(m, scaled.calibration.ece.value)) : null,
      other && other.value != null ? el("span", {}, brief(base) + ": " + figure(m, other.value)) : null)];
  });
}
