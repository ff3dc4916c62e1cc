// Heat maps on a canvas: hundreds of classes are no load, and every cell can be hovered or reached by arrow keys.
function heat(id, title, rowNames, columnNames, value, text, options = {}) {
  const rows = rowNames.length, columns = columnNames.length;
  const said = el("p", { class: "said", "aria-live": "polite" });
  const canvas = el("canvas", { class: "heat", id, tabindex: 0, role: "img",
    "aria-label": title + ": " + rows + " rows, " + columns + " columns. Arrow keys read single cells; a table follows." });
  const figure = el("figure", {}, el("figcaption", {}, title), el("div", { class: "scroll" }, canvas), said,
    alternative(id + "-table", title, () => matrixTable(title, rowNames, columnNames, (i, j) => (options.cell || ((i, j) => number(value(i, j), 2)))(i, j))));
  let geometry = null, chosen = null;

  function draw() {
    const context = canvas.getContext("2d"), ratio = Math.max(devicePixelRatio || 1, printing ? 2 : 1);
    const font = "11px system-ui, sans-serif";
    context.font = font;
    const longest = (names) => Math.min(150, Math.max(...names.map((n) => context.measureText(n).width)) + 8);
    // Column names lean to the left: the first ones need room there.
    const left = Math.max(longest(rowNames), longest(columnNames) * 0.5), down = longest(columnNames) * 0.87 + 10;
    const room = Math.min(options.width || 700, document.documentElement.clientWidth - 30);
    const size = Math.max(11, Math.min(34, Math.floor((room - left) / columns)));
    const width = left + size * columns + Math.max(10, down * 0.2), height = size * rows + down;
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
    context.font = font; context.fillStyle = ink(); context.textBaseline = "middle"; context.textAlign = "right";
    rowNames.forEach((name, i) => context.fillText(cut(context, name, left - 6), left - 5, (i + 0.5) * size));
    columnNames.forEach((name, j) => {
      context.save(); context.translate(left + (j + 0.6) * size, rows * size + 6); context.rotate(-Math.PI / 3);
      context.fillText(cut(context, name, 142), 0, 0); context.restore();
    });
    if (size >= 22) {
      context.textAlign = "center"; context.font = "10px system-ui, sans-serif";
      for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
        const v = value(i, j);
        if (v >= 0.05) { context.fillStyle = inkOn(shade(v)); context.fillText(v >= 0.995 ? "1" : v.toFixed(2).slice(1), left + (j + 0.5) * size, (i + 0.5) * size); }
      }
    }
    if (chosen) { context.strokeStyle = dark() ? "#ffab5e" : "#d55e00"; context.lineWidth = 2; context.strokeRect(left + chosen[1] * size, chosen[0] * size, size, size); }
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
  let short = name;
  while (short.length > 1 && context.measureText(short + "…").width > width) short = short.slice(0, -1);
  return short + "…";
}

function bytes(text) {
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}

// Accuracy against confidence. bins: [samples, confidence, accuracy] or null, all equally wide.
function reliabilityDiagram(id, test) {
  const size = 260, at = 38, n = test.bins.length, wide = size / n;
  const drawing = el("svg", { viewBox: "0 0 " + (at + size + 12) + " " + (size + 46), width: at + size + 12, height: size + 46, role: "img", "aria-label": "Reliability diagram, expected calibration error " + number(test.calibration_error) });
  const y = (v) => 6 + size * (1 - v);
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    drawing.append(el("line", { x1: at, x2: at + size, y1: y(tick), y2: y(tick), stroke: "currentColor", opacity: 0.15 }),
      el("text", { x: at - 5, y: y(tick) + 4, "text-anchor": "end" }, percent(tick, 0)), el("text", { x: at + tick * size, y: size + 22, "text-anchor": "middle" }, percent(tick, 0)));
  }
  test.bins.forEach((bin, i) => {
    if (!bin) return;
    const [samples, confidence, accuracy] = bin;
    const said = percent(i / n, 0) + " to " + percent((i + 1) / n, 0) + " confident: " + whole(samples) + " samples\nmean confidence " + percent(confidence) + "\nright " + percent(accuracy);
    const bar = el("rect", { x: at + i * wide + 1, y: y(accuracy), width: wide - 2, height: size * accuracy, class: "bar" });
    const all = el("rect", { x: at + i * wide, y: 6, width: wide, height: size, fill: "transparent", onpointermove: (e) => tip(said, e.clientX, e.clientY), onpointerleave: () => tip("") });
    drawing.append(bar, el("circle", { cx: at + confidence * size, cy: y(accuracy), r: 2 + 4 * Math.sqrt(samples / test.n), class: "dot" }), all);
  });
  drawing.append(el("line", { x1: at, y1: y(0), x2: at + size, y2: y(1), stroke: "currentColor", "stroke-dasharray": "4 4" }),
    el("text", { x: at + size / 2, y: size + 40, "text-anchor": "middle" }, "confidence (share right up the side)"));
  const columns = [
    { name: "confidence", text: true, cell: (r) => percent(r.i / n, 0) + " to " + percent((r.i + 1) / n, 0), key: (r) => r.i },
    { name: "samples", cell: (r) => whole(r.bin[0]), key: (r) => r.bin[0] }, { name: "mean confidence", cell: (r) => percent(r.bin[1]), key: (r) => r.bin[1] }, { name: "right", cell: (r) => percent(r.bin[2]), key: (r) => r.bin[2] }];
  return el("figure", {}, el("figcaption", {}, "Reliability in '" + test.space + "', expected calibration error " + number(test.calibration_error)), drawing,
    el("p", { class: "note" }, "On the dashed line, confidence is what it says. Dots grow with the number of samples."),
    alternative(id + "-table", "Reliability", () => table(id + "-bins", "Reliability in " + test.space, columns, test.bins.map((bin, i) => ({ bin, i })).filter((r) => r.bin))));
}
