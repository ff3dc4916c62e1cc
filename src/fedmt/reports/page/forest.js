// A forest plot: one row per name, each value a point with its interval as a line, as in a clinical paper.
// Where a row has one mark, its interval is written beside it.
// rows: {name, note, marks: [{value, low, high, index, label, text}]}; options: {zero, share, xName, xShort (on a phone), format, tick}.
function forest(id, title, rows, options) {
  const box = el("div", { class: "forest" });
  const legend = rows.some((r) => r.marks.length > 1) ? new Map(rows.flatMap((r) => r.marks.map((m) => [m.index, m.label]))) : new Map();
  const key = el("ul", { class: "legend" }, [...legend].map(([index, name]) => el("li", {}, dotKey(index), name)));
  const made = el("figure", { class: "card" }, caption(title, () => byId(id), () => [...legend].map(([index, name]) => ({ index, name }))), legend.size ? key : null, box,
    alternative(id + "-table", title, () => matrixTable(title, rows.flatMap((r) => r.marks.map((m) => (legend.size ? r.name + ", " + m.label : r.name))), ["value", "95% interval"], (i, j) => {
      const m = rows.flatMap((r) => r.marks)[i];
      return j ? (m.low == null ? "–" : options.format(m.low) + " to " + options.format(m.high)) : options.format(m.value);
    })));
  const ends = rows.flatMap((r) => r.marks.flatMap((m) => [m.value, m.low, m.high])).filter((v) => v != null);
  if (options.zero) ends.push(0);
  const least = Math.min(...ends), most = Math.max(...ends), room_ = (most - least || 0.02) * 0.08;
  const low = options.share ? Math.max(0, least - room_) : least - room_, high = options.share ? Math.min(1, most + room_) : most + room_;

  function draw() {
    const width = Math.max(260, box.clientWidth || 520), narrow = width < 460, alone = !legend.size;
    const beside = (m) => [options.format(m.value), alone && m.low != null ? options.format(m.low) + " to " + options.format(m.high) : ""];
    const left = narrow ? 8 : Math.min(width * 0.42, 20 + Math.max(...rows.map((r) => Math.max(wide(r.name, STRONG), wide(r.note || "", PLAIN)))));
    const right = narrow ? 24 : 26 + Math.max(...rows.flatMap((r) => r.marks.map((m) => Math.max(wide(beside(m)[0], STRONG), wide(beside(m)[1], PLAIN)))));
    const x = (v) => left + ((v - low) / (high - low)) * (width - left - right);
    const each = 17, line = (r) => Math.max(narrow ? 24 : 38, 12 + each * r.marks.length) + (narrow ? 20 : 0);
    const high_ = rows.reduce((sum, r) => sum + line(r), 8), all = high_ + 44;
    const drawing = el("svg", { id, class: "plot rows", viewBox: "0 0 " + width + " " + all, width, height: all, role: "img", "aria-label": title + ". A table follows." });
    for (const tick of niceTicks(low, high, (width - left - right) / 60)) drawing.append(el("line", { x1: x(tick), x2: x(tick), y1: 4, y2: high_, stroke: "currentColor", opacity: 0.12 }), el("text", { x: x(tick), y: high_ + 16, "text-anchor": "middle" }, options.tick(tick)));
    if (options.zero) drawing.append(el("line", { x1: x(0), x2: x(0), y1: 4, y2: high_, stroke: "currentColor", "stroke-width": 1.5, opacity: 0.7 }));
    drawing.append(el("text", { x: left + (width - left - right) / 2, y: all - 8, "text-anchor": "middle", class: "soft" }, narrow ? options.xShort : options.xName));
    let top = 8;
    rows.forEach((row) => {
      const middle = top + line(row) / 2 + (narrow ? 10 : 0), many = row.marks.length;
      const name = (text, y, className) => drawing.append(el("text", { x: narrow ? left : left - 14, y, "text-anchor": narrow ? "start" : "end", class: className }, cut(measuring(className === "strong" ? STRONG : PLAIN), text, narrow ? width - (alone ? 150 : 20) : left - 18)));
      if (narrow && alone) drawing.append(el("text", { x: width - 8, y: top + 12, "text-anchor": "end" }, beside(row.marks[0])[0] + (row.marks[0].low == null ? "" : " (" + beside(row.marks[0])[1] + ")")));
      name(narrow && row.note ? "\u2068" + row.name + "\u2069, " + row.note : row.name, narrow ? top + 12 : middle + (row.note ? -2 : 4), "strong");
      if (!narrow && row.note) name(row.note, middle + 12, "soft");
      row.marks.forEach((m, i) => {
        const y = middle + (i - (many - 1) / 2) * each, { color } = lineStyle(m.index), said = (legend.size ? m.label + "\n" : row.name + "\n") + m.text;
        if (m.low != null) drawing.append(el("line", { x1: x(m.low), x2: x(m.high), y1: y, y2: y, stroke: color, "stroke-width": 2.5, "stroke-linecap": "round" }));
        drawing.append(el("circle", { cx: x(m.value), cy: y, r: 5, fill: color }));
        const [value, ends] = beside(m), at = { x: width - right + 14 };
        if (!narrow) drawing.append(el("text", { ...at, y: y + (ends ? -2 : 4), class: alone ? "strong" : null }, value), ends ? el("text", { ...at, y: y + 12, class: "soft" }, ends) : "");
        drawing.append(el("rect", { x: left, y: y - each / 2, width: width - left - right, height: each, fill: "transparent", onpointermove: (e) => tip(said, e.clientX, e.clientY), onpointerleave: () => tip("") }));
      });
      top += line(row);
    });
    box.replaceChildren(drawing);
  }
  page.forests.push({ draw, box });
  new ResizeObserver(() => draw()).observe(box);
  draw();
  return made;
}

const PLAIN = "11px system-ui, sans-serif", STRONG = "600 12px system-ui, sans-serif", ruler = document.createElement("canvas").getContext("2d");
const measuring = (font) => { ruler.font = font; return ruler; };
const wide = (text, font) => measuring(font).measureText(text).width;
const dotKey = (index) => svgKey(el("circle", { cx: 14, cy: 5, r: 5, fill: lineStyle(index).color }));

// Round numbers from low to high, about `count` of them.
function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(2, count), power = 10 ** Math.floor(Math.log10(rough)), step = power * [1, 2, 5, 10].find((s) => s * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(+(i * step).toPrecision(10));
  return found;
}
