// Tables. columns: {name, text (left-aligned), cell(row) -> what is shown, key(row) -> what it is sorted by}.
function table(id, caption, columns, rows, options = {}) {
  const body = el("tbody");
  const heads = columns.map((column, i) => {
    const button = el("button", { type: "button", title: "Sort by " + column.name, onclick: () => sort(i) }, column.name);
    return el("th", { scope: "col", class: column.text ? "text" : null }, options.fixed ? column.name : button);
  });
  const made = el("table", { id }, el("caption", { class: "sr" }, caption), el("thead", {}, el("tr", {}, heads)), body);
  const lines = rows.map((row) => {
    const line = el("tr", { class: options.className ? options.className(row) : null },
      columns.map((c, i) => el(i === 0 ? "th" : "td", { class: c.text ? "text" : null, scope: i === 0 ? "row" : null }, c.cell(row))));
    return { row, line };
  });
  body.append(...lines.map((l) => l.line));

  function sort(index) {
    const down = heads[index].getAttribute("aria-sort") === "ascending";
    const key = columns[index].key || columns[index].cell;
    const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    heads.forEach((h, i) => (i === index ? h.setAttribute("aria-sort", down ? "descending" : "ascending") : h.removeAttribute("aria-sort")));
    lines.sort((a, b) => {
      const x = key(a.row), y = key(b.row);
      if (x == null || y == null) return (x == null) - (y == null);  // what is missing comes last, either way
      return down ? compare(y, x) : compare(x, y);
    });
    body.append(...lines.map((l) => l.line));
  }
  return scrolling(rows.length > 30, caption, made);
}

// A region that scrolls. Where it is too narrow for what is in it, it says so on a phone.
function scrolling(tall, caption, made) {
  const box = el("div", { class: "scroll" + (tall ? " tall" : ""), tabindex: 0, role: "region", "aria-label": caption }, made);
  widths.observe(box);
  return [box, el("p", { class: "swipe", "aria-hidden": "true" }, "Scroll the table sideways to see all columns →")];
}
const widths = new ResizeObserver((all) => all.forEach(({ target }) => target.classList.toggle("more", target.scrollWidth > target.clientWidth + 1)));

// A matrix as a plain table, with names on both sides.
function matrixTable(caption, rowNames, columnNames, cell) {
  const head = el("tr", {}, el("td"), columnNames.map((n) => el("th", { scope: "col" }, n)));
  const rows = rowNames.map((name, i) => el("tr", {}, el("th", { scope: "row", class: "text" }, name), columnNames.map((_, j) => el("td", {}, cell(i, j)))));
  return el("div", {}, scrolling(true, caption, el("table", {}, el("caption", { class: "sr" }, caption), el("thead", {}, head), el("tbody", {}, rows))));
}

function summaryTable() {
  const runs = page.data.runs.map((run, index) => ({ run, index }));
  const { answer, even_handed: even } = page.data;
  const spaces = [...new Set(page.data.runs.flatMap((r) => Object.keys(r.accuracy)))];
  const sizes = new Map(page.data.runs.flatMap((r) => r.spaces.map((s) => [s.name, s.classes.length])));
  const wanted = new Set(page.data.runs.map((r) => r.wanted));
  const metric = (name) => page.data.metrics.find((m) => m.name === name);
  const balanced = (run) => (run.metrics[even] || {})[run.wanted];
  const difference = (index) => (answer.differences[index] || {})[even];
  const bases = answer.baseline == null ? [] : (answer.seeds.find((s) => s.places.includes(answer.baseline)) || { places: [answer.baseline] }).places;
  const columns = [
    { name: "run", text: true, cell: ({ run, index }) => el("span", { class: "named" }, swatch(index), el("span", {}, run.label, bases.includes(index) ? el("span", { class: "tag" }, "baseline") : null, index === answer.best && runs.length > 1 ? el("span", { class: "tag first" }, "shown below") : null)), key: ({ run }) => run.label },
    { name: "method", text: true, cell: ({ run }) => run.method + (run.strategy && run.centers.some((c) => c.trained) ? ", " + run.strategy : ""), key: ({ run }) => run.method },
    { name: "balanced accuracy", cell: ({ run }) => withInterval(metric(even), balanced(run)), key: ({ run }) => (balanced(run) || {}).value },
    ...(answer.baseline == null ? [] : [{ name: "against the baseline", cell: ({ index }) => { const d = difference(index); return d ? [points(d.value), el("small", {}, d.low == null ? "no interval" : points(d.low) + " to " + points(d.high))] : "–"; }, key: ({ index }) => (difference(index) || {}).value }]),
    ...spaces.map((s) => ({
      name: "accuracy in '" + s + "'" + (sizes.has(s) ? ", " + sizes.get(s) + " classes" + (wanted.has(s) ? ", wanted" : "") : ""),
      cell: ({ run }) => withInterval(metric(page.data.headline), run.accuracy[s]),
      key: ({ run }) => (run.accuracy[s] ? run.accuracy[s].value : null),
    })),
    { name: "rounds", cell: ({ run }) => run.finished ? run.round : run.round + " of " + run.planned, key: ({ run }) => run.round },
    { name: "time", cell: ({ run }) => run.duration, key: ({ run }) => run.seconds },
  ];
  return el("div", {}, table("runs", "Runs: method, balanced accuracy, difference from the baseline, accuracy by label space, with 95% intervals, and time", columns, runs,
    { className: ({ index }) => (page.hidden.has(index) ? "off" : index === answer.best && runs.length > 1 ? "best" : null) }));
}

// The main figures of the run that the page opens on; of several seeds, their mean.
function tiles() {
  const { answer, runs } = page.data, seeds = answer.seeds.find((s) => s.places.includes(answer.best));
  if (!runs.length) return [];
  const places = seeds ? seeds.places : [answer.best], best = runs[answer.best], base = runs[answer.baseline];
  return ["balanced_accuracy", "accuracy", "macro_f1", "auroc", "ece"].map((name) => page.data.metrics.find((m) => m.name === name)).flatMap((m) => {
    const found = places.map((p) => ((runs[p].metrics[m.name] || {})[runs[p].wanted] || {})).filter((f) => f.value != null);
    if (!found.length) return [];
    const mean = found.reduce((sum, f) => sum + f.value, 0) / found.length, other = !seeds && base && base !== best ? (base.metrics[m.name] || {})[base.wanted] : null;
    return [el("div", { class: "tile" }, el("span", {}, metricName(m)), el("b", {}, figure(m, mean)),
      el("span", {}, seeds ? "mean of " + found.length + " seeds" : found[0].low == null ? "no interval" : interval(m, found[0].low, found[0].high)),
      other && other.value != null ? el("span", {}, base.label + ": " + figure(m, other.value)) : null)];
  });
}

const interval = (metric, low, high) => figure(metric, low).replace(" nats", "") + " to " + figure(metric, high).replace(" nats", "");

// A value with its interval beneath.
function withInterval(metric, result) {
  if (!result || result.value == null) return "–";
  return [figure(metric, result.value), el("small", {}, result.low == null ? "no interval" : interval(metric, result.low, result.high))];
}

const metricName = (m) => m.title + (m.better === "lower" ? " (lower is better)" : "");

// Every metric: of one run by label space, of several runs one table for each space.
function metricTables(host) {
  const runs = page.data.runs;
  const of = (run, kind) => Object.values(run[kind]).flatMap((m) => Object.keys(m));
  const results = (run, kind, title, space) => ({ title, get: (m) => (run[kind][m.name] || {})[space] });
  const add = (place, id, caption, columns) => {
    const rows = page.data.metrics.filter((m) => columns.some((c) => c.get(m)));
    if (!rows.length) return;
    place.append(...table(id, caption, [
      { name: "metric", text: true, cell: metricName, key: (m) => m.title },
      ...columns.map((c) => ({ name: c.title, cell: (m) => withInterval(m, c.get(m)), key: (m) => (c.get(m) || {}).value })),
    ], rows, { fixed: true }));
  };
  const kinds = [["metrics", ""], ["mean_matrix", ", by the mean M"]];
  if (runs.length === 1) {
    add(host, "metrics-table", "Metrics by label space with 95% intervals", kinds.flatMap(([kind, mark]) =>
      [...new Set(of(runs[0], kind))].map((space) => results(runs[0], kind, "in '" + space + "'" + mark, space))));
  } else {
    const all = host.appendChild(el("div", { class: runs.length <= 4 ? "pair" : null }));
    kinds.forEach(([kind, mark], k) => [...new Set(runs.flatMap((run) => of(run, kind)))].forEach((space, i) => {
      const part = all.appendChild(el("div", {}, el("h3", {}, "In '" + space + "'" + mark)));
      add(part, "metrics-table-" + k + "-" + i, "Metrics in '" + space + "'" + mark + " with 95% intervals", runs.map((run) => results(run, kind, run.label, space)));
    }));
  }
  runs.filter((run) => Object.keys(run.each_test).length).forEach((run, i) => {
    const rows = Object.entries(run.each_test), known = page.data.metrics.filter((m) => rows.some(([, v]) => v[m.name] != null));
    const title = "Test sets one by one" + (runs.length > 1 ? ", " + run.label : "");
    host.append(el("h3", {}, title), ...table("each-test-" + i, title, [{ name: "test set", text: true, cell: ([name]) => name, key: ([name]) => name },
      ...known.map((m) => ({ name: m.title, cell: ([, v]) => figure(m, v[m.name]), key: ([, v]) => v[m.name] }))], rows));
  });
  runs.filter((run) => run.priors).forEach((run, i) => {
    const known = page.data.metrics.filter((m) => run.priors.others.some((o) => o[m.name] != null));
    const title = "If the model answers for other class frequencies" + (runs.length > 1 ? ", " + run.label : "");
    host.append(el("h3", {}, title), ...table("priors-" + i, title, [{ name: "classes", text: true, cell: (o) => o.prior, key: (o) => o.prior },
      ...known.map((m) => ({ name: m.title, cell: (o) => figure(m, o[m.name]), key: (o) => o[m.name] }))], run.priors.others, { fixed: true }),
    el("p", { class: "note" }, "In '" + run.wanted + "', on the same test samples. All other results on this page are of answers for classes that are " + run.priors.own + ". The option --prior of fedmt predict and fedmt export chooses."));
  });
  if (!host.childElementCount) host.append(el("p", {}, "No test result at hand."));
  else host.append(el("p", { class: "note" }, "Beneath each value is its 95% interval. It tells what other test samples would change, not other seeds. In a space with several answers, values are means over the answers; the mean M is the single answer that the model gives."));
}
