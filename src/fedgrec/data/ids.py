"""Maps between the ids of users and items and their indices."""

import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import DataError, nearest


class IdMap:
    """An immutable list of ids; an id's place in it is its index."""

    __slots__ = ("_ids", "_index", "kind")

    def __init__(self, ids: Iterable[Hashable], kind: str = "item") -> None:
        """`kind` is what messages call one id: 'user' or 'item'."""
        self.kind = kind
        self._ids: Sequence[Any] = ids if isinstance(ids, range) else tuple(map(_plain, ids))
        self._index: dict[Any, int] | None = None  # built on the first look-up that needs it
        if not isinstance(ids, range) and len(self._lookup()) != len(self._ids):
            raise DataError(f"the {kind} ids repeat themselves: give each {kind} one id")

    @classmethod
    def range(cls, n: int, kind: str = "item") -> Self:
        """The ids 0 … n−1. They are their own indices, so no table is stored."""
        return cls(range(n), kind)

    def extended(self, other: "IdMap") -> "IdMap":
        """These ids, followed by the new ids of the other map."""
        if isinstance(self._ids, range) and isinstance(other._ids, range):
            return self if len(self) >= len(other) else other
        return IdMap(dict.fromkeys([*self, *other]), self.kind)

    def index(self, id: Hashable) -> int:  # noqa: A002 - the word everyone uses for it
        found = self._find(_plain(id))
        if found is None:
            other = self._typed(str(id))  # '5750' for 5750, or 5750 for '5750'
            hint = f" Did you mean {self._ids[other]!r}?" if other is not None else ""
            if isinstance(id, str) and not hint:
                hint = nearest(id, [i for i in self._ids if isinstance(i, str)])
            raise DataError(f"there is no {self.kind} {shown(_plain(id))} in the data.{hint}".removesuffix("."))
        return found

    def parse(self, text: str) -> int:
        """The index of an id typed on a command line: `text` as a string, else as a number."""
        found = self._typed(text)
        if found is not None:
            return found
        if isinstance(self._ids, range) and len(self):
            hint = f": they are numbered from 0 to {len(self) - 1:,}"
        else:
            hint = nearest(text, [str(i) for i in self._ids])
            hint = f".{hint}" if hint else ""
        raise DataError(f"there is no {self.kind} {shown(text)} in the data{hint}")

    def knows(self, text: str) -> bool:
        """Whether `parse` finds this id."""
        return self._typed(text) is not None

    def _typed(self, text: str) -> int | None:
        found = self._find(text)
        if found is not None:
            return found
        if len(text) < 30 and text.strip().removeprefix("-").isdecimal():  # int() refuses thousands of digits
            return self._find(int(text))
        with suppress(ValueError):  # an id such as 2.5, which only Python's callers can have
            found = self._find(float(text))
        return found if found is not None and isinstance(self._ids[found], float) else None  # 1e5 is not 100000

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Any:
        return self._ids[index]

    def __contains__(self, value: object) -> bool:
        return self._find(_plain(value)) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdMap):
            return NotImplemented
        if isinstance(self._ids, range) and isinstance(other._ids, range):
            return self._ids == other._ids
        return tuple(self._ids) == tuple(other._ids)

    __hash__ = None  # type: ignore[assignment]  # maps may be large: nobody should hash them by accident

    def __repr__(self) -> str:
        return f"<IdMap of {len(self):,} {self.kind}s>"

    def to_json(self) -> dict[str, Any]:
        """The ids as a JSON value; a range is stored as one number."""
        if isinstance(self._ids, range):
            return {"kind": self.kind, "range": len(self._ids)}
        for i in self._ids:
            if not isinstance(i, str | int | float):  # JSON would not give None and tuples back as ids
                raise DataError(f"the {self.kind} id {i!r} cannot be saved as JSON: use strings or numbers as ids")
        return {"kind": self.kind, "ids": list(self._ids)}

    @classmethod
    def load(cls, path: str | Path, size: int | None = None) -> Self:
        """Read what `to_json` gave, from a file; `size` is the number of ids that the file must hold."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            found = cls(range(record["range"]) if "range" in record else record["ids"], record["kind"])
        except (OSError, ValueError, KeyError, TypeError, DataError) as error:
            raise DataError(f"{path} is not a saved id map ({error}): restore it, or train again") from error
        if size is not None and len(found) != size:
            raise DataError(
                f"{path} names {len(found):,} {found.kind}s, but there should be {size:,}: it is of another run, or "
                "damaged; restore it, or train again"
            )
        return found

    def _find(self, id: Any) -> int | None:  # noqa: A002
        if isinstance(self._ids, range):
            return int(id) if isinstance(id, int) and id in self._ids else None
        try:
            return self._lookup().get(id)
        except TypeError:  # a list cannot be an id
            return None

    def _lookup(self) -> dict[Any, int]:
        if self._index is None:
            self._index = {i: n for n, i in enumerate(self._ids)}
        return self._index


def number(ids: Iterable[Hashable] | NDArray[Any], kind: str, known: IdMap | None) -> tuple[NDArray[np.int64], IdMap]:
    """The index of each id, and the map of ids: `known`, or a new one."""
    array = ids if isinstance(ids, np.ndarray) else None
    listed = [] if array is not None else list(ids)
    if array is None and all(type(i) is int and abs(i) < 2**63 for i in listed):
        array = np.array(listed, dtype=np.int64)
    if array is not None and array.dtype.kind in "iu" and array.max(initial=0) < 2**63:  # uint64 goes further
        return _number_integers(array.astype(np.int64), kind, known)
    listed = array.tolist() if array is not None else [_plain(i) for i in listed]
    if known is None:
        index: dict[Any, int] = {i: n for n, i in enumerate(dict.fromkeys(listed))}
        known = IdMap(index, kind)
        return np.array([index[i] for i in listed], np.int64), known
    return np.array([known.index(i) for i in listed], np.int64), known


def _number_integers(ids: NDArray[np.int64], kind: str, known: IdMap | None) -> tuple[NDArray[np.int64], IdMap]:
    """`number` for integer ids, without a Python loop over the pairs."""
    if known is None:
        distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        if len(distinct) and distinct[0] == 0 and distinct[-1] == len(distinct) - 1:
            return ids, IdMap.range(len(distinct), kind)
        order = np.argsort(first)  # the distinct ids by first appearance
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return place[inverse], IdMap(distinct[order].tolist(), kind)
    if known == IdMap.range(len(known)):
        wrong = ids[(ids < 0) | (ids >= len(known))]
        if len(wrong):
            known.index(int(wrong[0]))  # raises an error that names the id
        return ids, known
    return np.array([known.index(i) for i in ids.tolist()], np.int64), known


def _plain(value: Any) -> Any:
    """NumPy scalars as Python values, so that ids print as a person would type them."""
    return value.item() if isinstance(value, np.generic) else value


def shown(value: Any) -> str:
    """An id for a message; a long one is shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…{text[-10:]}"
