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

const interval = (metric, low, high) => figure(metric, low).replace(" nats", "") + " to " + figure(metric, high).replace(" nats", "");

// A standard deviation between seeds, in the metric's unit; of shares in percentage points.
const spread = (metric, x) => (x == null ? "–" : metric.unit === "share" ? points(x).slice(1) + " points" : x.toFixed(3));

// A value with its interval beneath; of several seeds, the mean with their standard deviation.
function withInterval(metric, result) {
  if (!result || result.value == null) return "–";
  const beneath = result.seeds ? (result.seeds > 1 ? "± " + spread(metric, result.spread) : "1 seed") : result.low == null ? "no interval" : interval(metric, result.low, result.high);
  return [figure(metric, result.value), el("small", {}, beneath)];
}

// A difference with its sign; of shares in percentage points.
const signed = (m, x) => (m.unit === "share" ? points(x) : (x < 0 ? "−" : "+") + Math.abs(x).toFixed(3));

const metricName = (m) => m.title + (m.better === "lower" ? " (lower is better)" : "");
const metricOf = (name) => page.data.metrics.find((m) => m.name === name);

// One of several panels at a time on the screen, all of them on paper. parts: [{name, panel, titled}], titled: has a heading of its own. Remembers the choice.
function panels(key, label, parts) {
  if (parts.length < 2) return parts.map((p) => p.panel);
  const chosen = Math.max(0, parts.findIndex((p) => p.name === page.panels.get(key)));
  const buttons = parts.map((p, i) => el("button", { type: "button", "aria-pressed": String(i === chosen), onclick: () => choose(i) }, p.name));
  function choose(i) {
    page.panels.set(key, parts[i].name);
    parts.forEach((p, j) => { p.panel.classList.toggle("away", j !== i); buttons[j].setAttribute("aria-pressed", String(j === i)); });
    page.forests.forEach((f) => f.draw());
  }
  parts.forEach((p, j) => { p.panel.classList.toggle("away", j !== chosen); if (!p.titled) p.panel.prepend(el("h3", { class: "print-only" }, label + ": " + p.name)); });
  return [el("div", { class: "segments", role: "group", "aria-label": label }, el("span", {}, label), ...buttons), ...parts.map((p) => p.panel)];
}
