// ROC and precision-recall curves of one class against all others, and a threshold that the reader moves.
// Wilson's 95% interval of a share of n.
function wilson(share, n) {
  if (!n) return [null, null];
  const z = 1.959963984540054, middle = (share + z * z / (2 * n)) / (1 + z * z / n), half = z / (1 + z * z / n) * Math.sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// The points of class k: {threshold, tp, fp, sensitivity, fallOut, precision}; the first takes no sample.
function operatingPoints(test, k) {
  const { points, values } = test.curves, all = (test.unpacked = test.unpacked || new Uint16Array(bytes(values).buffer));
  const positives = test.support[k], negatives = test.n - positives, found = [];
  for (let i = 0; i < points; i++) {
    const at = 3 * (k * points + i), [threshold, s, f] = [all[at] / 65535, all[at + 1] / 65535, all[at + 2] / 65535];
    const tp = Math.round(s * positives), fp = Math.round(f * negatives), before = found.at(-1);
    if (before && before.tp === tp && before.fp === fp) continue;
    found.push({ threshold, tp, fp, sensitivity: positives ? tp / positives : null, fallOut: negatives ? fp / negatives : null, precision: tp + fp ? tp / (tp + fp) : null });
  }
  return found;
}

// One square plot from 0 to 1. lines: {points: [[x, y], ...], index, width, alpha}; mark: [x, y].
function unitPlot(id, label, xName, yName, lines, mark, chance) {
  const size = 300, at = 52, high = size + 56;
  const x = (v) => at + v * size, y = (v) => 10 + size * (1 - v);
  const drawing = el("svg", { id, class: "plot unit", viewBox: "0 0 " + (at + size + 24) + " " + high, width: at + size + 24, height: high, role: "img", "aria-label": label });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    drawing.append(el("line", { x1: at, x2: x(1), y1: y(tick), y2: y(tick), stroke: "currentColor", opacity: 0.13 }), el("line", { y1: y(0), y2: y(1), x1: x(tick), x2: x(tick), stroke: "currentColor", opacity: 0.13 }),
      el("text", { x: at - 6, y: y(tick) + 4, "text-anchor": "end" }, percent(tick, 0)), el("text", { x: x(tick), y: size + 26, "text-anchor": "middle" }, percent(tick, 0)));
  }
  drawing.append(el("line", { x1: x(chance[0][0]), y1: y(chance[0][1]), x2: x(chance[1][0]), y2: y(chance[1][1]), stroke: "currentColor", opacity: 0.6, "stroke-dasharray": "4 4" }),
    el("text", { x: x(0.5), y: size + 46, "text-anchor": "middle" }, xName), el("text", { x: 0, y: 0, "text-anchor": "middle", transform: "translate(13 " + y(0.5) + ") rotate(-90)" }, yName));
  for (const line of lines) drawing.append(el("path", { d: line.points.map(([a, b], i) => (i ? "L" : "M") + x(a).toFixed(1) + " " + y(b).toFixed(1)).join(""), fill: "none", stroke: line.index ? "var(--bar)" : "currentColor", "stroke-width": line.width, opacity: line.alpha, "stroke-linejoin": "round" }));
  if (mark && mark[1] != null) drawing.append(el("circle", { cx: x(mark[0]), cy: y(mark[1]), r: 6, class: "dot" }));
  return drawing;
}

// Where samples belong together, as those of a patient do, the intervals that the page computes are not enough.
const tooNarrow = (test, which) => (test.grouped ? " " + which + " take every " + page.data.word + " by itself, although some belong together, as those of one patient do. So they are too narrow. The intervals in the tables are not." : "");

function thresholdPanel(run, test, t) {
  const names = classesOf(run, test.space), judged = names.map((_, k) => k).filter((k) => test.support[k] > 0 && test.support[k] < test.n);
  if (!judged.length || !test.curves) return null;
  const areas = ((run.by_class.auroc || {})[test.space] || { value: [] }).value, precisions = ((run.by_class.average_precision || {})[test.space] || { value: [] }).value;
  const area = (k) => (areas[k] == null ? "–" : areas[k].toFixed(3)), average = (k) => (precisions[k] == null ? "–" : precisions[k].toFixed(3));
  // The hardest class first: it is the one to look at.
  const key = run.label + "\n" + test.space, worst = judged.reduce((a, b) => ((areas[b] ?? 2) < (areas[a] ?? 2) ? b : a));
  const chosen = page.classes.get(key) ?? worst;
  const plots = el("div", { class: "trio" }, el("figure"), el("figure")), readout = el("div", { class: "readout" }), table_ = el("div");
  const slider = el("input", { type: "range", id: "threshold-" + t, min: 0, step: 1 });
  const others = judged.length <= 12 ? judged : [];
  const curve = (points, kind) => (kind === "roc" ? points.map((p) => [p.fallOut, p.sensitivity]) : points.filter((p) => p.precision != null).map((p) => [p.sensitivity, p.precision]));
  const faint_ = others.map((k) => [k, operatingPoints(test, k)]);
  let points = [], k = chosen;

  function draw() {
    const at = points[+slider.value], positives = test.support[k], negatives = test.n - positives, none = test.n - at.tp - at.fp;
    const lines = (kind) => [...faint_.filter(([other]) => other !== k).map(([, p]) => ({ points: curve(p, kind), index: 0, width: 1, alpha: 0.22 })), { points: curve(points, kind), index: 1, width: 2.5, alpha: 1 }];
    const roc = unitPlot("roc-" + t, "ROC curve of " + names[k] + ", AUROC " + area(k), "1 − specificity", "sensitivity", lines("roc"), [at.fallOut, at.sensitivity], [[0, 0], [1, 1]]);
    const share = positives / test.n, pr = unitPlot("pr-" + t, "Precision-recall curve of " + names[k] + ", average precision " + average(k), "recall (sensitivity)", "precision", lines("pr"), [at.sensitivity, at.precision], [[0, share], [1, share]]);
    const legend = (chance) => el("ul", { class: "legend" }, el("li", {}, svgKey(el("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: "var(--bar)", "stroke-width": 3 })), names[k]), others.length > 1 ? el("li", {}, svgKey(el("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: "currentColor", opacity: 0.4 })), "other classes") : null,
      el("li", {}, svgKey(el("circle", { cx: 14, cy: 5, r: 4.5, class: "dot" })), "the threshold"), el("li", {}, svgKey(el("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: "currentColor", opacity: 0.6, "stroke-dasharray": "4 4" })), chance));
    plots.children[0].replaceWith(el("figure", { class: "card" }, caption("ROC of " + names[k] + ": AUROC " + area(k), () => byId("roc-" + t)), legend("guessing"), roc));
    plots.children[1].replaceWith(el("figure", { class: "card" }, caption("Precision-recall of " + names[k] + ": AP " + average(k), () => byId("pr-" + t)), legend("guessing: " + percent(share)), pr));
    const tile = (name, part, n, what) => { const value = n ? part / n : null, [low, high] = value == null ? [null, null] : wilson(value, n); return el("div", { class: "tile" }, el("span", {}, name), el("b", {}, percent(value)), el("span", {}, value == null ? what : percent(low) + " to " + percent(high)), el("span", {}, whole(part) + " of " + whole(n))); };
    readout.replaceChildren(tile("Sensitivity", at.tp, positives, "none"), tile("Specificity", negatives - at.fp, negatives, "none"), tile("Precision (PPV)", at.tp, at.tp + at.fp, "none is taken"), tile("NPV", negatives - at.fp, none, "all are taken"));
    const said = +slider.value === 0 ? "above all scores" : at.threshold.toFixed(3);
    slider.setAttribute("aria-valuetext", said);
    byValue.textContent = said;
  }
  function choose(next) {
    k = next;
    page.classes.set(key, k);
    points = operatingPoints(test, k);
    slider.max = points.length - 1;
    // A half, as far as the kept points allow: where a two-class answer would turn.
    slider.value = points.reduce((best, p, i) => (Math.abs(p.threshold - 0.5) < Math.abs(points[best].threshold - 0.5) ? i : best), Math.min(1, points.length - 1));
    const step = Math.ceil(points.length / 25), rows = points.filter((_, i) => i % step === 0 || i === points.length - 1);
    table_.replaceChildren(alternative("roc-" + t + "-table", "Both curves", () => matrixTable("Operating points of " + names[k], rows.map((p, i) => (i ? "at least " + p.threshold.toFixed(3) : "none taken")), ["sensitivity", "specificity", "precision"], (i, j) => percent([rows[i].sensitivity, rows[i].fallOut == null ? null : 1 - rows[i].fallOut, rows[i].precision][j]))));
    draw();
  }
  const byValue = el("output", { for: "threshold-" + t });
  slider.addEventListener("input", draw);
  const made = el("div", { class: "wide" }, el("h3", {}, "Thresholds"),
    el("div", { class: "controls" }, el("label", {}, "Class ", el("select", { id: "class-" + t, onchange: (event) => choose(+event.target.value) }, judged.map((c) => el("option", { value: c, selected: c === k }, names[c] + " (AUROC " + area(c) + ")")))),
      el("label", {}, "Threshold ", slider, " "), byValue),
    el("p", { class: "note" }, "Each class is judged against all others together. One counts as the class if its probability is at least the threshold. Move the threshold to trade sensitivity for specificity; the intervals are Wilson's, 95%. A threshold that is chosen on test " + page.data.word + "s flatters the model on them: choose it on others." + tooNarrow(test, "The intervals")),
    el("div", { class: "aside" }, readout, plots), table_);
  choose(judged.includes(k) ? k : worst);
  return made;
}

const svgKey = (mark) => el("svg", { width: 28, height: 10, "aria-hidden": "true" }, mark);
