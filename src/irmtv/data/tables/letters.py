"""Text with many different values as numbers, by groups of three and four letters: applied by NumPy alone.

A text t becomes z(t) V. z(t) counts the groups of letters inside its words, weighs each by how rare it was in training
(idf), and has length 1; V (groups, n) was learned by skrub's `StringEncoder`. Only groups of training count.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from irmtv.data.tables.texts import check_texts, nulls_among

SHORT, LONG = 3, 4  # letters of a group; a word has a space before and after it
TOGETHER = 1 << 12  # texts that are encoded at a time
MOST_KNOWN = 1 << 16  # texts that are remembered: a table in pieces has the same ones again and again
MOST_LETTERS = (1 << 16) - 2  # that groups consist of: four letters are one integer of 64 bits


class _Groups(NamedTuple):
    """The groups of training, to look others up."""

    letters: npt.NDArray[np.uint32]  # (A,) sorted
    keys: npt.NDArray[np.uint64]  # (T,) sorted
    places: npt.NDArray[np.int64]  # (T,) of each key among the groups


@dataclass(frozen=True)
class Letters:
    """A column of text: n numbers for each value, zeros for one that is missing."""

    groups: Sequence[str]  # (T,) those of training
    idf: str  # (T,) float64, as `packed`
    components: str  # (T, n) float32, as `packed`
    n_outputs: int
    nulls: Sequence[str]  # texts that stand for a missing value

    def __post_init__(self) -> None:
        check_texts(self.groups, "groups")
        check_texts(self.nulls, "nulls")
        if not self.groups or not {len(group) for group in self.groups} <= {SHORT, LONG}:
            raise ValueError(f"groups must have {SHORT} or {LONG} letters")
        if type(self.n_outputs) is not int or self.n_outputs < 1:
            raise ValueError(f"a text must become numbers. Got {self.n_outputs!r}")
        if len(self._groups.letters) > MOST_LETTERS:
            raise ValueError(f"groups must consist of at most {MOST_LETTERS:,} different letters")
        if not ((self._idf > 0) & np.isfinite(self._idf)).all() or not np.isfinite(self._components).all():
            raise ValueError("idf and components must be finite, and idf above 0")

    @cached_property
    def _known(self) -> dict[str, npt.NDArray[np.float32]]:
        return {}

    @cached_property
    def _idf(self) -> npt.NDArray[np.float64]:
        return _unpacked(self.idf, "idf", "<f8", (len(self.groups),)).astype(np.float64)

    @cached_property
    def _components(self) -> npt.NDArray[np.float64]:
        return _unpacked(self.components, "components", "<f4", (len(self.groups), self.n_outputs)).astype(np.float64)

    @cached_property
    def _groups(self) -> _Groups:
        points = _points("".join(group.ljust(LONG) for group in self.groups)).reshape(-1, LONG)
        points[[len(group) == SHORT for group in self.groups], SHORT] = 0
        letters = np.unique(points[points > 0])
        keys = _keys(np.where(points > 0, np.searchsorted(letters, points) + 1, 0))
        places = np.argsort(keys)
        return _Groups(letters, keys[places], places)

    def table(self, values: Any) -> npt.NDArray[np.float32]:
        """(L + 1, n): what every value becomes, and a missing one last."""
        given = np.asarray(values, dtype=object).tolist()
        gone = nulls_among(given, self.nulls)
        texts = ["" if null else str(value) for value, null in zip(given, gone, strict=True)]
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        made = np.zeros((len(new) + 1, self.n_outputs), dtype=np.float32)
        for start in range(0, len(new), TOGETHER):
            self._encode(new[start : start + TOGETHER], made[start:])
        known = self._known | dict(zip(new, made, strict=False))
        if len(known) <= MOST_KNOWN:
            self._known.update(known)
        return np.array([*(known[text] for text in texts), made[-1]])

    def _encode(self, texts: Sequence[str], made: npt.NDArray[np.float32]) -> None:
        """Write what the texts become into the first rows of `made`, which are zeros."""
        words = [[f" {word} " for word in text.lower().split()] for text in texts]
        lengths = np.array([len(word) for own in words for word in own], dtype=np.int64)
        if not len(lengths):
            return
        row = np.repeat(np.repeat(np.arange(len(texts)), [len(own) for own in words]), lengths)  # of each letter
        left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(row))  # letters of its word from here on
        of = self._groups
        points = _points("".join(word for own in words for word in own))
        place = np.searchsorted(of.letters, points).clip(max=len(of.letters) - 1)
        known = np.where(of.letters[place] == points, place + 1, MOST_LETTERS + 1)
        ahead = np.lib.stride_tricks.sliding_window_view(np.append(known, [0] * SHORT), LONG)  # (letters, LONG)
        shorter = ahead.copy()
        shorter[:, SHORT] = 0
        keys = np.concatenate([_keys(shorter[left >= SHORT]), _keys(ahead[left >= LONG])])
        rows = np.concatenate([row[left >= SHORT], row[left >= LONG]])
        found = np.searchsorted(of.keys, keys).clip(max=len(of.keys) - 1)
        hit = of.keys[found] == keys
        pairs, counts = np.unique(rows[hit] * len(of.keys) + of.places[found[hit]], return_counts=True)
        if not len(pairs):
            return
        rows, groups = np.divmod(pairs, len(of.keys))
        shares = counts * self._idf[groups]
        shares /= np.sqrt(np.bincount(rows, np.square(shares)))[rows]
        some, first = np.unique(rows, return_index=True)
        made[some] = np.add.reduceat(shares[:, None] * self._components[groups], first)


def packed(values: npt.NDArray[Any], dtype: str) -> str:
    """Numbers as text, for JSON: the bytes of little-endian floats in base 64."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode("ascii")


def _unpacked(text: Any, name: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=dtype).reshape(shape)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be {shape} numbers in base 64") from error


def _points(text: str) -> npt.NDArray[np.uint32]:
    """Letters as numbers."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32)


def _keys(letters: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """(n, LONG) numbers of 16 bits as one number each."""
    return np.ascontiguousarray(letters, dtype="<u2").view("<u8")[:, 0].astype(np.uint64)
