// Curves, drawn by uPlot. lines: {name, index (of its style), x, y, width, alpha}.
function chart(host, id, title, lines, options = {}) {
  const format = options.format || ((v) => number(v));
  const said = el("p", { class: "said", id: id + "-said", "aria-live": "polite" });
  const place = el("div", { class: "chart", id, tabindex: 0, role: "group",
    "aria-label": title + ". Left and right arrow keys read the values; a table follows." });
  const key = el("ul", { class: "legend" });
  const named = () => lines.filter((l) => !l.quiet && !(l.run != null && page.hidden.has(l.run)));
  const legend = () => key.replaceChildren(...named().slice(0, 12).map((l) => el("li", {}, swatch(l.index), l.name)), ...(named().length > 12 ? [el("li", {}, "and " + (named().length - 12) + " more: point at the chart")] : []));
  legend();
  const figure = el("figure", { class: "card" }, caption(title, () => place.querySelector("canvas"), named), key, place, said,
    alternative(id + "-table", title, () => {
      const xs = [...new Set(lines.flatMap((l) => l.x))].sort((a, b) => a - b);
      return matrixTable(title, xs.map(String), lines.map((l) => l.name), (i, j) => { const at = lines[j].x.indexOf(xs[i]); return at < 0 ? "–" : format(lines[j].y[at]); });
    }));
  host.append(figure);
  const joined = uPlot.join(lines.map((l) => [l.x, l.y]));
  const style = (l) => lineStyle(l.index);
  const few = joined[0].length < 3;
  const text = (at) => {
    if (at == null) return "";
    // Runs of other lengths have no point at just this place: their nearest one stands for it.
    const nearest = (l) => l.x.reduce((best, x, i) => (l.y[i] != null && (best < 0 || Math.abs(x - joined[0][at]) < Math.abs(l.x[best] - joined[0][at])) ? i : best), -1);
    const shown = lines.filter((l) => !l.quiet && !(l.run != null && page.hidden.has(l.run))).map((l) => [l, nearest(l)]).filter(([, i]) => i >= 0);
    const extra = shown.length > 12 ? "\nand " + (shown.length - 12) + " more: see the table" : "";
    return (options.xName || "round") + " " + number(joined[0][at], 4) + "\n" + shown.slice(0, 12).map(([l, i]) => l.name + ": " + format(l.y[i]) + (l.x[i] === joined[0][at] ? "" : " at " + number(l.x[i], 4))).join("\n") + extra;
  };
  let pointer = null;
  const axis = () => ({ stroke: ink, grid: { stroke: faint, width: 1 }, ticks: { stroke: faint, width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" });
  const plot = new uPlot({
    width: Math.max(240, place.clientWidth), height: options.height || 230, padding: [12, 18, 0, 0],
    scales: { x: { time: false }, y: { range: (u, low, high) => {
      if (low == null) return [0, 1];
      const pad = (high - low || Math.abs(high) || 1) * 0.08;
      return [options.zero ? 0 : Math.max(low - pad, low >= 0 ? 0 : -Infinity), options.most != null ? Math.min(high + pad, options.most) : high + pad];
    } } },
    axes: [{ ...axis(), label: options.xName || "round", labelSize: 18, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis(), size: 60, values: (u, vs) => vs.map(options.tick || ((v) => number(v, 4))) }],
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: false },
    series: [{}, ...lines.map((l) => ({ label: l.name, stroke: () => style(l).color, dash: style(l).dash, width: l.width || 2, alpha: l.alpha || 1, spanGaps: true, show: !(l.run != null && page.hidden.has(l.run)), points: { show: few || undefined, size: 6 } }))],
    hooks: { setCursor: [(u) => { if (pointer) tip(text(u.cursor.idx), pointer[0], pointer[1]); }] },
  }, joined, place);
  place.addEventListener("pointermove", (event) => { pointer = [event.clientX, event.clientY]; tip(text(plot.cursor.idx), ...pointer); });
  place.addEventListener("pointerleave", () => { pointer = null; tip(""); });
  let at = joined[0].length - 1;
  place.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Home") at = 0; else if (event.key === "End") at = joined[0].length - 1; else if (step) at = Math.max(0, Math.min(joined[0].length - 1, at + step)); else return;
    event.preventDefault();
    plot.setCursor({ left: plot.valToPos(joined[0][at], "x"), top: 10 });
    said.textContent = text(at).replaceAll("\n", "; ");
  });
  page.charts.push({ plot, place, lines, group: options.group, legend, redraw: () => plot.redraw(false) });
  return plot;
}

// Steps of 2.5% need their half.
const percentTick = (v) => percent(v, Number.isInteger(+(100 * v).toFixed(6)) ? 0 : 1);

function curveLines(pick) {
  return page.data.configurations.flatMap((c, index) => {
    const y = pick(c.curves);
    if (!y || !y.some((v) => v != null)) return [];
    const last = Math.max(...c.places.flatMap((i) => [page.data.runs[i].planned, page.data.runs[i].round, 1]));
    const along = (rounds) => rounds.map((r) => (page.axis === "share" ? +(100 * r / last).toFixed(3) : r));
    // Of several seeds: the mean, and each seed as a faint line.
    const seeds = c.places.length < 2 ? [] : c.places.map((i) => page.data.runs[i]).filter((r) => pick(r.curves)).map((r) => ({ name: r.label, index, run: index, x: along(r.curves.round), y: pick(r.curves), width: 1, alpha: 0.35, quiet: true }));
    return [...seeds, { name: c.name, index, run: index, x: along(c.curves.round), y }];
  });
}

function drawCurves() {
  const host = byId("curve-charts");
  const runs = page.data.runs;
  host.replaceChildren();
  const axis = { xName: page.axis === "share" ? "training done, %" : "round", group: "curves" };
  const metric = page.data.metrics.find((m) => m.name === page.metric) || page.data.metrics[0];
  const spaces = [...new Set(runs.flatMap((r) => Object.keys(r.curves.metrics[metric.name] || {})))];
  const scale = metric.unit === "share" ? { format: percent, most: 1, tick: percentTick } : { zero: metric.better === "lower" };
  const losses = [...new Set(runs.flatMap((r) => Object.keys(r.curves.losses)))];
  const shown = [
    ...spaces.map((s) => [metric.name + "-" + s, metric.title + " in '" + s + "'", (c) => (c.metrics[metric.name] || {})[s], scale]),
    ...losses.map((l) => ["loss-" + l, { loss: "Loss at the centers (mean)", reference_loss: "Loss at the reference center" }[l] || "Loss term '" + l + "' (mean of the centers)", (c) => c.losses[l], { zero: true }]),
    ["confident", "Share of " + page.data.word + "s with a confident pseudo-label", (c) => c.confident_share, { format: percent, zero: true, most: 1, tick: percentTick }],
    ["pseudo", "Accuracy of the confident pseudo-labels", (c) => c.pseudo_label_accuracy, { format: percent, most: 1, tick: percentTick }],
    ["m-error", "M-hat error, mean of the centers", (c) => c.correspondence_error, { zero: true }],
    ["prior-error", "Error of the estimated class shares, mean of the centers", (c) => c.prior_error, { zero: true }],
  ];
  shown.forEach(([id, title, pick, options], i) => {
    const lines = curveLines(pick);
    if (lines.length) chart(host, "chart-" + i + "-" + id.replace(/\W+/g, "-"), title, lines, { ...axis, ...options });
  });
  const said = [
    [(c) => (page.data.configurations.some((one) => one.places.length > 1) ? c.round : null), "Of several seeds, the line is the mean; each thin line is one seed."],
    [(c) => c.correspondence_error, "M-hat error: how far the estimated correspondence is from the true one (the square root of the sum of the squared differences of all cells, its Frobenius norm). 0 means exactly the true M."],
    [(c) => c.prior_error, "Error of the estimated class shares: the share of samples that would have to change their class to make them true (the total variation distance). 0 means exact, 1 means all wrong."],
  ].filter(([pick]) => curveLines(pick).length).map(([, text]) => el("p", { class: "note whole" }, text));
  host.append(...said);
  if (!host.childElementCount) host.append(el("p", {}, "No round is finished yet."));
}

function curveControls() {
  const host = byId("curve-controls");
  host.replaceChildren();
  const { runs, configurations } = page.data;
  sayHidden();
  // A metric that waits for the last round has one point, which is in the table.
  const drawn = page.data.metrics.filter((m) => runs.some((r) => Object.values(r.curves.metrics[m.name] || {}).some((y) => y.filter((v) => v != null).length > 1)));
  if (drawn.length > 1) host.append(el("label", {}, "Test metric ", el("select", { id: "curve-metric", onchange: (event) => { page.metric = event.target.value; drop("curves"); drawCurves(); } },
    drawn.map((m) => el("option", { value: m.name, selected: m.name === page.metric }, m.title)))));
  if (configurations.length > 1) {
    host.append(el("fieldset", {}, el("legend", {}, "Runs shown"), configurations.map((c, i) => el("label", {},
      el("input", { type: "checkbox", id: "show-" + i, checked: !page.hidden.has(i), onchange: (event) => show(i, event.target.checked) }), swatch(i), c.name))));
    host.append(el("label", {}, "Horizontal axis ", el("select", { id: "axis", onchange: (event) => { page.axis = event.target.value; drop("curves"); drawCurves(); } },
      [["round", "round"], ["share", "share of the planned rounds"]].map(([value, name]) => el("option", { value, selected: page.axis === value }, name)))));
  }
}

// On paper there are no boxes to see who was left out.
function sayHidden() {
  const away = page.data.configurations.filter((_, i) => page.hidden.has(i)).map((c) => c.name);
  byId("print-hidden").textContent = away.length ? "Not drawn, as chosen on the screen: " + away.join(", ") + "." : "";
}

function show(index, visible) {
  page.hidden[visible ? "delete" : "add"](index);
  for (const { plot, lines, legend } of page.charts) { lines.forEach((l, i) => { if (l.run === index) plot.setSeries(i + 1, { show: visible }); }); legend(); }
  sayHidden();
  byId("summary-table").replaceChildren(summaryTable(), summaryNote());
}

function drop(group) {
  page.charts = page.charts.filter((c) => (c.group === group ? (c.plot.destroy(), false) : true));
}
