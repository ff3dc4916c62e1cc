"""The centers as the report shows them: who took part, what each did, and its correspondence."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmt.data.member import Member
from fedmt.models.correspondences import origin
from fedmt.reports.contribution import contributions
from fedmt.reports.provenance import DIGITS
from fedmt.reports.reported import ReportedRun
from fedmt.reports.results import short
from fedmt.reports.scores import Numbers
from fedmt.runs.evaluation import Evaluation

REASONS = ("abstained", "absent", "left_out")


def origins(run: ReportedRun, method: Mapping[str, Any]) -> dict[str, str]:
    """Where the M of each center came from. Empty before the first evaluation, or if no M is used."""
    if run.evaluation is None or "correspondence" not in method:
        return {}
    found = {
        m.name: origin(method, run.evaluation.wanted, m, m.name in run.evaluation.estimates) or ""
        for m in run.evaluation.members
        if m.name != run.evaluation.reference
    }
    # Without its data, a run folder only knows the centers with an M-hat.
    others = sorted({name for r in run.metrics for name in r["centers"]} - found.keys())
    return found | dict.fromkeys(others, "not known")


def centers(run: ReportedRun, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """Who took part: size, label space, where M came from, rounds missed and why, the last figures; over the
    rounds, M-hat's error, the norm of its update and its cosine to the mean of all; what it contributed.
    sources: see `origins`.
    """
    metrics, evaluation = run.metrics, run.evaluation
    privacy = run.settings.get("privacy") or {}
    members = {m.name: m for m in evaluation.members} if evaluation is not None else {}
    names = list(members) or sorted({name for r in metrics for name in r["centers"]})
    found = []
    parts = contributions(metrics)
    for name in names:
        member = members.get(name)
        records = [(r["round"], r["centers"][name]) for r in metrics if name in r["centers"]]
        missed: dict[str, int] = {}
        reasons: dict[str, int] = {}
        for _, record in records:
            for kind in REASONS:
                if kind in record:
                    key = record[kind] if kind == "absent" else kind
                    missed[key] = missed.get(key, 0) + 1
                    if kind != "absent":
                        reasons[str(record[kind])] = reasons.get(str(record[kind]), 0) + 1
        last: Mapping[str, Any] = next((r for _, r in reversed(records) if "losses" in r), {})
        center: dict[str, Any] = {
            "name": name,
            "samples": member.size if member else None,
            "space": member.space.name if member and member.space else None,
            "reference": evaluation is not None and name == evaluation.reference,
            "correspondence": sources.get(name),
            "data": run.origin.digests.get(name, "")[:DIGITS] or None,
            "trained": sum("losses" in r for _, r in records),
            "missed": missed,
            "reasons": reasons,
            "contribution": short(parts.get(name)),
            "loss": short(last.get("losses", {}).get("loss")),
            "confident_share": short(last.get("confident_share")),
            "pseudo_label_accuracy": short(last.get("pseudo_label_accuracy")),
            "prior_error": short(last.get("prior_error")),
        }
        for key, column in (
            ("errors", "correspondence_error"),
            ("norms", "update_norm"),
            ("cosines", "update_cosine"),
        ):
            values = [(n, r[column]) for n, r in records if column in r]
            if values:
                center[key] = [[n for n, _ in values], [short(v) for _, v in values]]
        spent = [r["privacy_spent"] for _, r in records if "privacy_spent" in r]
        if spent:
            center["privacy"] = {"spent": short(spent[-1]), "of": privacy.get("epsilon")}
        if evaluation is not None and name in evaluation.center_priors:
            center["prior"] = [short(share) for share in evaluation.center_priors[name]]
        center["clipped"] = sum("clipped" in r for _, r in records)
        found.append(center)
    return found


def matrices(evaluation: Evaluation | None, sources: Mapping[str, str]) -> dict[str, Any]:
    """M-hat by center, the M that was given to the others, and the known matrices, each once: many centers
    share one. sources: see `origins`; empty for a method that uses no M.
    """
    if evaluation is None:
        return {"truths": [], "estimates": [], "given": []}
    truths: list[dict[str, Any]] = []
    places: dict[bytes, int] = {}

    def place(member: Member) -> int | None:
        if member.correspondence is None or member.space is None:
            return None
        matrix = member.correspondence.matrix.cpu().numpy()
        key = member.space.name.encode() + matrix.tobytes()
        if key not in places:
            places[key] = len(truths)
            truths.append({"space": member.space.name, "matrix": _bytes(matrix)})
        return places[key]

    estimates = [
        {
            "center": m.name,
            "space": m.space.name if m.space is not None else None,
            "matrix": _bytes(evaluation.estimates[m.name]),
            "truth": place(m),
        }
        for m in evaluation.members
        if m.name in evaluation.estimates
    ]
    given = [
        {"center": m.name, "space": m.space.name, "truth": place(m)}
        for m in evaluation.members
        if m.name in sources
        and m.name not in evaluation.estimates
        and m.correspondence is not None
        and m.space is not None
        and m.space.name != evaluation.wanted
    ]
    return {"truths": truths, "estimates": estimates, "given": given}


def _bytes(matrix: Numbers) -> str:
    """Probabilities as one byte each (to 1/255, which is finer than visible shades), in base 64."""
    return base64.b64encode(np.rint(matrix.clip(0, 1) * 255).astype(np.uint8).tobytes()).decode()
