"""The sources that a config can name, one per file."""

from __future__ import annotations

from dataclasses import replace

from fedmt.core.errors import FedmtError
from fedmt.core.labels import LabelSpace
from fedmt.core.registry import Registry, subclass_of
from fedmt.core.section import Section
from fedmt.data.sampleset import SampleSet, Split
from fedmt.data.sites import read_sites
from fedmt.data.sources.base import Request, Source
from fedmt.data.specs import SourceSpec
from fedmt.inputs import INPUTS

SOURCES: Registry[type[Source]] = Registry(
    "source",
    {
        "folder": "fedmt.data.sources.folder:Folder",
        "manifest": "fedmt.data.sources.manifest:Manifest",
        "npz": "fedmt.data.sources.npz:Npz",
        "npy": "fedmt.data.sources.npz:Npy",
        "table": "fedmt.data.sources.table:Table",
        "idx": "fedmt.data.sources.idx:Idx",
        "text": "fedmt.data.sources.text:TextTable",
        "cifar100": "fedmt.data.sources.cifar100:Cifar100",
        "fashion_mnist": "fedmt.data.sources.fashion_mnist:FashionMnist",
        "fitzpatrick17k": "fedmt.data.sources.fitzpatrick17k:Fitzpatrick17k",
        "arrays": "fedmt.data.sources.arrays:Arrays",
        "remote": "fedmt.data.sources.remote:Remote",
    },
    subclass_of(Source, "fedmt.data.sources.base.Source"),
)


def read_source(
    spec: SourceSpec, options: Section, space: LabelSpace | None, where: str, split: str = ""
) -> SampleSet:
    """Reads a source. `split` is the part to read if the spec does not name one."""
    part: Split = spec.split or ("test" if split == "test" else "train")
    source = find_source(spec, type(options), f"{where}: source")()
    if source.needs_path and spec.path is None:
        raise FedmtError(f"{where}: source '{spec.source}' needs a path.")
    found = source.read(Request(spec, options, space, where, part))
    if spec.group_column is not None and found.groups is None:
        raise FedmtError(
            f"{where}: group_column: source '{spec.source}' does not support groups, so they would be "
            "separated. List the samples in a manifest or a table."
        )
    input = found.input.of(found.samples, where) if isinstance(found.input, type) else found.input
    sites = None if spec.site_column is None else read_sites(spec, len(found), where)
    return replace(found, input=input.as_read(options), sites=sites)


def find_source(spec: SourceSpec, options: type[Section], key: str) -> type[Source]:
    """The source that a table names. Rejected if it reads another input than the one `options` belong to."""
    source = SOURCES.find(spec.source, key)
    kind = None if source.input is None else INPUTS.find(source.input, key)
    if kind is not None and not issubclass(options, kind.options):
        raise FedmtError(
            f"{key}: source '{spec.source}' reads {kind.name}, which is not the config's `input`; choose "
            "another source or input."
        )
    return source


def has_test_part(spec: SourceSpec) -> bool:
    """Whether one source holds training and test samples."""
    return SOURCES.find(spec.source, "benchmark.data: source")().has_test_part(spec)
