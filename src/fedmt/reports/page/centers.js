// The centers of a run: who they are, what each believes of its classes, and how each moved the model.
function drawCenters(run) {
  const kinds = [...new Set(run.centers.flatMap((c) => Object.keys(c.missed)))];
  const names = { left_out: "left out", abstained: "abstained", "dropped out": "dropped out", "not chosen": "not chosen" };
  const columns = [
    { name: "center", text: true, cell: (c) => c.name + (c.reference ? " (reference)" : ""), key: (c) => c.name },
    { name: page.data.word + "s", cell: (c) => whole(c.samples), key: (c) => c.samples },
    { name: "label space", text: true, cell: (c) => c.space || "–", key: (c) => c.space },
    ...(run.centers.some((c) => c.data) ? [{ name: "data digest", text: true, cell: (c) => c.data || "–", key: (c) => c.data }] : []),
    ...(run.centers.some((c) => c.correspondence) ? [{ name: "M", text: true, cell: (c) => c.correspondence || "–", key: (c) => c.correspondence }] : []),
    { name: "rounds trained", cell: (c) => (c.reference ? "–" : whole(c.trained)), key: (c) => (c.reference ? null : c.trained) },
    ...["abstained", ...kinds.filter((k) => k !== "abstained")].map((k) => ({ name: names[k] || k, cell: (c) => (c.reference ? "–" : whole(c.missed[k] || 0)), key: (c) => (c.reference ? null : c.missed[k] || 0) })),
    ...(run.centers.some((c) => c.clipped) ? [{ name: "rounds clipped", cell: (c) => (c.reference ? "–" : whole(c.clipped)), key: (c) => (c.reference ? null : c.clipped) }] : []),
    ...(run.centers.some((c) => c.privacy) ? [{ name: "privacy spent (ε)", cell: (c) => (c.privacy ? digits(c.privacy.spent) + (c.privacy.of != null ? " of " + number(c.privacy.of) : "") : "–"), key: (c) => (c.privacy ? c.privacy.spent : null) }] : []),
    ...(run.centers.some((c) => c.norms) ? [{ name: "update norm", cell: (c) => (c.norms ? digits(c.norms[1].at(-1)) : "–"), key: (c) => (c.norms ? c.norms[1].at(-1) : null) }, { name: "update cosine", cell: (c) => (c.cosines ? digits(c.cosines[1].at(-1)) : "–"), key: (c) => (c.cosines ? c.cosines[1].at(-1) : null) }] : []),
    { name: "last loss", cell: (c) => digits(c.loss), key: (c) => c.loss },
    { name: "confident", cell: (c) => percent(c.confident_share), key: (c) => c.confident_share },
    { name: "pseudo-labels right", cell: (c) => percent(c.pseudo_label_accuracy), key: (c) => c.pseudo_label_accuracy },
    ...(run.centers.some((c) => c.prior_error != null) ? [{ name: "error of class shares", cell: (c) => digits(c.prior_error), key: (c) => c.prior_error }] : []),
    ...(run.centers.some((c) => c.errors) ? [{ name: "M-hat error", cell: (c) => (c.errors ? digits(c.errors[1].at(-1)) : "–"), key: (c) => (c.errors ? c.errors[1].at(-1) : null) }] : []),
  ];
  const reasons = run.centers.flatMap((c) => Object.entries(c.reasons).map(([why, n]) => c.name + ", " + n + (n === 1 ? " round: " : " rounds: ") + why));
  return el("div", {}, table("members", "Centers: size, label space, where M came from, rounds missed and why", columns, run.centers),
    el("p", { class: "note" }, "Norm, cosine, loss and the columns after them are of the last round in which the center trained."),
    reasons.length ? el("details", {}, el("summary", {}, "Why centers abstained or were left out"), el("ul", {}, reasons.map((r) => el("li", {}, r)))) : null);
}

// What each center contributed, as bars: its part of the way that the centers moved the model.
function drawContributions(run, host) {
  const known = run.centers.filter((c) => c.contribution != null).sort((a, b) => b.contribution - a.contribution);
  if (known.length < 2) return;
  const title = "What each center contributed", all = known.reduce((sum, c) => sum + (c.samples || 0), 0), share = (c) => (c.samples == null || !all ? null : c.samples / all);
  const box = el("div"), least = Math.min(0, ...known.map((c) => c.contribution)), most = Math.max(...known.flatMap((c) => [c.contribution, share(c) || 0]));
  const sign = (c) => percent(c.contribution).replace("-", "−");
  function draw() {
    const width = Math.max(240, box.clientWidth || 300), each = 24, high = 6 + each * known.length, right = 52;
    const left = Math.min(width * 0.4, 14 + Math.max(...known.map((c) => wide(c.name, STRONG)))), x = (v) => left + ((v - least) / (most - least)) * (width - left - right);
    const drawing = el("svg", { id: "contributions", class: "plot", viewBox: "0 0 " + width + " " + high, width, height: high, role: "img", "aria-label": title + ". A table follows." });
    known.forEach((c, i) => {
      const y = 6 + i * each, [from, to] = [x(0), x(c.contribution)].sort((a, b) => a - b), said = c.name + "\ncontribution " + sign(c) + "\nshare of " + page.data.word + "s " + percent(share(c));
      drawing.append(el("text", { x: left - 10, y: y + 13, "text-anchor": "end", class: "strong" }, cut(measuring(STRONG), c.name, left - 12)),
        el("rect", { x: from, y: y + 2, width: Math.max(2, to - from), height: 14, rx: 3, class: c.contribution < 0 ? "bar against" : "bar" }),
        ...(share(c) == null ? [] : [el("line", { x1: x(share(c)), x2: x(share(c)), y1: y - 1, y2: y + 19, class: "whisker" })]),
        el("text", { x: width - 4, y: y + 13, "text-anchor": "end" }, sign(c)),
        el("rect", { x: 0, y: y - 3, width, height: each, fill: "transparent", onpointermove: (e) => tip(said, e.clientX, e.clientY), onpointerleave: () => tip("") }));
    });
    drawing.append(el("line", { x1: x(0), x2: x(0), y1: 2, y2: high - 2, stroke: "currentColor", opacity: 0.5 }));
    box.replaceChildren(drawing);
  }
  const key = el("ul", { class: "legend" }, el("li", {}, svgKey(el("rect", { x: 4, width: 20, height: 10, rx: 2, class: "bar" })), "contribution"), all ? el("li", {}, svgKey(el("line", { x1: 14, x2: 14, y1: 0, y2: 10, class: "whisker" })), "share of " + page.data.word + "s") : null);
  host.append(el("figure", { class: "card" }, caption(title, () => byId("contributions")), key, box,
    alternative("contributions-table", title, () => matrixTable(title, known.map((c) => c.name), ["contribution", "share of " + page.data.word + "s"], (i, j) => (j ? percent(share(known[i])) : sign(known[i]))))));
  page.heats.push({ canvas: box, draw });
  draw();
}

// Who is odd: one center's line apart from all others. A norm of 1e6 among ones would hide all the others, so
// beyond a factor of 30 its logarithm is drawn.
function drawUpdates(run, place) {
  const lines = (pick) => run.centers.filter((c) => c[pick]).map((c, i) => ({ name: c.name, index: i, x: c[pick][0], y: c[pick][1], width: 1.5 }));
  const norms = lines("norms"), cosines = lines("cosines");
  if (!norms.length) return;
  const host = place.appendChild(el("div", { class: "grid" }));
  drawContributions(run, host);
  const positive = norms.flatMap((l) => l.y).filter((y) => y > 0), log = Math.max(...positive) > 30 * Math.min(...positive);
  const drawn = log ? norms.map((l) => ({ ...l, y: l.y.map((y) => (y > 0 ? Math.log10(y) : null)) })) : norms;
  const power = (v) => (v == null ? "–" : Math.abs(v) > 3 ? (10 ** v).toExponential(0) : number(10 ** v, 2));
  chart(host, "center-norms", "Norm of each center's update" + (log ? " (logarithmic)" : ""), drawn, { zero: !log, group: "detail", height: 260, ...(log ? { format: (v) => (v == null ? "–" : number(10 ** v)), tick: power } : {}) });
  if (cosines.length) chart(host, "center-cosines", "Cosine of each center's update to the mean of all", cosines, { group: "detail", height: 260, most: 1 });
  if (host.querySelector("#contributions")) place.append(el("p", { class: "note" }, "Contribution: a center's part of the way that the centers together moved the model, over all rounds. It is the length of its update along the mean update. The parts sum to 100%; a center that moves against the others has a negative one. It says who moved the model, not who made it better."));
  place.append(el("p", { class: "note" }, "A center that stands apart may have other data, a technical problem, or bad intentions: look at it."));
}

// How frequent each wanted class is at each center, as the center itself estimated it.
function drawPriors(run, host) {
  const known = run.centers.filter((c) => c.prior), names = classesOf(run, run.wanted);
  if (!known.length || !names.length) return;
  const highest = Math.max(...known.flatMap((c) => c.prior)), share = (i, j) => known[i].prior[j];
  host.append(heat("priors", "Estimated class shares at each center", known.map((c) => c.name), names, (i, j) => share(i, j) / highest, (i, j) => known[i].name + ": " + percent(share(i, j)) + " " + names[j],
    { rows: "center", columns: "wanted class", wide: names.length > 14, low: "0%", high: percent(highest), scale: "of the center's " + page.data.word + "s", cell: (i, j) => percent(share(i, j)), label: (i, j) => (share(i, j) >= 0.005 ? percent(share(i, j), 0) : "") }));
}
