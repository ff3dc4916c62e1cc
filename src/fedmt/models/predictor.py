"""The network that answers in every label space: samples in, probabilities of each space out.

It is one plain module without any training code, shared by predicting, calibrating and exporting. The method
determines how each space is answered (`Method.answers`), as when a run is tested. But while a test averages
the accuracies of several answers, a prediction must be a single answer, so their probabilities are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedmt.aggregation import unpacked
from fedmt.backbones import Classifier, build
from fedmt.backbones.heads import add_heads, find_heads, head_keys
from fedmt.core.errors import FedmtError
from fedmt.core.labels import project
from fedmt.core.seeding import seeded
from fedmt.engines.state import State
from fedmt.inputs import Input
from fedmt.methods import Answer
from fedmt.models.description import Description

Weights = Mapping[str, Tensor]

FROZEN = "frozen"
"""The kind under which a loaded state has the weights of a frozen backbone. Checkpoints do not
contain them."""


@dataclass(frozen=True)
class Part:
    """The columns `start` to `stop` of one network's scores are the logits of one head."""

    network: int
    start: int
    stop: int


class Predictor(nn.Module):
    """Stored samples [B, ...] to probabilities [B, J] for each of `spaces`, the wanted one first.

    parts: by space, the heads whose probabilities are averaged; any other space is answered by the wanted
        space's probabilities through its matrix [J, K]. temperature: divides the wanted space's logits, and
        so also applies to projections of them. Heads of other spaces are not calibrated.
    encoder: a frozen network in front of the others, which see its features as `features` says.
    log_shift: [K], added to them after that, which makes them answers for another prior; zeros by default.
    """

    temperature: Tensor
    log_shift: Tensor

    def __init__(
        self,
        spaces: Sequence[str],
        networks: Sequence[nn.Module],
        parts: Mapping[str, Sequence[Part]],
        matrices: Mapping[str, Tensor],
        input: Input,
        temperature: float = 1.0,
        encoder: nn.Module | None = None,
        features: Input | None = None,
        log_shift: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.input = input
        self.encoder, self.features = encoder, features
        self.spaces = tuple(spaces)
        self.networks = nn.ModuleList(networks)
        self.parts = {space: tuple(own) for space, own in parts.items()}
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("log_shift", torch.zeros(()) if log_shift is None else log_shift)
        for number, space in enumerate(self.spaces):
            if space not in self.parts:
                self.register_buffer(f"matrix_{number}", matrices[space].float())

    def forward(self, samples: Tensor) -> tuple[Tensor, ...]:
        """Probabilities in every space."""
        return self.answer(samples, self.spaces)

    def answer(
        self, samples: Tensor, spaces: Sequence[str], log_shift: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Probabilities in some of the spaces. A network that none of them needs is not run. log_shift:
        replaces its own."""
        views = self.input.plain(samples)
        if self.encoder is not None and self.features is not None:
            views = self.features.plain(self.encoder(views))
        wanted = self.spaces[0]
        asked = {s if s in self.parts else wanted for s in spaces}
        needed = sorted({part.network for space in asked for part in self.parts[space]})
        scores = {number: self.networks[number](views) for number in needed}
        shift = self.log_shift if log_shift is None else log_shift
        by_head = {space: self._by_heads(scores, space, shift) for space in asked}
        return tuple(
            by_head[space] if space in by_head else project(by_head[wanted], self.matrix(space))
            for space in spaces
        )

    def _by_heads(self, scores: Mapping[int, Tensor], space: str, log_shift: Tensor) -> Tensor:
        logits = [scores[p.network][:, p.start : p.stop].float() for p in self.parts[space]]
        if space == self.spaces[0]:
            logits = [own / self.temperature + log_shift for own in logits]
        each = [own.softmax(1) for own in logits]
        return each[0] if len(each) == 1 else torch.stack(each).mean(0)

    def matrix(self, space: str) -> Tensor:
        """The matrix that projects the wanted probabilities into a space without a head."""
        matrix: Tensor = self.get_buffer(f"matrix_{self.spaces.index(space)}")
        return matrix


def assemble(
    description: Description, state: State, center: str | None = None, network: nn.Module | None = None
) -> Predictor:
    """The predictor of a state. center: use this center's own matrix or head instead of the mean.

    network: the user's own module, if there is one.
    """
    roster = description.roster
    if center is not None:
        roster = replace(roster, members=tuple(m for m in roster.members if m.name == center))
    answers = description.build_method().answers(roster, state.kept)
    names = list(description.spaces)
    wanted = names[0]
    spaces = [wanted, *(n for n in names[1:] if answers.get(n))]
    uses: dict[str, list[tuple[Weights, int]]] = {wanted: [(state.weights, 0)]}
    matrices = {}
    for space in spaces[1:]:
        given = [a.matrix for a in answers[space] if a.matrix is not None]
        if given:
            matrices[space] = torch.stack(given).mean(0)
        else:
            uses[space] = [(_weights(a, state), names.index(space)) for a in answers[space]]
    networks, parts = _networks(description, uses, network)
    calibration = description.calibration or {}
    encoder = None
    if description.frozen is not None:
        encoder = description.frozen.network(len(roster.wanted), unpacked(FROZEN, state.server))
    predictor = Predictor(
        spaces,
        networks,
        parts,
        matrices,
        description.asked,
        calibration.get("temperature", 1.0),
        encoder,
        description.input,
        description.log_shift(description.prior),
    )
    return predictor.eval().requires_grad_(False)


def _weights(answer: Answer, state: State) -> Weights:
    """The weights of the model that gives an answer, wherever they are stored."""
    if answer.of == "shared":
        return unpacked("shared", state.server) or state.weights
    if answer.of == "center":
        return {**state.weights, **unpacked("weights", state.kept[answer.center])}
    return state.weights


def _networks(
    description: Description,
    uses: Mapping[str, Sequence[tuple[Weights, int]]],
    given: nn.Module | None,
) -> tuple[list[nn.Module], dict[str, list[Part]]]:
    """One network for each set of weights below the heads, with all heads that are used on it side by side in
    one last layer, and the position of each space's heads in it."""
    skeleton = _skeleton(description, given)
    heads = head_keys(skeleton)
    in_heads = frozenset().union(*heads)
    trunks: list[tuple[tuple[int, ...], Weights, list[tuple[Weights, int]]]] = []
    parts: dict[str, list[Part]] = {space: [] for space in uses}
    sizes = [len(classes) for classes in description.spaces.values()]
    for space, ways in uses.items():
        for weights, head in ways:
            # The very same tensors, because models that differ only in their heads share all others.
            trunk = tuple(id(v) for k, v in sorted(weights.items()) if k not in in_heads)
            number = next((i for i, t in enumerate(trunks) if t[0] == trunk), len(trunks))
            if number == len(trunks):
                trunks.append((trunk, weights, []))
            taken = trunks[number][2]
            start = sum(sizes[h] for _, h in taken)
            taken.append((weights, head))
            parts[space].append(Part(number, start, start + sizes[head]))
    return [_network(description, weights, taken, given) for _, weights, taken in trunks], parts


def _network(
    description: Description,
    weights: Weights,
    taken: Sequence[tuple[Weights, int]],
    given: nn.Module | None,
) -> nn.Module:
    try:
        return _filled(_skeleton(description, given), weights, taken)
    except (RuntimeError, KeyError):
        raise FedmtError(
            f"The saved weights do not fit backbone '{description.backbone}': the network has changed since "
            "the run began."
        ) from None


def _filled(model: Classifier, weights: Weights, taken: Sequence[tuple[Weights, int]]) -> nn.Module:
    """The network with its weights, and with all used heads side by side in one last layer."""
    found, heads = find_heads(model), head_keys(model)
    if found is not None:
        name, old = found
        last = nn.Linear(old.in_features, 1, bias=old.bias is not None)
        tensors = {k: v for k, v in weights.items() if k not in frozenset().union(*heads)}
        for kind in ("weight", "bias") if old.bias is not None else ("weight",):
            rows = [next(own[key] for key in heads[head] if key.endswith(f".{kind}")) for own, head in taken]
            tensors[f"{name}.{kind}"] = torch.cat(rows)
        last.out_features = len(tensors[f"{name}.weight"])
        for kind, parameter in list(last.named_parameters()):
            setattr(last, kind, nn.Parameter(torch.empty_like(tensors[f"{name}.{kind}"])))
            del parameter
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, last)
        weights = tensors
    model.load_state_dict(weights)
    return model


def _skeleton(description: Description, given: nn.Module | None) -> Classifier:
    """The network as it was trained, including its heads, with arbitrary weights."""
    sizes = [len(classes) for classes in description.spaces.values()]
    with seeded(0):
        backbone = build(
            description.backbone,
            sizes[0],
            description.input,
            max_pool=description.max_pool,
            given=given,
            head=description.head,
        )
        model = Classifier(backbone, *description.input.identity_statistics)
        if description.build_method().heads:
            add_heads(model, sizes[0], sizes[1:])
    return model
