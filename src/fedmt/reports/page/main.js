// Puts it together; where the page is served live, asks for newer data.
function drawAll() {
  const { runs, configurations } = page.data;
  for (const c of configurations) if (c.places.length === 1) { const { metrics, mean_matrix, curves } = runs[c.places[0]]; Object.assign(c, { metrics, mean_matrix, curves }); }
  tip("");
  page.forests = [];
  byId("words").replaceChildren(...words());
  byId("against-baseline").replaceChildren(...againstBaseline());
  byId("words").className = page.data.answer.verdict.replace(" ", "-") || "plain";
  byId("provenance").replaceChildren(...page.data.provenance.map((f) => el("div", {}, el("dt", {}, f.name), el("dd", {}, f.value))));
  byId("tiles").replaceChildren(...tiles());
  downloadControls();
  byId("summary-table").replaceChildren(summaryTable(), summaryNote());
  byId("metrics-body").replaceChildren();
  metricTables(byId("metrics-body"));
  page.charts.forEach((c) => c.plot.destroy());
  page.charts = [];
  curveControls();
  drawCurves();
  detailControls();
  drawDetail();
  const open = runs.filter((r) => !r.finished);
  byId("status").textContent = open.length ? open.map((r) => r.label + " is not finished: round " + r.round + " of " + r.planned + ".").join(" ") : "";
}

function start(data) {
  page.data = data;
  page.metric = data.headline;
  page.run = data.answer.best;  // the page opens on the best run
  page.axis = new Set(data.runs.map((r) => r.planned)).size > 1 ? "share" : "round";
  drawAll();
}

// Colors of what is drawn on a canvas do not follow the style sheet by themselves.
function recolor() { page.charts.forEach((c) => { c.lines.forEach((l, i) => (c.plot.series[i + 1].dash = lineStyle(l.index).dash)); c.plot.redraw(false); c.legend(); }); page.forests.forEach((f) => f.draw()); page.heats.forEach((h) => h.draw()); curveControls(); byId("summary-table").replaceChildren(summaryTable(), summaryNote()); }
darkScreen.addEventListener("change", recolor);
printer.addEventListener("change", recolor);
let unfolded = [];
addEventListener("beforeprint", () => { printing = true; recolor(); unfolded = [...document.querySelectorAll("details:not(.alternative):not([open])")]; unfolded.forEach((d) => (d.open = true)); });
addEventListener("afterprint", () => { printing = false; recolor(); unfolded.forEach((d) => (d.open = false)); });

// The section that is being read is marked beside the page.
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const reading = new IntersectionObserver((seen) => {
  for (const s of seen) if (s.isIntersecting) links.forEach((a, id) => (id === s.target.id ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current")));
}, { rootMargin: "-15% 0px -75% 0px" });
document.querySelectorAll("main > section").forEach((s) => reading.observe(s));

let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { page.charts.forEach((c) => c.plot.setSize({ width: Math.max(240, c.place.clientWidth), height: c.plot.height })); page.heats.forEach((h) => h.draw()); }, 100);
});
addEventListener("keydown", (event) => { if (event.key === "Escape") tip(""); });

async function follow(address) {
  let tag = null;
  for (;;) {
    try {
      const answer = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        tag = answer.headers.get("ETag");
        const focused = document.activeElement && document.activeElement.id, opened = [...document.querySelectorAll("details[open][id]")].map((d) => d.id);
        const place = scrollY;
        page.data = await answer.json();
        drawAll();
        opened.forEach((id) => { const box = byId(id); if (box) box.open = true; });
        if (focused && byId(focused)) byId(focused).focus({ preventScroll: true });
        scrollTo(0, place);
      } else if (answer.status !== 304) throw new Error("status " + answer.status);
      document.body.dataset.connected = "yes";
    } catch (error) {
      document.body.dataset.connected = "no";
      byId("status").textContent = "The server does not answer; this is what it said last.";
      tag = null;
    }
    await new Promise((wake) => setTimeout(wake, 1000));
  }
}

start(JSON.parse(byId("data").textContent));
if (document.body.dataset.live) follow(document.body.dataset.live);
