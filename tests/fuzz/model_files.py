"""Mutated model files, with their right checksum: as somebody who means harm would write them.

`write_bases` fits one model of each kind, as users do, with rows that each can predict. `mutated` changes one of them
at a level that the seed says: bytes, entries of the zip, the header, the arrays, fitted preprocessing, the summary.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
import skrub
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from torch import nn

import irmtv
from fuzz.mutate import NUMBERS, TEXTS, Rng, changed_bytes, changed_tree, odd, one, with_extremes
from irmtv.app.fit import fit_table
from irmtv.app.io import Table
from irmtv.estimators.files import save
from irmtv.persistence.archive import MIMETYPE, pack, seal
from irmtv.persistence.trusted import TRUSTED
from older import AVERAGED
from persistence.files import by_hand, resum

QUICK: dict[str, Any] = {"hidden": (), "max_steps": 5, "random_state": 0}
SMALL_TREES: dict[str, Any] = {"n_estimators": 3, "num_leaves": 3, "n_jobs": 1, "random_state": 0}


def rows(n: int = 60) -> pd.DataFrame:
    """Numbers, gaps, a category, a date, a text; where rows come from, and three targets."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n).round(3),
            "rooms": rng.integers(1, 6, n),
            "kind": rng.choice(["flat", "house, small", "hut"], n),
            "built": [f"20{k:02d}-0{1 + k % 9}-11" for k in rng.integers(10, 24, n)],
            "note": [" ".join(rng.choice(["red", "old", "door", "nice", "view"], 3)) + f" {i}" for i in range(n)],
            "site": np.repeat(["north", "south", "west"], n // 3),
        }
    )
    frame["sold"] = np.where(frame["size"] + rng.normal(size=n) > 0, "yes", "no")
    frame["grade"] = rng.choice(["a", "b", "c"], n)
    frame["when"] = np.arange(n) / 4
    frame["price"] = (100 + 10 * frame["size"] + rng.normal(size=n)).round(3)
    frame.loc[::9, "size"] = np.nan
    return frame


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def write_bases(folder: Path) -> None:
    """One model file of each kind, NAME.irmtv, and the rows."""
    table = rows()
    table.to_csv(folder / "rows.csv", index=False)
    for name, model in {**_estimators(table), **_pipelines(table)}.items():
        save(model, folder / f"{name}.irmtv")
    for kind in ("linear", "mlp", "trees"):
        frame = table.drop(columns=["grade", "price", "when"])
        answer = fit_table(Table(frame), "sold", ["site"], model=kind, steps=3, rounds=3, folds=2)
        save(answer.pipeline, folder / f"fit_{kind}.irmtv", about=answer.summary)


def _estimators(table: pd.DataFrame) -> dict[str, Any]:
    x, e = table[["size", "rooms"]].fillna(0.0), table["site"]
    sold, price, grade = table["sold"], table["price"], table["grade"]
    aux = table["when"]
    return {
        "linear": irmtv.InvariantClassifier("irm-tv-l1", **QUICK).fit(x, sold, environment=e),
        "network": irmtv.InvariantClassifier("vrex", **QUICK | {"hidden": (3,)}).fit(x, grade, environment=e),
        "regressor": irmtv.InvariantRegressor("erm", **QUICK).fit(x, np.c_[price, -price]),
        "minimax": irmtv.InvariantClassifier("minimax-tv-l1", **QUICK).fit(x, sold, aux=aux),
        "tiva": irmtv.InvariantClassifier("tiva", aux="when", **QUICK).fit(x.assign(when=aux), sold),
        "module": irmtv.InvariantClassifier("erm", module=network, max_steps=5).fit(x, sold),
        "classifier_cv": irmtv.InvariantClassifierCV(cv=2, **QUICK).fit(x, sold, environment=e),
        "regressor_cv": irmtv.InvariantRegressorCV(cv=2, **QUICK).fit(x, price, environment=e),
        "boosting": irmtv.InvariantBoostingClassifier("irm-tv-l2", **SMALL_TREES).fit(x, grade, environment=e),
        "boosting_cv": irmtv.InvariantBoostingRegressorCV(cv=2, **SMALL_TREES).fit(x, price, environment=e),
        "inference": irmtv.EnvironmentInference(max_steps=5, n_shuffles=2, random_state=0).fit(x, sold, aux=aux),
        "clusters": irmtv.EnvironmentInference("clusters", n_shuffles=2, random_state=0).fit(x, sold),
    }


def _pipelines(table: pd.DataFrame) -> dict[str, Any]:
    """Preprocessing of scikit-learn and skrub in front of a linear model."""
    numbers = ["size", "rooms"]
    gaps = SimpleImputer(strategy="median")
    steps: dict[str, Any] = {
        "numbers": ColumnTransformer(
            [
                ("spline", make_pipeline(gaps, SplineTransformer(3)), numbers),
                ("bins", make_pipeline(gaps, KBinsDiscretizer(3, **AVERAGED)), ["rooms"]),
                ("poly", make_pipeline(KNNImputer(n_neighbors=2), PolynomialFeatures(2), PCA(2)), numbers),
                ("one", OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2), ["kind"]),
                ("rank", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["kind"]),
            ]
        ),
        "scaled": ColumnTransformer(
            [
                ("quantile", make_pipeline(gaps, QuantileTransformer(n_quantiles=5)), numbers),
                ("power", make_pipeline(gaps, PowerTransformer()), numbers),
                (
                    "union",
                    FeatureUnion([("a", RobustScaler()), ("b", make_pipeline(gaps, StandardScaler()))]),
                    ["size"],
                ),
                ("target", TargetEncoder(cv=2), ["kind"]),
            ]
        ),
        "text": ColumnTransformer(
            [
                ("count", CountVectorizer(max_features=5), "note"),
                ("tfidf", make_pipeline(TfidfVectorizer(), TruncatedSVD(2, random_state=0)), "note"),
                ("hash", HashingVectorizer(n_features=8), "note"),
            ],
            sparse_threshold=0,
        ),
        "skrub": skrub.TableVectorizer(high_cardinality=skrub.MinHashEncoder(n_components=4), cardinality_threshold=10),
        "gap": skrub.TableVectorizer(
            high_cardinality=skrub.GapEncoder(n_components=2, max_iter=1, random_state=0), n_jobs=1
        ),
    }
    features = table.drop(columns=["sold", "grade", "price", "site", "when"])
    fitted = {}
    for name, step in steps.items():
        model = irmtv.InvariantClassifier("erm", **QUICK)
        chain = Pipeline([("prepare", step), ("fill", SimpleImputer(keep_empty_features=True)), ("model", model)])
        fitted[f"pipeline_{name}"] = chain.fit(features, table["sold"])
    return fitted


# --- changes ----------------------------------------------------------------------------------------------


def mutated(bases: dict[str, bytes], seed: int, path: Path) -> str:
    """Write the file of a seed to `path`: one of `bases`, changed; what was done, in words."""
    rng = np.random.default_rng([21, seed])
    most = one(rng, (20_000, 20_000, 100_000, 100_000, 10**9))  # bytes: large ones take longest
    base = one(rng, [name for name, data in bases.items() if len(data) < most])
    if rng.random() < 0.05:
        resum(path, changed_bytes(bases[base][:-64], rng) + b"0" * 64)
        return f"{base}: bytes"
    with zipfile.ZipFile(io.BytesIO(bases[base])) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != "mimetype"}
    done = []
    for _ in range(1 + int(rng.geometric(0.7)) // 2):
        change = one(rng, (_of_header, _of_meta, _of_arrays, _of_parts, _of_parts, _of_entries))
        done.append(change(entries, rng))
    if rng.random() < 0.02:  # an entry twice, or one of another kind, in a zip that somebody else wrote
        listed = [*entries.items(), one(rng, list(entries.items()))] if entries else []
        by_hand(path, listed, one(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    else:
        path.write_bytes(seal(entries))
    return f"{base}: {', '.join(done)}"


def _times(rng: Rng) -> int:
    return int(rng.geometric(0.6))


def _of_header(entries: dict[str, bytes], rng: Rng) -> str:
    _change_json(entries, "irmtv.json", rng)
    return "header"


def _of_meta(entries: dict[str, bytes], rng: Rng) -> str:
    """What is said of the model: parameters, attributes, tables, members, the summary."""
    try:
        header = json.loads(entries["irmtv.json"])
        meta = header["meta"]
        name = one(rng, sorted(meta))
        meta[name] = changed_tree(meta[name], rng, _times(rng))
        entries["irmtv.json"] = json.dumps(header).encode()
        return f"meta {name}"
    except (KeyError, TypeError, ValueError, RecursionError):  # changed before
        return "no meta"


def _change_json(entries: dict[str, bytes], name: str, rng: Rng) -> None:
    data = entries.get(name, b"{}")
    if rng.random() < 0.1:
        entries[name] = changed_bytes(data, rng)
        return
    try:
        entries[name] = json.dumps(changed_tree(json.loads(data), rng, _times(rng))).encode()
    except (ValueError, RecursionError):
        entries[name] = changed_bytes(data, rng)


def _of_entries(entries: dict[str, bytes], rng: Rng) -> str:
    if not entries:
        return "no entries"
    name = one(rng, sorted(entries))
    kind = int(rng.integers(0, 5))
    if kind == 0:
        del entries[name]
    elif kind == 1:
        entries[name] = changed_bytes(entries[name], rng)
    elif kind == 2:
        entries[one(rng, ("parts.skops", "extra.bin", "../x", "arrays.safetensors", "/etc/x", "a/b"))] = entries[name]
    elif kind == 3:
        entries[name] = one(rng, (b"", b"{}", b"[]", MIMETYPE, b"\0" * 1000, b"PK\x05\x06" + b"\0" * 18))
    else:
        entries[name] = pack({"schema.json": entries[name]})
    return f"entry {name}"


def _of_arrays(entries: dict[str, bytes], rng: Rng) -> str:
    name = "arrays.safetensors"
    data = entries.get(name, b"")
    kind = int(rng.integers(0, 4))
    try:
        if kind == 0:
            entries[name] = changed_bytes(data, rng)
        elif kind == 1:
            (size,) = struct.unpack("<Q", data[:8])
            head = {name: data[8 : 8 + size]}
            _change_json(head, name, rng)
            entries[name] = struct.pack("<Q", len(head[name])) + head[name] + data[8 + size :]
        else:
            arrays = safetensors.numpy.load(data)
            chosen = one(rng, sorted(arrays))
            arrays[chosen] = changed_array(arrays[chosen], rng)
            if rng.random() < 0.1:
                arrays[one(rng, sorted(arrays))] = arrays.pop(chosen)
            entries[name] = safetensors.numpy.save({n: np.ascontiguousarray(a) for n, a in arrays.items()})
    except Exception:  # whatever safetensors does not write
        entries[name] = changed_bytes(data, rng)
    return "arrays"


TYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "<i1", "<u1", "<u8", "?")


def changed_array(array: np.ndarray[Any, Any], rng: Rng) -> np.ndarray[Any, Any]:
    """The same numbers in another shape or type, more or fewer of them, or others."""
    kind = int(rng.integers(0, 6))
    with np.errstate(all="ignore"):
        if kind == 0:
            return array.astype(one(rng, TYPES))
        if kind == 1:
            return array.reshape(one(rng, ((-1,), (1, *array.shape), (*array.shape, 1), array.shape[::-1])))
        if kind == 2:
            flat = array.ravel()
            return flat[: int(rng.integers(0, len(flat) + 1))]
        if kind == 3:
            return np.concatenate([array, array]) if array.ndim else np.stack([array, array])
        if kind == 4:
            return np.frombuffer(with_extremes(array.tobytes(), rng), array.dtype).reshape(array.shape)
        changed = array.copy()
        changed[...] = np.asarray(one(rng, NUMBERS), dtype=float).astype(array.dtype)
        return changed


def _of_parts(entries: dict[str, bytes], rng: Rng) -> str:
    name = "parts.skops"
    try:
        with zipfile.ZipFile(io.BytesIO(entries[name])) as archive:
            inside = {n: archive.read(n) for n in archive.namelist()}
    except (KeyError, ValueError, zipfile.BadZipFile):
        return _of_meta(entries, rng)
    arrays = sorted(n for n in inside if n.endswith(".npy"))
    if arrays and rng.random() < 0.3:
        chosen = one(rng, arrays)
        inside[chosen] = _changed_npy(inside[chosen], rng)
    elif rng.random() < 0.7:
        try:
            schema = json.loads(inside["schema.json"])
            for _ in range(_times(rng)):
                _change_nodes(schema, rng)
            inside["schema.json"] = json.dumps(schema).encode()
        except (KeyError, ValueError, RecursionError):
            inside["schema.json"] = changed_bytes(inside.get("schema.json", b"{}"), rng)
    else:
        _change_json(inside, "schema.json", rng)
    entries[name] = pack(inside)
    return "parts"


def _changed_npy(data: bytes, rng: Rng) -> bytes:
    kind = int(rng.integers(0, 3))
    try:
        if kind == 0:
            return changed_bytes(data, rng)
        if kind == 1:
            end = data.index(b"\n")
            return data[:10] + changed_bytes(data[10:end], rng)[: end - 10].ljust(end - 10) + data[end:]
        file = io.BytesIO()
        np.save(file, changed_array(np.load(io.BytesIO(data), allow_pickle=False), rng), allow_pickle=False)
        return file.getvalue()
    except Exception:  # whatever numpy does not read or write any more
        return with_extremes(data, rng)


def _change_nodes(schema: Any, rng: Rng) -> None:
    """A node of the fitted preprocessing: its type, its value, its attributes, what it shares with others."""
    nodes = [node for node in _nodes(schema) if node.get("__loader__")]
    if not nodes:
        return
    node, other = one(rng, nodes), one(rng, nodes)
    values = [n for n in nodes if n["__loader__"] == "JsonNode"]
    objects = [n for n in nodes if n["__loader__"] == "ObjectNode" and isinstance(n.get("content"), dict)]
    kind = int(rng.integers(0, 8))
    if kind <= 2 and values:
        one(rng, values)["content"] = json.dumps(one(rng, (*NUMBERS, *TEXTS, None, True, False)))
    elif kind == 3:
        loader = one(rng, sorted(TRUSTED))
        node["__module__"], _, node["__class__"] = one(rng, sorted(TRUSTED[loader])).rpartition(".")
        node["__loader__"] = loader if rng.random() < 0.5 else node["__loader__"]
    elif kind == 4:
        reference = {"__class__": None, "__module__": None, "__loader__": "CachedNode", "__id__": other.get("__id__")}
        node.clear()
        node.update(reference)
    elif kind == 5:
        mine = json.loads(json.dumps(other))
        node.clear()
        node.update(mine)
    elif objects:
        of = one(rng, objects)["content"].get("content")
        if isinstance(of, dict) and of:
            name = one(rng, sorted(of))
            value = of.pop(name)
            if kind == 6 and isinstance(value, dict):
                of[one(rng, (*TEXTS, *sorted(of)))] = value
    else:
        node[one(rng, sorted(node))] = odd(rng)


def _nodes(tree: Any) -> list[dict[str, Any]]:
    found, waiting = [], [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            found.append(value)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return [node for node in found if isinstance(node.get("__loader__"), str)]
