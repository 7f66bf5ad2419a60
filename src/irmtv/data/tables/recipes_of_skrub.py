"""What a fitted `TableVectorizer` does to its columns, as recipes; kept where they give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from irmtv.data.tables.letters import Letters, packed
from irmtv.data.tables.recipes import PARTS, SECONDS, Categories, Dates, Recipe, stored
from irmtv.data.tables.summaries import LevelSummary

# steps of skrub that a recipe has a word for, beside the encoder
CLOSE = 1e-5  # of numbers of a text, which are about 0.3: sums in another order; all other numbers are the same
_KNOWN = {"CleanNullStrings", "DropUninformative", "ToDatetime", "CleanCategories", "ToStr", "ShortReprDict"}


def recipes_of(
    vectorizer: Any, answer: pd.DataFrame, levels: Mapping[str, LevelSummary]
) -> dict[str, dict[str, Any]] | None:
    """Recipes of all columns of a TableVectorizer, by name; None where one of them needs skrub.

    `answer` is what skrub made of the different values of each column: a recipe that says anything else of one of them
    is none.
    """
    found = {}
    for name in vectorizer.column_to_kind_:
        recipe, own = _recipe(vectorizer, name), levels[name]
        if recipe is None:
            return None
        rows = len(own.values) + int(own.missing > 0)  # with the missing one, where there is any
        theirs = answer[list(vectorizer.input_to_outputs_[name])].iloc[:rows].to_numpy(dtype=np.float32)
        ours = recipe.table(own.values)[:rows]
        apart = CLOSE if isinstance(recipe, Letters) else 0
        if not np.allclose(ours, theirs, rtol=0, atol=apart, equal_nan=True):
            return None
        found[name] = stored(recipe)
    return found


def _recipe(vectorizer: Any, name: str) -> Recipe | None:
    *steps, encoder = [s for s in vectorizer.all_processing_steps_[name] if type(s).__name__ != "ShortReprDict"]
    if not {type(step).__name__ for step in steps} <= _KNOWN:
        return None
    by_name = {type(step).__name__: step for step in steps}
    cleaner = by_name.get("CleanNullStrings")
    nulls = sorted(set(cleaner.null_strings_)) if cleaner is not None else []
    if type(encoder).__name__ == "DatetimeEncoder":
        return _dates(encoder, by_name["ToDatetime"], nulls)
    if "ToDatetime" in by_name:
        return None
    if type(encoder).__name__ == "OneHotEncoder":
        return _categories(encoder, nulls)
    if type(encoder).__name__ == "OrdinalEncoder":
        return Categories([str(v) for v in encoder.categories_[0] if isinstance(v, str)], None, None, nulls)
    return _letters(encoder, nulls) if type(encoder).__name__ == "LevelEncoder" else None


def _letters(encoder: Any, nulls: list[str]) -> Letters | None:
    n, groups = encoder.n_components_, encoder.terms_.tolist()
    of_groups = encoder.tsvd_.components_.T if hasattr(encoder, "tsvd_") else np.eye(len(groups), n)
    components = packed(of_groups / encoder.scaling_factor_, "<f4")
    try:
        return Letters(groups, packed(encoder.vectorizer_.idf_, "<f8"), components, n, nulls)
    except ValueError:  # more different letters than a recipe can tell apart
        return None


def _dates(encoder: Any, reader: Any, nulls: list[str]) -> Dates | None:
    parts = list(encoder.extracted_features_)
    zone, dtype = reader.output_time_zone_, str(reader.output_dtype_)
    odd = encoder.periodic_encoding is not None or not set(parts) <= {*PARTS, SECONDS}
    if odd or zone is not None or not dtype.startswith("datetime64[") or "%z" in (reader.format_ or ""):
        return None
    return Dates(reader.format_, dtype, parts, nulls)


def _categories(encoder: Any, nulls: list[str]) -> Categories | None:
    values = list(encoder.categories_[0])
    dropped = None if encoder.drop_idx_ is None else encoder.drop_idx_[0]
    if encoder.max_categories is not None or encoder.min_frequency is not None:
        return None
    places, end = list[int | None](), 0
    for i, _ in enumerate(values):
        places.append(None if i == dropped else end)
        end += i != dropped
    texts = [isinstance(value, str) for value in values]
    gone = [place for place, is_text in zip(places, texts, strict=True) if not is_text]
    if len(gone) > 1:
        return None
    labels = [str(value) for value in values if isinstance(value, str)]
    return Categories(labels, [p for p, t in zip(places, texts, strict=True) if t], gone[0] if gone else None, nulls)
