// Heat maps on a canvas: hundreds of classes are no load, and every cell can be hovered or reached by arrow keys.
function heat(id, title, rowNames, columnNames, value, text, options = {}) {
  const rows = rowNames.length, columns = columnNames.length;
  const said = el("p", { class: "said", "aria-live": "polite" });
  const canvas = el("canvas", { class: "heat", id, tabindex: 0, role: "img",
    "aria-label": title + ": " + rows + " rows, " + columns + " columns. Arrow keys read single cells; a table follows." });
  const bar = el("i"), scale = el("p", { class: "scale" }, options.low || "0", bar, options.high || "1", options.scale ? " " + options.scale : "");
  const figure = el("figure", { class: "card" + (options.wide ? " wide" : "") }, caption(title, () => canvas), el("div", { class: "scroll" }, canvas), scale, said,
    alternative(id + "-table", title, () => matrixTable(title, rowNames, columnNames, (i, j) => (options.cell || ((i, j) => number(value(i, j), 2)))(i, j))));
  let geometry = null, chosen = null;

  function draw() {
    const context = canvas.getContext("2d"), ratio = Math.max(devicePixelRatio || 1, printing ? 2 : 1);
    const font = "11px system-ui, sans-serif";
    context.font = font;
    const longest = (names) => Math.min(150, Math.max(...names.map((n) => context.measureText(n).width)) + 8);
    // Column names lean to the left: the first ones need room there.
    const left = Math.max(longest(rowNames), longest(columnNames) * 0.5) + (options.rows ? 20 : 0), names = longest(columnNames) * 0.87 + 10, down = names + (options.columns ? 20 : 0);
    const size = Math.max(9, Math.min(options.most || 44, Math.floor((room(options.wide) - left - Math.max(10, names * 0.2)) / columns)));
    const width = left + size * columns + Math.max(10, names * 0.2), height = size * rows + down;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = width + "px"; canvas.style.height = height + "px";
    context.scale(ratio, ratio);
    const shades = Array.from({ length: 256 }, (_, i) => shade(i / 255));
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
      context.fillStyle = shades[Math.round(255 * Math.max(0, Math.min(1, value(i, j))))];
      context.fillRect(left + j * size, i * size, size, size);
    }
    context.strokeStyle = faint(); context.lineWidth = 0.5; context.beginPath();
    for (let i = 0; i <= rows; i++) { context.moveTo(left, i * size); context.lineTo(left + columns * size, i * size); }
    for (let j = 0; j <= columns; j++) { context.moveTo(left + j * size, 0); context.lineTo(left + j * size, rows * size); }
    context.stroke();
    const small = size < 14 ? "9px system-ui, sans-serif" : font;  // names must not lie on each other
    context.font = small; context.fillStyle = ink(); context.textBaseline = "middle"; context.textAlign = "right";
    rowNames.forEach((name, i) => context.fillText(cut(context, name, left - 6 - (options.rows ? 20 : 0)), left - 5, (i + 0.5) * size));
    context.textAlign = "center"; context.font = "600 " + font;
    if (options.columns) context.fillText(options.columns, left + size * columns / 2, height - 9);
    if (options.rows) { context.save(); context.translate(9, Math.max(size * rows / 2, Math.min(56, context.measureText(options.rows).width / 2))); context.rotate(-Math.PI / 2); context.fillText(cut(context, options.rows, Math.max(110, size * rows)), 0, 0); context.restore(); }
    context.font = small; context.textAlign = "right";
    columnNames.forEach((name, j) => {
      context.save(); context.translate(left + (j + 0.6) * size, rows * size + 6); context.rotate(-Math.PI / 3);
      context.fillText(cut(context, name, 142), 0, 0); context.restore();
    });
    if (size >= 22) {
      context.textAlign = "center"; context.font = "10px system-ui, sans-serif";
      for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
        const v = value(i, j);
        if (options.label) { const shown = options.label(i, j); context.fillStyle = inkOn(shade(v)); if (shown) context.fillText(shown, left + (j + 0.5) * size, (i + 0.5) * size); }
        else if (v >= 0.05) { context.fillStyle = inkOn(shade(v)); context.fillText(v >= 0.995 ? "1" : v.toFixed(2).slice(1), left + (j + 0.5) * size, (i + 0.5) * size); }
      }
    }
    if (chosen) { context.strokeStyle = dark() ? "#ffab5e" : "#d55e00"; context.lineWidth = 2; context.strokeRect(left + chosen[1] * size, chosen[0] * size, size, size); }
    bar.style.background = "linear-gradient(to right," + shade(0) + "," + shade(1) + ")";
    geometry = { left, size };
    Object.assign(canvas.dataset, geometry);
  }

  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const scale = box.width / parseFloat(canvas.style.width);
    const j = Math.floor(((event.clientX - box.left) / scale - geometry.left) / geometry.size), i = Math.floor((event.clientY - box.top) / scale / geometry.size);
    return i >= 0 && i < rows && j >= 0 && j < columns ? [i, j] : null;
  }
  canvas.addEventListener("pointermove", (event) => { const at = cellAt(event); tip(at ? text(...at) : "", event.clientX, event.clientY); });
  canvas.addEventListener("pointerleave", () => tip(""));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    chosen = chosen ? [Math.max(0, Math.min(rows - 1, chosen[0] + move[0])), Math.max(0, Math.min(columns - 1, chosen[1] + move[1]))] : [0, 0];
    draw();
    said.textContent = text(...chosen).replaceAll("\n", "; ");
  });
  draw();
  page.heats.push({ canvas, draw });
  return figure;
}

function cut(context, name, width) {
  if (context.measureText(name).width <= width) return name;
  const short = [...name];  // by letters: half of one is no text, and a picture with it cannot be saved
  while (short.length > 1 && context.measureText(short.join("") + "…").width > width) short.pop();
  return short.join("") + "…";
}

function bytes(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

// Fewer samples than this say too little about how often an answer is right.
const FEWEST = 10;

// Accuracy against confidence. found: {bins: [samples, confidence, accuracy] or null, all equally wide; calibration}.
function reliabilityDiagram(id, space, found, n, when = "") {
  const size = 300, at = 52, count = found.bins.length, wide = size / count, title = "Reliability" + when + ": calibration error " + figure(metricOf("ece"), found.calibration.ece.value);
  const drawing = el("svg", { id, class: "plot unit", viewBox: "0 0 " + (at + size + 24) + " " + (size + 56), width: at + size + 24, height: size + 56, role: "img", "aria-label": title });
  const y = (v) => 10 + size * (1 - v);
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    drawing.append(el("line", { x1: at, x2: at + size, y1: y(tick), y2: y(tick), stroke: "currentColor", opacity: 0.15 }),
      el("text", { x: at - 6, y: y(tick) + 4, "text-anchor": "end" }, percent(tick, 0)), el("text", { x: at + tick * size, y: size + 26, "text-anchor": "middle" }, percent(tick, 0)));
  }
  found.bins.forEach((bin, i) => {
    if (!bin || bin[0] < FEWEST) return;
    const [samples, confidence, accuracy] = bin;
    const said = percent(i / count, 0) + " to " + percent((i + 1) / count, 0) + " confident: " + sayPlural(samples) + "\nmean confidence " + percent(confidence) + "\nright " + percent(accuracy) + ", 95% interval " + wilson(accuracy, samples).map((v) => percent(v)).join(" to ");
    const [low, high] = wilson(accuracy, samples), middle = at + (i + 0.5) * wide;
    const bar = el("rect", { x: at + i * wide + 1, y: y(accuracy), width: wide - 2, height: size * accuracy, class: "bar" });
    const all = el("rect", { x: at + i * wide, y: 10, width: wide, height: size, fill: "transparent", onpointermove: (e) => tip(said, e.clientX, e.clientY), onpointerleave: () => tip("") });
    drawing.append(bar, el("line", { x1: middle, x2: middle, y1: y(low), y2: y(high), class: "whisker" }), el("circle", { cx: at + confidence * size, cy: y(accuracy), r: 2.5 + 4 * Math.sqrt(samples / n), class: "dot" }), all);
  });
  drawing.append(el("line", { x1: at, y1: y(0), x2: at + size, y2: y(1), stroke: "currentColor", "stroke-dasharray": "4 4" }),
    el("text", { x: at + size / 2, y: size + 46, "text-anchor": "middle" }, "confidence"), el("text", { x: 0, y: 0, "text-anchor": "middle", transform: "translate(13 " + y(0.5) + ") rotate(-90)" }, "share right"));
  const columns = [
    { name: "confidence", text: true, cell: (r) => percent(r.i / count, 0) + " to " + percent((r.i + 1) / count, 0), key: (r) => r.i },
    { name: page.data.word + "s", cell: (r) => whole(r.bin[0]), key: (r) => r.bin[0] }, { name: "mean confidence", cell: (r) => percent(r.bin[1]), key: (r) => r.bin[1] }, { name: "right", cell: (r) => [percent(r.bin[2]), el("small", {}, wilson(r.bin[2], r.bin[0]).map((v) => percent(v)).join(" to "))], key: (r) => r.bin[2] }];
  const few = found.bins.filter((b) => b && b[0] < FEWEST), left = few.reduce((sum, b) => sum + b[0], 0);
  return el("figure", { class: "card" }, caption(title, () => byId(id)),
    el("ul", { class: "legend" }, el("li", {}, svgKey(el("rect", { x: 4, width: 20, height: 10, class: "bar" })), "share right"), el("li", {}, svgKey(el("line", { x1: 14, x2: 14, y1: 0, y2: 10, class: "whisker" })), "95% interval"), el("li", {}, svgKey(el("circle", { cx: 14, cy: 5, r: 4.5, class: "dot" })), "mean confidence (larger: more " + page.data.word + "s)"), el("li", {}, svgKey(el("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: "currentColor", "stroke-dasharray": "4 4" })), "perfect")), drawing,
    few.length ? el("p", { class: "note" }, (few.length === 1 ? "One bin" : few.length + " bins") + " with fewer than " + FEWEST + " " + page.data.word + "s (" + left + " in all) " + (few.length === 1 ? "is" : "are") + " not drawn.") : null,
    alternative(id + "-table", "Reliability", () => el("div", {}, table(id + "-bins", "Reliability in " + space + when, columns, found.bins.map((bin, i) => ({ bin, i })).filter((r) => r.bin)))));
}
