// What the reader can keep: the summary as CSV, the page's data as JSON, each picture as PNG.
function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const fileName = (text, ending) => (text.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 80) || "report") + "." + ending;

// A spreadsheet takes a cell that begins with one of these for a formula; names come from users.
function csvCell(value) {
  if (value == null) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function summaryCsv() {
  const runs = page.data.runs, spaces = [...new Set(runs.flatMap((r) => Object.keys(r.accuracy)))];
  const columns = page.data.metrics.flatMap((m) => spaces.filter((s) => runs.some((r) => (r.metrics[m.name] || {})[s])).map((s) => [m.name, s]));
  const head = ["run", "method", "seed", "rounds", "seconds", ...columns.flatMap(([m, s]) => ["", "_low", "_high"].map((end) => m + end + " in " + s)), "difference_balanced_accuracy", "difference_low", "difference_high"];
  const rows = runs.map((r, i) => {
    const difference = (page.data.answer.differences[i] || {})[page.data.even_handed] || {};
    return [r.label, r.method, r.seed, r.round, r.seconds, ...columns.flatMap(([m, s]) => { const v = (r.metrics[m] || {})[s] || {}; return [v.value, v.low, v.high]; }), difference.value, difference.low, difference.high];
  });
  return [head, ...rows].map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

function downloadControls() {
  byId("downloads").replaceChildren(
    el("button", { type: "button", id: "save-csv", onclick: () => save(new Blob([summaryCsv()], { type: "text/csv" }), fileName(page.data.title, "csv")) }, "Download table (CSV)"),
    el("button", { type: "button", id: "save-json", onclick: () => save(new Blob([JSON.stringify(page.data)], { type: "application/json" }), fileName(page.data.title, "json")) }, "Download data (JSON)"));
}

// The caption of a picture, with a button that saves it. picture: a canvas or an SVG, asked for when it is needed.
function caption(title, picture, legend = () => []) {
  return el("figcaption", {}, el("span", {}, title), el("button", { type: "button", class: "save", "aria-label": "Download as PNG: " + title, onclick: () => savePicture(title, picture(), legend()) }, "PNG"));
}

async function savePicture(title, picture, legend) {
  const source = picture instanceof SVGElement ? await pictureOf(picture) : picture;
  const ratio = source.dataset && source.dataset.ratio ? +source.dataset.ratio : source.width / (parseFloat(source.style.width) || source.width);
  const pad = 16 * ratio, line = 18 * ratio, top = pad + line * 1.5;
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  canvas.width = Math.max(source.width + 2 * pad, 480 * ratio);
  canvas.height = top + source.height + pad + line * legend.length;
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--paper");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = ink();
  context.font = "600 " + 14 * ratio + "px system-ui, sans-serif";
  context.fillText(title, pad, pad + line * 0.7, canvas.width - 2 * pad);
  context.drawImage(source, pad, top);
  context.font = 12 * ratio + "px system-ui, sans-serif";
  legend.forEach(({ name, index }, i) => {
    const y = top + source.height + line * (i + 0.6), { color, dash } = lineStyle(index);
    context.strokeStyle = color; context.lineWidth = 3 * ratio; context.setLineDash(dash.map((d) => d * ratio));
    context.beginPath(); context.moveTo(pad, y); context.lineTo(pad + 28 * ratio, y); context.stroke();
    context.fillText(name, pad + 36 * ratio, y + 4 * ratio);
  });
  canvas.toBlob((blob) => save(blob, fileName(title, "png")), "image/png");
}

// An SVG as a canvas. Outside the page its style sheet does not reach it, so the few rules go with it.
async function pictureOf(drawing) {
  const copy = drawing.cloneNode(true), root = getComputedStyle(document.documentElement), ratio = 2;
  const value = (name) => root.getPropertyValue(name);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("color", ink());
  copy.prepend(el("style", {}, "svg{--bar:" + value("--bar") + "}text{fill:" + ink() + ";font:11px system-ui,sans-serif}.strong{font:600 12px system-ui,sans-serif}.whisker{stroke:" + ink() + ";stroke-width:1.5}.bar{fill:" + value("--bar") + "}.against{fill:" + value("--bad") + "}.dot{fill:" + value("--focus") + ";stroke:" + ink() + "}"));
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = +drawing.getAttribute("width") * ratio; canvas.height = +drawing.getAttribute("height") * ratio;
  canvas.dataset.ratio = ratio;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}
