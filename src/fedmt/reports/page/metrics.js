// Every metric: of each label space, of each test set and site, and for other class frequencies.
function metricTables(host) {
  const { configurations, runs, word } = page.data;
  const of = (c, kind) => Object.values(c[kind]).flatMap((m) => Object.keys(m));
  const spaces = [...new Set(configurations.flatMap((c) => of(c, "metrics")))];
  // One line for each configuration, so that a column is compared from top to bottom; of one run, for each space.
  const add = (id, caption, kind, rows) => {
    const known = page.data.metrics.filter((m) => rows.some((r) => (r.c[kind][m.name] || {})[r.space]));
    return table(id, caption, [
      { name: rows[0].of, text: true, cell: (r) => r.name, key: (r) => r.title },
      ...known.map((m) => ({ name: metricName(m), cell: (r) => withInterval(m, (r.c[kind][m.name] || {})[r.space]), key: (r) => ((r.c[kind][m.name] || {})[r.space] || {}).value })),
    ], rows);
  };
  const each = (space) => configurations.map((c, i) => ({ of: "run", c, space, title: c.name, name: el("span", { class: "named" + (c.name.length <= 16 ? " short" : "") }, swatch(i), c.name) }));
  const alone = (kind) => [...new Set(of(configurations[0], kind))].map((space) => ({ of: "label space", c: configurations[0], space, title: space, name: space }));
  const means = (id, what, caption, rows) => el("details", { id, class: "alternative" }, el("summary", {}, "The same through the mean M, the single answer that the model gives " + what), el("div", {}, add(id + "-table", caption, "mean_matrix", rows)));
  if (configurations.length === 1 && spaces.length) {
    host.append(...add("metrics-table", "Metrics by label space", "metrics", alone("metrics")));
    if (alone("mean_matrix").length) host.append(means("mean-matrix", "outside the wanted space", "Metrics by label space, by the mean M", alone("mean_matrix")));
  }
  const parts = configurations.length === 1 ? [] : spaces.map((space, i) => {
    const panel = el("div", {}, add("metrics-table-" + i, "Metrics in '" + space + "'", "metrics", each(space)));
    if (configurations.some((c) => of(c, "mean_matrix").includes(space))) panel.append(means("mean-matrix-" + i, "in '" + space + "'", "Metrics in '" + space + "', by the mean M", each(space)));
    return { name: space, panel };
  });
  host.append(...panels("metrics", "Label space", parts));
  if (spaces.length) host.append(el("p", { class: "note" }, (configurations.some((c) => c.places.length === 1) ? "Below each value is its 95% interval. It tells what other test " + word + "s would change, not other seeds. " : "") + (configurations.some((c) => c.places.length > 1) ? "Of several seeds, the mean and the standard deviation between them (±) are shown. " : "") + "In a space with several answers, values are means over the answers."));
  drawPlaces(host);
  const stating = runs.filter((run) => run.priors), others = stating.flatMap((run) => run.priors.others.map((o) => ({ ...o, run })));
  const owns = [...new Set(stating.map((run) => run.priors.own))];
  const own = "results in the wanted label space are of answers for classes that are " + owns.join(" or ") + (owns.length > 1 ? ", depending on the run. " : ". ") + "The option --prior of fedmt predict and fedmt export chooses.";
  if (others.length) {
    const known = page.data.metrics.filter((m) => others.some((o) => o[m.name] != null)), title = "If the model answers for other class frequencies";
    host.append(el("details", { id: "priors-box", open: runs.length === 1 }, el("summary", {}, title), el("div", {}, table("priors-table", title, [...(runs.length > 1 ? [{ name: "run", text: true, cell: (o) => o.run.label, key: (o) => o.run.label }] : []), { name: "classes", text: true, cell: (o) => o.prior, key: (o) => o.prior },
      ...known.map((m) => ({ name: m.title, cell: (o) => figure(m, o[m.name]), key: (o) => o[m.name] }))], others)),
    el("p", { class: "note" }, "In the wanted label space, on the same test " + word + "s. All other " + own)));
  } else if (stating.length) host.append(el("p", { class: "note" }, "All " + own));
  if (!host.childElementCount) host.append(el("p", {}, "No test result at hand."));
}

// The results of each test set, where a space has several, and of each site that the data names.
function drawPlaces(host) {
  const { configurations, runs, even_handed: even } = page.data, m = metricOf(even);
  const kinds = [...new Set(runs.flatMap((r) => r.places.map((p) => p.kind + "\n" + p.space)))];
  const parts = kinds.map((kind, k) => {
    const [what, space] = kind.split("\n"), mine = (run) => run.places.filter((p) => p.kind === what && p.space === space);
    const names = [...new Set(runs.flatMap((r) => mine(r).map((p) => p.name)))];
    // Of several seeds, the mean; it has no interval of its own.
    const result = (c, name, metric) => {
      const found = c.places.map((i) => mine(runs[i]).find((p) => p.name === name)).filter(Boolean).map((p) => ({ ...p.metrics[metric.name], samples: p.samples })).filter((r) => r.value != null);
      if (found.length < 2) return found[0];
      const mean = found.reduce((sum, f) => sum + f.value, 0) / found.length;
      return { value: mean, samples: found[0].samples, seeds: found.length, spread: Math.sqrt(found.reduce((sum, f) => sum + (f.value - mean) ** 2, 0) / (found.length - 1)) };
    };
    const size = (name) => (configurations.map((c) => result(c, name, m)).find(Boolean) || {}).samples;
    const rows = names.map((name) => ({ name, note: size(name) == null ? "" : sayPlural(size(name)), marks: configurations.flatMap((c, index) => { const r = result(c, name, m); return r ? [{ ...r, index, label: c.name, text: figure(m, r.value) + (r.low == null ? "" : ", 95% interval " + interval(m, r.low, r.high)) }] : []; }) })).filter((r) => r.marks.length);
    const title = (what === "site" ? "Each site" : "Each test set") + " in '" + space + "'";
    const shown = page.data.metrics.filter((x) => names.some((n) => configurations.some((c) => result(c, n, x))));
    const lines = names.flatMap((name) => configurations.flatMap((c, index) => (result(c, name, m) ? [{ name, c, index }] : [])));
    const all = el("details", { id: "places-all-" + k }, el("summary", {}, "Every metric of each " + what), el("div", {}, table("places-" + k, title, [{ name: what, text: true, cell: (l) => l.name, key: (l) => l.name }, ...(configurations.length > 1 ? [{ name: "run", text: true, cell: (l) => l.c.name, key: (l) => l.c.name }] : []), { name: page.data.word + "s", cell: (l) => whole(size(l.name)), key: (l) => size(l.name) },
      ...shown.map((x) => ({ name: x.title, cell: (l) => withInterval(x, result(l.c, l.name, x)), key: (l) => (result(l.c, l.name, x) || {}).value }))], lines)));
    const each = forest("forest-" + k, title + ": balanced accuracy", rows, { share: true, xName: "balanced accuracy, with 95% intervals", xShort: "balanced accuracy", format: (v) => percent(v), tick: (v) => percentTick(v) });
    return { name: what + "s in '" + space + "'", titled: true, panel: el("div", {}, el("div", { class: "pair level" }, each, ...placeDifferences(k, what, space)), all) };
  });
  // A run of an earlier version knows the values of its test sets, but no intervals.
  const old = runs.filter((run) => !run.places.length && Object.keys(run.each_test).length);
  if (parts.length || old.length) { const sites = parts.some((p) => p.name.startsWith("site")), tests = old.length || parts.some((p) => p.name.startsWith("test")); host.append(el("h3", {}, sites && tests ? "By site and test set" : sites ? "By site" : "By test set")); }
  host.append(...panels("places", "Shown", parts));
  old.forEach((run, i) => {
    const rows = Object.entries(run.each_test), known = page.data.metrics.filter((x) => rows.some(([, v]) => v[x.name] != null)), title = "Test sets one by one, " + run.label;
    host.append(...table("each-test-" + i, title, [{ name: "test set", text: true, cell: ([name]) => name, key: ([name]) => name }, ...known.map((x) => ({ name: x.title, cell: ([, v]) => figure(x, v[x.name]), key: ([, v]) => v[x.name] }))], rows));
  });
  if (parts.length) host.append(el("p", { class: "note" }, "With few " + page.data.word + "s, an interval is wide. Two intervals side by side are not a test of whether two places differ." + (page.data.answer.sites.length ? " The differences from the baseline are paired over the same " + page.data.word + "s; among many places, some intervals miss zero by chance." : "")));
}

// At each place, every configuration against the baseline, paired over the samples from there.
function placeDifferences(k, what, space) {
  const { answer, configurations, runs } = page.data, sites = answer.sites.filter((s) => s.kind === what);
  if (!sites.length || space !== runs[answer.best].wanted) return [];
  const mark = (c, index, d) => ({ ...d, index, label: c.name, text: points(d.value) + " points" + (d.low == null ? "" : ", 95% interval " + points(d.low) + " to " + points(d.high)) });
  const rows = sites.map((s) => ({ name: s.name, note: sayPlural(s.samples), marks: configurations.flatMap((c, index) => { const d = s.differences[c.places[0]]; return d && d.value != null ? [mark(c, index, d)] : []; }) })).filter((r) => r.marks.length);
  if (!rows.length) return [];
  return [forest("forest-differences-" + k, "Difference from " + plainName(configurations[configurationOf(answer.baseline)]) + " at each " + what, rows, { zero: true, xName: "percentage points of balanced accuracy", xShort: "points of balanced accuracy", format: points, tick: (v) => (v === 0 ? "0" : points(v).replace(".0", "")) })];
}
