// State, elements, numbers and colors. Names come from users: they enter the page as text, never as HTML.
const page = { data: null, hidden: new Set(), run: 0, centers: new Map(), classes: new Map(), panels: new Map(), axis: "", charts: [], heats: [], forests: [], metric: "" };
const byId = (id) => document.getElementById(id);

function el(tag, attributes, ...children) {
  const made = /^(svg|g|rect|line|path|text|circle|style)$/.test(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((c) => c != null));
  return made;
}

// Halves upwards, as the sentences of the summary round.
const percent = (x, digits = 1) => (x == null ? "–" : (Math.floor(x * 10 ** (2 + digits) + 0.5) / 10 ** digits).toFixed(digits) + "%");
const number = (x, digits = 3) => (x == null ? "–" : String(+x.toPrecision(digits)));
// The same with its zeros kept, for columns of a table.
const digits = (x) => (x == null ? "–" : x !== 0 && Math.abs(x) < 1e-4 ? "< 0.0001" : x === 0 || Math.abs(x) >= 1000 ? number(x) : x.toPrecision(3));
// A metric's value in its own unit.
const figure = (metric, x, digits = 1) => (x == null ? "–" : metric.unit === "share" ? percent(x, digits) : x.toFixed(3) + (metric.unit === "nats" ? " nats" : ""));
// A difference of shares, in percentage points, with its sign.
const points = (x) => (x == null ? "–" : (x < 0 ? "−" : "+") + (Math.floor(Math.abs(x) * 1000 + 0.5) / 10).toFixed(1));
const whole = (x) => (x == null ? "–" : x.toLocaleString("en"));

const DARK_LINES = ["#d5dbe3", "#4aa3df", "#ff8a3d", "#2fc79a", "#e79ac3", "#ffc04d", "#9ad7ff"];
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const darkScreen = matchMedia("(prefers-color-scheme: dark)"), printer = matchMedia("print");
let printing = false;
const dark = () => darkScreen.matches && !printer.matches && !printing;

function lineStyle(place) {
  // The baseline has the first color, a gray, wherever it stands.
  const { answer } = page.data, base = answer.baseline == null ? 0 : configurationOf(answer.baseline), index = place === base ? 0 : place < base ? place + 1 : place;
  const colors = dark() ? DARK_LINES : page.data.colors;
  // On a screen, lines of the same color are told apart by their dashes; on paper, which may be gray, all are.
  return { color: colors[index % colors.length], dash: DASHES[(printing || printer.matches ? index : Math.floor(index / colors.length)) % DASHES.length] };
}
// How wide a picture may be: half of a section where two fit side by side, else all of it.
function room(wide) {
  const all = byId("main").clientWidth - (innerWidth < 640 ? 54 : 92);
  return wide || all < 1040 ? all : (all - 52) / 2;
}
const ink = () => (dark() ? "#e9ebee" : "#1b1f24");
const faint = () => (dark() ? "#34373c" : "#e4e4e4");

// One hue from the paper to its far end: readable without telling colors apart.
function shade(value) {
  const [from, to] = dark() ? [[23, 26, 31], [143, 208, 255]] : [[255, 255, 255], [8, 69, 126]];
  const v = Math.max(0, Math.min(1, value));
  return "rgb(" + from.map((f, i) => Math.round(f + (to[i] - f) * v)).join(",") + ")";
}
// Black or white, whichever stands out more on a color: the contrast is then never below 4.5 (WCAG's AA).
function inkOn(color) {
  const [r, g, b] = color.match(/\d+/g).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

function swatch(index) {
  const { color, dash } = lineStyle(index);
  return el("svg", { width: 28, height: 10, "aria-hidden": "true" },
    el("line", { x1: 0, x2: 28, y1: 5, y2: 5, stroke: color, "stroke-width": 3, "stroke-dasharray": dash.join(" ") || null }));
}

function tip(text, x, y) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(x + 14, innerWidth - width - 4)) + "px";
  box.style.top = Math.max(4, y + 14 + height > innerHeight ? y - height - 8 : y + 14) + "px";
}

// The same as a table, for whoever cannot or will not look; made when it is opened.
function alternative(id, what, make) {
  const box = el("details", { class: "alternative", id }, el("summary", {}, "As a table", el("span", { class: "sr" }, ": " + what)));
  box.addEventListener("toggle", () => { if (box.open && box.childElementCount === 1) box.append(make()); });
  return box;
}
