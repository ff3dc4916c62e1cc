"""What a center can check on its own machine, before a coordinator asks: `fedmt check center.toml`.

The same is checked before round 1, when the center is asked. But then its owner may not be there, and the
coordinator learns only that there is a problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fedmt.config import Config, build_method, build_summing, load_config, read_toml
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import LabelSpace
from fedmt.core.registry import NotAllowed, importing_only
from fedmt.data.center import Center
from fedmt.data.loading import Vocabulary
from fedmt.engines.budget import privacy_notes
from fedmt.engines.device import pick_device
from fedmt.engines.flower.allowing import check_names
from fedmt.engines.flower.answers import not_promised
from fedmt.engines.flower.checking import other_labels
from fedmt.engines.flower.keys import Key, fingerprint
from fedmt.engines.flower.settings import CenterFile, CenterSettings
from fedmt.inputs import INPUTS
from fedmt.methods import FedMT, Method
from fedmt.privacy.masking.terms import least_threshold


@dataclass(frozen=True)
class Checked:
    """center: None if nothing says how its samples are read. method: the coordinator's, if it is known."""

    file: CenterFile
    center: Center | None
    method: Method | None = None
    notes: tuple[str, ...] = ()


def check_center(path: Path, federation: Path | None) -> Checked:
    """Reads a center's file and its data. All problems are in one error.

    federation: a copy of the coordinator's config, with which the center is compared.
    """
    settings = CenterSettings.read(path)
    file, key = settings.file, settings.private_key()
    own = f"{path}: center '{file.name}'"
    problems: list[str] = []
    try:
        pick_device(file.device)
    except FedmtError as error:
        problems.append(f"{own}: {error}")
    if federation is None and problems:
        raise FedmtError(problems[0])
    if federation is None:
        # For trials, a center's file may name the config from which its data come.
        center = None if file.federation is None else settings.of_federation()
        return Checked(file, center)
    raw, _ = read_toml(federation)
    try:
        check_names({"config": raw}, file.allow)  # before anything that the config names is imported
    except NotAllowed as error:
        raise FedmtError(f"{own}: {error}.") from None
    with importing_only(settings.importable):
        config = load_config(federation)
        if config.wanted is None:
            raise FedmtError(
                f"{federation}: this config has a [benchmark], which is one set on one machine. Expected the "
                "coordinator's config, with [[centers]]."
            )
        spaces = {name: LabelSpace(name, classes) for name, classes in config.spaces.items()}
        misfits = _misfits(settings, key, config, spaces, federation)
        problems += [f"{own}: {said}{'' if said.endswith('?') else '.'}" for said in misfits]
        wanted = spaces[config.wanted]
        try:
            center, notes = settings.read_as(wanted, INPUTS[config.input].without_reference(config.options))
            method = replace(build_method(config), privacy=file.privacy).knowing(wanted)
            method.check_private_center(center)
            problems += [f"{own}: {said}." for said in _too_many(settings, center, config, federation)]
            other = _other_correspondence(center, config, wanted, method, path, federation)
            notes = (*notes, *privacy_notes(method, [center]), *other)
        except FedmtError as error:
            problems.append(str(error))
    if problems:
        raise FedmtError("\n".join(problems))
    return Checked(file, center, method, notes)


def _misfits(
    settings: CenterSettings,
    key: Key | None,
    config: Config,
    spaces: dict[str, LabelSpace],
    federation: Path,
) -> Iterator[str]:
    """Everything in a center's file that the coordinator's config contradicts."""
    file, members = settings.file, {c.name: c for c in config.centers}
    member = members.get(file.name)
    if member is None:
        hint = nearest(file.name, members)
        yield f"{federation} has no center of this name; it has {listed(members)}{hint and '.'}{hint}"
        return
    space = settings.space()
    own = None if space is None else [space.name, list(space)]
    said = other_labels(own, None if member.space is None else spaces[member.space])
    if said:
        yield said
    if member.key is not None and key is None:
        yield f"key is not set, but {federation} expects the answers to be signed. Name the private key"
    elif member.key is not None and key is not None and fingerprint(key.public_key()) != member.key:
        yield (
            f"the key {file.key} has the fingerprint {fingerprint(key.public_key())}, but {federation} "
            f"expects {member.key}"
        )
    promise = None if file.privacy is None else {"epsilon": file.privacy.epsilon, "delta": file.privacy.delta}
    if said := not_promised(promise, config.privacy):
        yield said
    if config.sums_only and (key is None or not file.peers):
        yield f"{federation} has secure aggregation, which needs `key` and [peers] in center.toml"
    summing = build_summing(config, len(config.centers))
    everyone = len({*file.peers, file.name})
    least = file.threshold or least_threshold(everyone)
    if summing is not None and file.peers and least > summing.threshold:
        why = "" if file.threshold else f" because with [peers] it counts {everyone} centers,"
        yield f"its threshold is {least},{why} but that of {federation} is {summing.threshold}"
    if getattr(build_method(config), "average", False) and not file.share_correspondence:
        yield f"{federation} has method.average, which needs share_correspondence = true in center.toml"
    if config.sums_only and file.share_metrics:
        yield f"share_metrics = true, but {federation} has secure aggregation, which excludes it"
    if file.peers and not config.sums_only:
        yield f"[peers] allows only masked updates, but {federation} has no secure aggregation"
    for name, other in members.items():
        if file.peers and name != file.name and file.peers.get(name) != other.key:
            yield (
                f"[peers] has {file.peers.get(name, 'no key')} for '{name}', but {federation} has "
                f"{other.key or 'none'}. Ask '{name}' for the fingerprint of its key"
            )


def _too_many(settings: CenterSettings, center: Center, config: Config, federation: Path) -> Iterator[str]:
    """Whether its number of samples is above the bound that secure aggregation needs."""
    summing, privacy = build_summing(config, len(config.centers)), settings.file.privacy
    size = len(center) if privacy is None else privacy.public_size(len(center))
    if summing is not None and size > summing.max_samples:
        most = f"deployment.max_samples of {federation} is {summing.max_samples:,}"
        yield f"it has {size:,} samples, but {most}"


def _other_correspondence(
    center: Center,
    config: Config,
    wanted: LabelSpace,
    method: Method,
    path: Path,
    federation: Path,
) -> Iterator[str]:
    """A note if a correspondence in the coordinator's config is not the one that the center will use.

    The coordinator sends none, because M belongs to the center. It cannot notice a difference either: it
    believes that M is known, whereas the center estimates it.
    """
    member = next((c for c in config.centers if c.name == center.name), None)
    if member is None or center.space is None or center.labels_as_wanted:
        return
    if member.correspondence is None and center.space.name not in config.correspondences:
        return
    if not isinstance(method, FedMT) or method.correspondence != "given":
        return  # a center of another method uses none
    if center.correspondence is None:
        yield (
            f"{federation} gives the correspondence of '{center.space.name}', but {path} gives none, and the "
            "coordinator sends none. So this center will estimate its own. To use the given one, copy it to "
            f"`correspondence` in {path}."
        )
        return
    vocabulary = Vocabulary({}, config.correspondences, str(federation))
    try:
        theirs = vocabulary.correspondence(wanted, center.space, member.correspondence, "")
    except FedmtError:
        return  # such as a CSV file that only the coordinator has
    if theirs != center.correspondence:
        yield (
            f"the correspondence of {path} differs from the one in {federation}. Training here uses that of "
            f"{path}."
        )
