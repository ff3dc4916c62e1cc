"""Open sets: methods, strategies, backbones and the like, which a config chooses by name.

A name is either a known one, or "package.module:Name" of the user's own, installed or in the folder where the
command runs. So users extend the library without changing it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module, invalidate_caches
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from fedmt.core.errors import FedmtError, listed, nearest

T = TypeVar("T")


class NotAllowed(FedmtError):
    """A file or a message from elsewhere names code that nobody here allowed."""


_allowed: ContextVar[frozenset[str] | None] = ContextVar("allowed", default=None)


@contextmanager
def importing_only(names: Collection[str] | None) -> Iterator[None]:
    """While inside, `find` imports these users' own names alone; with None, whatever it is asked for.

    For names that come from elsewhere: a coordinator's plan, a model's file.
    """
    token = _allowed.set(None if names is None else frozenset(names))
    try:
        yield
    finally:
        _allowed.reset(token)


class Registry(MutableMapping[str, T], Generic[T]):
    """The known entries by name, in order; `find` also looks up what is a user's own.

    word: what an entry is called in messages. entries: each itself, or the place "package.module:Name" where
    it is imported from when it is first asked for; so listing the names imports nothing. complaint: what is
    wrong with an object that a user named, or None. form: how a user's own is named.
    """

    def __init__(
        self,
        word: str,
        entries: Mapping[str, T | str],
        complaint: Callable[[Any], str | None] = lambda _: None,
        form: str = "package.module:Name",
    ) -> None:
        self.word, self.form = word, form
        self._entries = dict(entries)
        self._complaint = complaint

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping's own would import an entry to see that it is there

    def __getitem__(self, name: str) -> T:
        entry = self._entries[name]
        if isinstance(entry, str):
            entry = self._entries[name] = cast(T, import_named(entry, f"{self.word} '{name}'"))
        return entry

    def __setitem__(self, name: str, entry: T | str) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def find(self, name: object, key: str) -> T:
        """The entry of this name, known or "package.module:Name". key: the config's, for the errors."""
        if isinstance(name, str) and name in self:
            return self[name]
        if not isinstance(name, str) or ":" not in name:
            raise FedmtError(
                f"{key}: no {self.word} {name!r}.{nearest(str(name), self)} Known: {listed(self)}, "
                f"or '{self.form}' of your own."
            )
        where = f"{key}: {self.word} '{name}'"
        allowed = _allowed.get()
        if allowed is not None and name not in allowed:
            raise NotAllowed(f"{where} is code that was not allowed by name, so it was not imported.")
        found = import_named(name, where, self.form)
        wrong = self._complaint(found)
        if wrong is not None:
            raise FedmtError(f"{where}: '{name.partition(':')[2]}' {wrong}")
        return cast(T, found)

    def name_of(self, entry: T) -> str:
        """The name by which `find` gives this class or function again."""
        place = f"{getattr(entry, '__module__', '')}:{getattr(entry, '__qualname__', '')}"
        known = (name for name, value in self._entries.items() if value is entry or value == place)
        return next(known, place)


def value_at(table: Any, *keys: str) -> Any:
    """What stands in nested tables under these keys, whatever they are; None where there is nothing."""
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


class Named:
    """A class that a config chooses. `name` is for messages: unless the class says it, where it is found."""

    name: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):  # what it inherits is another class's
            cls.name = f"{cls.__module__}:{cls.__qualname__}"


OWN_TABLE = {"own table": True}
"""Metadata of a field of an options class which the config sets in a table of its own, named as the field."""


def option_names(entry: type) -> list[str]:
    """The options that a config may give with the entry's name: its fields without a table of their own."""
    return [f.name for f in _fields(entry) if not f.metadata.get("own table")]


def own_tables(entry: type) -> list[str]:
    """The entry's fields that have a table of their own in the config."""
    return [f.name for f in _fields(entry) if f.metadata.get("own table")]


def _fields(entry: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast(Any, entry))


def subclass_of(base: type, place: str) -> Callable[[Any], str | None]:
    """A registry's complaint about what is no subclass of `base`, or one that leaves something out.

    place: where a user imports `base` from.
    """

    def complaint(found: Any) -> str | None:
        if not isinstance(found, type):
            return f"is of type {type(found).__name__}, expected a subclass of {place}."
        if not issubclass(found, base):
            return f"is no subclass of {place}."
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        return f"does not define {listed(missing)}, as a subclass of {place} must." if missing else None

    return complaint


def import_named(spec: str, where: str, form: str = "package.module:Name") -> Any:
    """The object at "package.module:Name"; modules next to the user count too. where: begins the errors."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in module_name.split(".")):
        example = form.rpartition(".")[2].replace("module:", "my_module:")
        raise FedmtError(f"{where}: expected '{form}', for example '{example}'.")
    with importable_from_here():
        try:
            module = import_module(module_name)
        except Exception as error:
            # A missing import *inside* the user's module is another mistake than a missing module.
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
                raise FedmtError(
                    f"{where}: no module '{missing}', neither installed nor in {Path.cwd()}; "
                    "check its name, or run from the folder that holds it."
                ) from None
            raise FedmtError(
                f"{where}: importing '{module_name}' raised {type(error).__name__}: {error}"
            ) from error
    if not hasattr(module, attribute):
        file = getattr(module, "__file__", None) or module_name
        raise FedmtError(
            f"{where}: '{module_name}' ({file}) has no '{attribute}'.{nearest(attribute, vars(module))}"
        )
    return getattr(module, attribute)


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Puts the working directory first on the import path, as `python -m` does; a console script does not."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    invalidate_caches()  # The module may be younger than the interpreter's listing of its folder.
    try:
        yield
    finally:
        sys.path.remove(here)
