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
  return el("div", { class: "scroll" + (rows.length > 30 ? " tall" : ""), tabindex: 0, role: "region", "aria-label": caption }, made);
}

// A matrix as a plain table, with names on both sides.
function matrixTable(caption, rowNames, columnNames, cell) {
  const head = el("tr", {}, el("td"), columnNames.map((n) => el("th", { scope: "col" }, n)));
  const rows = rowNames.map((name, i) => el("tr", {}, el("th", { scope: "row", class: "text" }, name), columnNames.map((_, j) => el("td", {}, cell(i, j)))));
  return el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "sr" }, caption), el("thead", {}, head), el("tbody", {}, rows)));
}

function summaryTable() {
  const runs = page.data.runs.map((run, index) => ({ run, index }));
  const spaces = [...new Set(page.data.runs.flatMap((r) => Object.keys(r.accuracy)))].filter((s) => !s.endsWith(" (mean M)"));
  const sizes = new Map(page.data.runs.flatMap((r) => r.spaces.map((s) => [s.name, s.classes.length])));
  const wanted = new Set(page.data.runs.map((r) => r.wanted));
  const columns = [
    { name: "run", text: true, cell: ({ run, index }) => el("span", { class: "named" }, swatch(index), run.label), key: ({ run }) => run.label },
    { name: "method", text: true, cell: ({ run }) => run.method + (run.strategy && run.centers.some((c) => c.trained) ? ", " + run.strategy : ""), key: ({ run }) => run.method },
    ...spaces.map((s) => ({
      name: s + (sizes.has(s) ? " (" + sizes.get(s) + " classes" + (wanted.has(s) ? ", wanted" : "") + ")" : ""),
      cell: ({ run }) => { const a = run.accuracy[s]; return a ? [percent(a.value), el("small", {}, a.n ? percent(a.low) + " to " + percent(a.high) : "no interval")] : "–"; },
      key: ({ run }) => (run.accuracy[s] ? run.accuracy[s].value : null),
    })),
    { name: "ECE", cell: ({ run }) => number(ece(run), 2), key: ({ run }) => ece(run) },
    { name: "rounds", cell: ({ run }) => run.finished ? run.round : run.round + " of " + run.planned, key: ({ run }) => run.round },
    { name: "seconds", cell: ({ run }) => number(run.seconds), key: ({ run }) => run.seconds },
  ];
  return table("runs", "Runs: method, accuracy by label space with 95% interval, seconds", columns, runs,
    { className: ({ index }) => (page.hidden.has(index) ? "off" : null) });
}
function ece(run) { const t = run.tests.find((t) => t.space === run.wanted); return t ? t.ece : null; }
