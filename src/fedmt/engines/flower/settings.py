"""A center's own file, center.toml: its data, its label space, its correspondence, and where it stores its
memory.

It stays on the center's machine. `--node-config 'center="/path/to/center.toml"'` passes its path to a
SuperNode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from fedmt.config import build_federation, load_config, read_toml
from fedmt.config.errors import Origin, explain
from fedmt.core.errors import FedmtError, listed, nearest
from fedmt.core.labels import LabelSpace
from fedmt.core.registry import importing_only
from fedmt.core.section import ConfigPath, Section
from fedmt.data.center import Center
from fedmt.data.loading import Vocabulary, load_center
from fedmt.data.sources import SOURCES
from fedmt.data.specs import CenterSpec, CorrespondenceSpec, SourceSpec, fingerprint_at
from fedmt.engines.flower.allowing import BUILT_IN, built_in_names, check_names
from fedmt.engines.flower.clientapp import IDLE
from fedmt.engines.flower.keys import Key, read_private_key
from fedmt.engines.flower.plan import Plan
from fedmt.privacy import PrivacySpec
from fedmt.privacy.masking.terms import least_threshold


class CenterFile(Section):
    """A center's own file, which stays on its machine."""

    name: str = Field(min_length=1)
    """Name of the center, as in the coordinator's config."""
    state: ConfigPath
    """Folder for what the center remembers between rounds: M-hat, a head, the spent privacy budget. Do not
    delete it."""
    data: SourceSpec | None = None
    """Where its samples and labels are stored, with the keys of a source."""
    space: str | None = None
    """Label space of its labels. Leave it out for a center without labels."""
    spaces: dict[str, list[str]] = Field(default_factory=dict)
    """Classes of that label space, as in the coordinator's config."""
    correspondence: CorrespondenceSpec | None = None
    """How its labels correspond to the wanted ones, if known: a CSV file or a table."""
    federation: ConfigPath | None = None
    """Instead of `data`: a federation's config, from which the center of this name is used. This is for
    trials."""
    share_correspondence: bool = False
    """Whether the estimated correspondence may leave the center."""
    share_metrics: bool = False
    """Whether its losses and its share of confident samples may leave the center."""
    share_prior: bool = False
    """Whether its estimate of how frequent the wanted classes are may leave the center, together with its
    number of samples. `--prior centers` needs the estimates of at least two centers if there are several."""
    device: str = "auto"
    """Where to train: `"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"`."""
    key: ConfigPath | None = None
    """File of the private key that its SuperNode is started with. The center signs its answers with it."""
    peers: dict[str, str] = Field(default_factory=dict)
    """Fingerprints of the other centers' keys, by center name. With them, the center sends masked updates
    only (secure aggregation), and only in sums with these centers."""
    threshold: int | None = Field(None, ge=2)
    """Smallest number of centers that such a sum may contain. If it is not set, it is the smallest number
    that is safe."""
    allow: list[str] = Field(default_factory=lambda: [BUILT_IN])
    """What a coordinator's plan may name: `"built-in"` for everything that comes with fedmt, or single names,
    including `"package.module:Name"` of code on this machine."""
    privacy: PrivacySpec | None = None
    """Differential privacy of the center's records, whatever the coordinator asks for."""
    resident: float = Field(default=IDLE, ge=0)
    """Seconds that its process waits for the next message. With 0, each message starts a new process."""

    @property
    def broken_promises(self) -> list[str]:
        """The keys that would reveal what [privacy] promises to hide."""
        shared = ("share_correspondence", "share_metrics", "share_prior") if self.privacy is not None else ()
        return [key for key in shared if getattr(self, key)]


@dataclass(frozen=True)
class CenterSettings:
    """A center's file, checked. simulated: it is not a file but a part of the user's own simulation."""

    file: CenterFile
    where: str
    simulated: bool = False

    @classmethod
    def read(cls, path: Path) -> CenterSettings:
        if not os.path.exists(path):  # also if a folder on the way cannot be entered
            raise FedmtError(f"{path}: there is no such file. Correct the path in --node-config 'center=…'.")
        raw, text = read_toml(path)
        try:
            file = CenterFile.model_validate(raw, context={"folder": path.parent})
        except ValidationError as error:
            raise FedmtError(explain(error, CenterFile, (), Origin(path, text))) from None
        if (file.data is None) == (file.federation is None):
            raise FedmtError(f"{path}: expected either [data] or `federation`.")
        if file.broken_promises:
            raise FedmtError(
                f"{path}: {listed(file.broken_promises)} with [privacy]: this depends on all records and "
                "would be sent without noise. Set it to false."
            )
        if file.data is not None:
            SOURCES.find(file.data.source, f"{Origin(path, text).place('data', 'source')}data.source")
        for name, peer in file.peers.items():
            fingerprint_at(f"{path}: peers.{name}", peer)
        everyone = len({*file.peers, file.name})
        if file.threshold is not None and not least_threshold(everyone) <= file.threshold <= everyone:
            raise FedmtError(
                f"{path}: threshold: {file.threshold} given, expected {least_threshold(everyone)} to "
                f"{everyone}: [peers] and this center are {everyone} centers in total."
            )
        known = (BUILT_IN, *built_in_names())
        odd = [name for name in file.allow if ":" not in name and name not in known]
        if odd:
            raise FedmtError(
                f"{path}: allow: nothing is called {listed(odd)}.{nearest(odd[0], known)}"
                f" Expected '{BUILT_IN}', a name that comes with fedmt, or 'package.module:Name'."
            )
        if file.federation is None and file.space is not None and file.space not in file.spaces:
            raise FedmtError(
                f"{path}: space '{file.space}' is not in [spaces]; list the classes that this center uses."
            )
        return cls(file, str(path))

    def private_key(self) -> Key | None:
        return None if self.file.key is None else read_private_key(self.file.key)

    def check_names(self, plan: Mapping[str, Any]) -> None:
        """Rejects a received plan that names code that the file does not allow."""
        if not self.simulated:
            check_names(plan, self.file.allow)

    @property
    def importable(self) -> frozenset[str] | None:
        """The code on this machine that may be imported to answer a coordinator. None means anything it
        names."""
        if self.simulated:
            return None
        own = () if self.file.data is None else (self.file.data.source,)  # named by the center itself
        return frozenset((*self.file.allow, *own))

    def space(self) -> LabelSpace | None:
        """The space in which the center labels. A federation's config has to be read for it."""
        file = self.file
        if file.federation is not None:
            return self.of_federation().space
        return None if file.space is None else LabelSpace(file.space, file.spaces[file.space])

    def center(self, plan: Plan) -> Center:
        """Its samples and labels, in the shape that the run requires."""
        return self.center_and_notes(plan)[0]

    def center_and_notes(self, plan: Plan) -> tuple[Center, tuple[str, ...]]:
        """The same with the notes of its source, which are for the center's own log."""
        return self.read_as(plan.wanted, plan.read.reading(self.file.state / plan.read.name))

    def read_as(self, wanted: LabelSpace, options: Section) -> tuple[Center, tuple[str, ...]]:
        """The same with the options of an input. wanted: the classes that the model should learn."""
        file = self.file
        if file.federation is not None:
            return self.of_federation(), ()
        assert file.data is not None
        own = {name: LabelSpace(name, classes) for name, classes in file.spaces.items()}
        vocabulary = Vocabulary({**own, wanted.name: wanted}, {}, self.where)
        spec = CenterSpec.model_validate(
            {
                **file.data.model_dump(exclude_unset=True),
                "name": file.name,
                "space": file.space,
                "correspondence": file.correspondence,
            }
        )
        return load_center(spec, wanted, options, vocabulary)

    def of_federation(self) -> Center:
        """The center of this name in the config that `federation` names, which is for trials."""
        assert self.file.federation is not None
        with importing_only(None):  # what this machine's own file names
            federation, _ = build_federation(load_config(self.file.federation))
        found = {c.name: c for c in federation.centers}
        if self.file.name not in found:
            raise FedmtError(
                f"{self.where}: no center '{self.file.name}' in {self.file.federation}; it has "
                f"{listed(found)}."
            )
        return found[self.file.name]
