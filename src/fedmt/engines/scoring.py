"""The scores of a state's models on samples, for the shared model or the centers' own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedmt.aggregation import Weights, unpacked
from fedmt.engines.site import Site
from fedmt.engines.state import State
from fedmt.engines.testing import Scores
from fedmt.methods.work import Answer


def scores_of(site: Site, state: State) -> Scores:
    """The function that `testing.answered` needs. It loads the state's weights into the site's model."""
    known: dict[int, Tensor] = {}  # tests in several spaces share their samples
    trainer = site.trainer

    def scores(values: Tensor, space: str, answers: Sequence[Answer]) -> list[Tensor]:
        if answers[0].of == "center":
            return _centers_scores(site, values, space, [a.center for a in answers], state)
        if answers[0].of == "shared":
            trainer.load(unpacked("shared", state.server) or state.weights)
            return [trainer.predict(values, site.head(space))]
        if id(values) not in known:
            trainer.load(state.weights)
            known[id(values)] = trainer.predict(values)
        own = known[id(values)]
        return [own if a.matrix is None else own @ a.matrix.to(own).T for a in answers]

    return scores


def _centers_scores(
    site: Site, values: Tensor, space: str, centers: Sequence[str], state: State
) -> list[Tensor]:
    """Each center's own model on the samples, with its head for the space."""
    head = site.head(space)
    if site.local.issubset(frozenset().union(*site.heads)):
        # They differ only in their last layer, so the network below it runs once.
        site.trainer.load(state.weights)
        heads = [_own_head(site, state.kept[c], head) for c in centers]
        return site.trainer.predict_by(values, heads)
    found = []
    for center in centers:
        site.trainer.load(site.model_of(state.weights, state.kept[center]))
        found.append(site.trainer.predict(values, head))
    return found


def _own_head(site: Site, kept: Mapping[str, Tensor], head: int) -> Weights:
    own = unpacked("weights", kept)
    return {k.rpartition(".")[2]: own[k] for k in site.heads[head]}
