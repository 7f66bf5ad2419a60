"""Text with many different values, as numbers. Apart from the other steps, since skrub takes long to load."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pandas as pd
import skrub

COMPONENTS = 16  # numbers that a column with many texts becomes
LEVELS = 20_000  # texts that these are learned from, at most


def table_vectorizer(**settings: Any) -> Any:
    """skrub's `TableVectorizer`, with our encoder of text."""
    return skrub.TableVectorizer(high_cardinality=LevelEncoder(n_components=COMPONENTS, random_state=0), **settings)


class LevelEncoder(skrub.StringEncoder):  # type: ignore[misc]  # skrub is not annotated
    """skrub's `StringEncoder`, which learns from every text once and computes it once, however many rows have it.

    A million rows with ten thousand different texts cost as much as ten thousand rows. A missing text is all zeros.

    Attributes
    ----------
    terms_ : array of str
        Groups of letters by number: the vectorizer's vocabulary, as an array, since a model file is written and read
        many times faster with it.
    """

    __module__ = "irmtv.data.tables.steps"  # as it stands in model files

    def fit_transform(self, X: pd.Series, y: Any = None) -> pd.DataFrame:
        """Learn from the different texts, at most 20,000 of them, and encode all."""
        levels = pd.Series([str(text) for text in X.dropna().unique()], name=X.name, dtype=object)
        if len(levels) > LEVELS:
            levels = levels.sample(LEVELS, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # fewer texts than components: then there are fewer
            super().fit_transform(levels)
        vocabulary = self.vectorizer_.__dict__.pop("vocabulary_")
        self.terms_ = np.array(sorted(vocabulary, key=vocabulary.__getitem__), dtype=str)
        return self.transform(X)

    def transform(self, X: pd.Series) -> pd.DataFrame:
        """Encode every different text once."""
        codes, levels = pd.factorize(X)  # (N,), -1 where missing
        values = np.zeros((len(levels) + 1, self.n_components_), dtype=np.float32)
        if len(levels):
            whole = copy.copy(self)
            whole.vectorizer_ = copy.copy(self.vectorizer_)
            whole.vectorizer_.vocabulary_ = {term: i for i, term in enumerate(self.terms_.tolist())}
            texts = pd.Series([str(text) for text in levels], name=self.input_name_, dtype=object)
            values[:-1] = super(LevelEncoder, whole).transform(texts)
        made = values[codes]  # the last row, zeros, for what is missing
        return pd.DataFrame(made, columns=list(self.all_outputs_), index=X.index, copy=False)
