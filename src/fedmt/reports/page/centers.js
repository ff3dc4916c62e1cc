// The centers of a run: who they are, what each believes of its classes, and how each moved the model.
function drawCenters(run) {
  const kinds = [...new Set(run.centers.flatMap((c) => Object.keys(c.missed)))];
  const names = { left_out: "left out", abstained: "abstained", "dropped out": "dropped out", "not chosen": "not chosen" };
  const columns = [
    { name: "center", text: true, cell: (c) => c.name + (c.reference ? " (reference)" : ""), key: (c) => c.name },
    { name: "samples", cell: (c) => whole(c.samples), key: (c) => c.samples },
    { name: "label space", text: true, cell: (c) => c.space || "–", key: (c) => c.space },
    ...(run.centers.some((c) => c.data) ? [{ name: "data digest", text: true, cell: (c) => c.data || "–", key: (c) => c.data }] : []),
    ...(run.centers.some((c) => c.correspondence) ? [{ name: "M", text: true, cell: (c) => c.correspondence || "–", key: (c) => c.correspondence }] : []),
    { name: "rounds trained", cell: (c) => (c.reference ? "–" : whole(c.trained)), key: (c) => (c.reference ? null : c.trained) },
    ...["abstained", "dropped out", ...kinds.filter((k) => k !== "abstained" && k !== "dropped out")].map((k) => ({ name: names[k] || k, cell: (c) => (c.reference ? "–" : whole(c.missed[k] || 0)), key: (c) => (c.reference ? null : c.missed[k] || 0) })),
    ...(run.centers.some((c) => c.clipped) ? [{ name: "rounds clipped", cell: (c) => (c.reference ? "–" : whole(c.clipped)), key: (c) => (c.reference ? null : c.clipped) }] : []),
    ...(run.centers.some((c) => c.privacy) ? [{ name: "privacy spent (ε)", cell: (c) => (c.privacy ? digits(c.privacy.spent) + (c.privacy.of != null ? " of " + number(c.privacy.of) : "") : "–"), key: (c) => (c.privacy ? c.privacy.spent : null) }] : []),
    ...(run.centers.some((c) => c.norms) ? [{ name: "update norm", cell: (c) => (c.norms ? digits(c.norms[1].at(-1)) : "–"), key: (c) => (c.norms ? c.norms[1].at(-1) : null) }, { name: "update cosine", cell: (c) => (c.cosines ? digits(c.cosines[1].at(-1)) : "–"), key: (c) => (c.cosines ? c.cosines[1].at(-1) : null) }] : []),
    { name: "last loss", cell: (c) => digits(c.loss), key: (c) => c.loss },
    { name: "confident", cell: (c) => percent(c.confident_share), key: (c) => c.confident_share },
    { name: "pseudo-labels right", cell: (c) => percent(c.pseudo_label_accuracy), key: (c) => c.pseudo_label_accuracy },
    ...(run.centers.some((c) => c.prior_error != null) ? [{ name: "error of class shares", cell: (c) => digits(c.prior_error), key: (c) => c.prior_error }] : []),
    ...(run.centers.some((c) => c.errors) ? [{ name: "M-hat error", cell: (c) => (c.errors ? digits(c.errors[1].at(-1)) : "–"), key: (c) => (c.errors ? c.errors[1].at(-1) : null) }] : []),
  ];
  const reasons = run.centers.flatMap((c) => Object.entries(c.reasons).map(([why, n]) => c.name + ", " + n + " rounds: " + why));
  return el("div", {}, table("members", "Centers: samples, label space, where M came from, rounds missed and why", columns, run.centers),
    reasons.length ? el("details", {}, el("summary", {}, "Why centers abstained or were left out"), el("ul", {}, reasons.map((r) => el("li", {}, r)))) : null);
}

// Who is odd: one center's line apart from all others. A norm of 1e6 among ones would hide all the others, so
// beyond a factor of 30 its logarithm is drawn.
function drawUpdates(run, place) {
  const lines = (pick) => run.centers.filter((c) => c[pick]).map((c, i) => ({ name: c.name, index: i, x: c[pick][0], y: c[pick][1], width: 1.5 }));
  const norms = lines("norms"), cosines = lines("cosines");
  if (!norms.length) return;
  const host = el("div", { class: "grid" });
  place.append(host);
  const positive = norms.flatMap((l) => l.y).filter((y) => y > 0), log = Math.max(...positive) > 30 * Math.min(...positive);
  const drawn = log ? norms.map((l) => ({ ...l, y: l.y.map((y) => (y > 0 ? Math.log10(y) : null)) })) : norms;
  const power = (v) => (v == null ? "–" : Math.abs(v) > 3 ? (10 ** v).toExponential(0) : number(10 ** v, 2));
  chart(host, "center-norms", "Norm of each center's update" + (log ? " (logarithmic)" : ""), drawn, { zero: !log, group: "detail", height: 260, ...(log ? { format: (v) => (v == null ? "–" : number(10 ** v)), tick: power } : {}) });
  if (cosines.length) chart(host, "center-cosines", "Cosine of each center's update to the mean of all", cosines, { group: "detail", height: 260, most: 1 });
  place.append(el("p", { class: "note" }, "A center that stands apart may have other data, a technical problem, or bad intentions: look at it."));
}

// How frequent each wanted class is at each center, as the center itself estimated it.
function drawPriors(run, host) {
  const known = run.centers.filter((c) => c.prior), names = classesOf(run, run.wanted);
  if (!known.length || !names.length) return;
  const highest = Math.max(...known.flatMap((c) => c.prior)), share = (i, j) => known[i].prior[j];
  host.append(heat("priors", "Estimated class shares at each center", known.map((c) => c.name), names, (i, j) => share(i, j) / highest, (i, j) => known[i].name + ": " + percent(share(i, j)) + " " + names[j],
    { rows: "center", columns: "wanted class", wide: names.length > 14, low: "0%", high: percent(highest), scale: "of the center's samples", cell: (i, j) => percent(share(i, j)), label: (i, j) => (share(i, j) >= 0.005 ? percent(share(i, j), 0) : "") }));
}
