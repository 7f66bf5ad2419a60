"""Which files every data set needs, whether they are on this machine, and whether they are whole.

Nothing here downloads: looking must not fetch gigabytes. Loaders download, when a data set is loaded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from irmtv.core.messages import did_you_mean
from irmtv.datasets.fetch import VARIABLE, DataFile, open_unpacked

CACHE = "the cache of downloads"


@dataclass(frozen=True)
class Source:
    """A data set of files: what it is, whose, and what reads it. Its module is imported when it is first needed."""

    name: str  # as specs and the command line call it
    module: str  # in irmtv.datasets; has FILES, a tuple of DataFile
    loader: str  # function of that module: (random_state, data_home=...) -> Task
    title: str
    rows: int | None  # of its files; None: differs between copies
    licence: str
    source: str
    citation: str
    n_train: int | None = None  # what the loader gives by default; None: depends on the copy
    n_test: int | None = None
    any_file: bool = False  # one of the files will do: they are layouts of the same data

    @property
    def files(self) -> tuple[DataFile, ...]:
        found: tuple[DataFile, ...] = self._module.FILES
        return found

    @property
    def card(self) -> dict[str, Any]:
        """What the card of its task says too, whatever the arguments: written here once."""
        facts = {"description": self.title, "source": self.source, "citation": self.citation, "licence": self.licence}
        return facts if self.rows is None else {**facts, "rows": self.rows}

    @property
    def _module(self) -> Any:
        return import_module(f"irmtv.datasets.{self.module}")

    @property
    def cure(self) -> str | None:
        """How to get files that cannot be downloaded, where the module says so."""
        return getattr(self._module, "CURE", None)

    def joined(self, names: Sequence[str]) -> str:
        return (" or " if self.any_file else " and ").join(names)

    def origins(self, files: Sequence[DataFile]) -> str:
        """Where to take files from."""
        return self.joined(list(dict.fromkeys(file.url or self.source for file in files)))

    def load(self, data_home: str | os.PathLike[str]) -> Any:
        """The data set by its loader, from this folder."""
        return getattr(self._module, self.loader)(0, data_home=data_home)


CELEBA_PAGE = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
_CELEBA_CITATION = "Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015"
_CELEBA_LICENCE = "non-commercial research only, by the agreement on CelebA's page"
_ALL = (
    Source(
        "adult",
        module="adult",
        loader="load_adult",
        title="Census records of 1994: is a person's income above 50,000 dollars a year?",
        rows=48_842,
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, https://archive.ics.uci.edu/dataset/2/adult",
        citation="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
        n_train=10_840,
        n_test=38_002,
    ),
    Source(
        "house-prices",
        module="house_prices",
        loader="load_house_prices",
        title="House sales around Seattle, 2014 and 2015: what makes a house dear among those of its year?",
        rows=21_613,
        licence="CC0 1.0",
        source="Kaggle, https://www.kaggle.com/datasets/harlfoxem/housesalesprediction; copy of GitHub's moderndive",
        citation="harlfoxem, House Sales in King County, USA, Kaggle, 2016",
        n_train=5187,
        n_test=11_885,
    ),
    Source(
        "landcover",
        module="landcover",
        loader="load_landcover",
        title="What covers the land, six classes, from 46 measurements of a year in 8 bands of a satellite.",
        rows=None,
        licence="not stated with the file",
        source="MODIS, as gathered for In-N-Out, https://github.com/p-lambda/in-n-out",
        citation=(
            "Xie, Kumar, Jones, Khani, Ma, Liang, In-N-Out: Pre-training and self-training using auxiliary "
            "information for out-of-distribution robustness, ICLR 2021"
        ),
        any_file=True,
    ),
    Source(
        "cerrado",
        module="cerrado",
        loader="load_cerrado",
        title=(
            "What covers the land of Brazil's Cerrado, 9 classes, "
            "from 24 measurements of a year in 9 bands of Landsat-8."
        ),
        rows=5286,
        licence="GPL-2",
        source="R package sitsdata, samples_validation_cerrado, https://github.com/rolfsimoes/sitsdata",
        citation=(
            "Simoes, Camara, Queiroz, Souza, Andrade, Santos, Carvalho, Ferreira, Satellite image time series analysis "
            "for big Earth observation data, Remote Sensing 13 (13), 2021, doi:10.3390/rs13132428"
        ),
        n_train=1792,
        n_test=2745,
    ),
    Source(
        "celeba-features",
        module="celeba",
        loader="load_celeba_features",
        title="Faces of celebrities: does a person smile? 512 features of each image.",
        rows=None,
        licence=_CELEBA_LICENCE,
        source=f"CelebA, {CELEBA_PAGE}; features by `irmtv data celeba-features`, or a published file",
        citation=_CELEBA_CITATION,
    ),
    Source(
        "celeba-standin",
        module="celeba_standin",
        loader="make_celeba_standin",
        title="A stand-in for features of CelebA's images: real attributes of faces, features generated from them.",
        rows=202_599,
        licence=_CELEBA_LICENCE,
        source=f"attributes: CelebA, {CELEBA_PAGE}; features: generated by irmtv.datasets.make_celeba_standin",
        citation=_CELEBA_CITATION,
        n_train=40_000,
        n_test=20_000,
    ),
)
SOURCES: Mapping[str, Source] = {source.name: source for source in _ALL}


def get_source(name: str) -> Source:
    """The data set of that name.

    >>> get_source("adult").rows
    48842
    """
    if name not in SOURCES:
        raise ValueError(f"NAME must be one of {list(SOURCES)}. Got {name!r}.{did_you_mean(name, SOURCES)}")
    return SOURCES[name]


@dataclass(frozen=True)
class Folder:
    """The one folder in which data sets are looked for."""

    path: Path
    said_by: str  # "data_home", the environment variable, or the cache of downloads


def data_folder(data_home: str | os.PathLike[str] | None = None) -> Folder:
    """Where data sets are looked for: as :func:`irmtv.datasets.fetch.find_files` does, without its download.

    Parameters
    ----------
    data_home : path or None, default None
        A folder; None: that of the environment variable IRMTV_DATA, else the cache of downloads.

    Returns
    -------
    Folder

    Examples
    --------
    >>> data_folder(".").said_by
    'data_home'
    """
    variable = os.environ.get(VARIABLE) or None
    if data_home is None and variable is None:
        import pooch  # takes time to import

        return Folder(Path(pooch.os_cache("irmtv")), CACHE)
    said_by = "data_home" if data_home is not None else f"environment variable {VARIABLE}"
    path = Path(data_home if data_home is not None else str(variable)).expanduser()
    if not path.is_dir():
        what = "which is a file" if path.is_file() else "which does not exist"
        raise FileNotFoundError(
            f"{said_by} must be a folder that holds data sets. Got {str(path)!r}, {what}. Name the folder that does."
        )
    return Folder(path, said_by)


@dataclass(frozen=True)
class LocalFiles:
    """A data set's files on this machine."""

    source: Source
    folder: Folder
    paths: tuple[Path | None, ...]  # by file; None: not here

    @property
    def here(self) -> bool:
        """Whether everything that the loader needs is."""
        return not self.missing

    @property
    def missing(self) -> tuple[DataFile, ...]:
        """The files that the loader needs and that are not here."""
        if self.source.any_file and any(path is not None for path in self.paths):
            return ()
        return tuple(file for file, path in zip(self.source.files, self.paths, strict=True) if path is None)

    @property
    def missing_names(self) -> str:
        return self.source.joined([file.name for file in self.missing])

    @property
    def where(self) -> str:
        """The folder of the files, or "not here"; where some are missing, which."""
        folders = {str(path.parent) for path in self.paths if path is not None}
        if not folders:
            return "not here"
        return " and ".join(sorted(folders)) + ("" if self.here else f", without {self.missing_names}")

    @property
    def advice(self) -> str:
        """What to do where a file is not here."""
        by_itself = all(file.url is not None for file in self.missing)
        if not by_itself and self.source.cure is not None:
            return self.source.cure
        origins = self.source.origins(self.missing)
        if self.folder.said_by != CACHE:
            folder = self.folder.path / self.missing[0].data_set
            return f"Put {self.missing_names} into {folder}, from {origins}; or name the folder that holds it."
        folder = Path("FOLDER") / self.missing[0].data_set
        by_hand = f"put {self.missing_names} into {folder}, from {origins}, and set {VARIABLE} to FOLDER"
        if by_itself:
            return f"It is downloaded when it is first loaded; or {by_hand}."
        return f"It cannot be downloaded: {by_hand}."


def look(source: Source, data_home: str | os.PathLike[str] | None = None) -> LocalFiles:
    """Which files of a data set are on this machine. Nothing is read or downloaded.

    Parameters
    ----------
    source : Source
    data_home : path or None, default None
        See :func:`data_folder`.

    Returns
    -------
    LocalFiles

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "adult.data.gz").write_bytes(b"")
    ...     found = look(SOURCES["adult"], folder)
    >>> found.here, [file.name for file in found.missing]
    (False, ['adult.test'])
    """
    folder = data_folder(data_home)
    paths = (next((p for p in file.places(folder.path) if p.is_file()), None) for file in source.files)
    return LocalFiles(source, folder, tuple(paths))


@dataclass(frozen=True)
class FileCheck:
    """One file that is here."""

    file: DataFile
    path: Path
    original: bool | None  # whether its content is the source's, byte for byte; None: no checksum is known
    note: str


@dataclass(frozen=True)
class CheckResult:
    """What came of reading a data set."""

    found: LocalFiles
    problem: str | None = None  # what is wrong and what to do; None: it is good
    files: tuple[FileCheck, ...] = ()
    n_train: int | None = None
    n_test: int | None = None

    @property
    def good(self) -> bool:
        return self.problem is None


def check(source: Source, data_home: str | os.PathLike[str] | None = None) -> CheckResult:
    """Read a data set's files through its loader, count the rows, and compare with the known checksums.

    A file that reads well but is not the source's byte for byte (a header line was added, line ends were changed) is
    good, and reported as another copy. Nothing is downloaded.

    Parameters
    ----------
    source : Source
    data_home : path or None, default None
        See :func:`data_folder`.

    Returns
    -------
    CheckResult
        ``problem`` says what is wrong and what to do, None where all is good.
    """
    found = look(source, data_home)
    if not found.here:
        looked = (
            f"{found.missing_names} of data set {source.name!r} is not in {found.folder.path} ({found.folder.said_by})"
        )
        return CheckResult(found, f"{looked}. {found.advice}")
    try:
        task = source.load(found.folder.path)
        pairs = zip(source.files, found.paths, strict=True)
        files = tuple(_compared(file, path) for file, path in pairs if path is not None)
    except Exception as error:  # whatever a damaged file makes its reader raise is the answer
        kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
        return CheckResult(found, f"{kind}{error}")
    n_train, n_test = len(task.train), len(task.test) if task.test is not None else 0
    for part, expected, n in (("training", source.n_train, n_train), ("test", source.n_test, n_test)):
        if expected is not None and n != expected:
            problem = (
                f"{source.name!r} in {found.where} must give {expected:,} {part} rows. Got {n:,}: the files are not "
                f"those of the source. Take them again, from {source.origins(source.files)}."
            )
            return CheckResult(found, problem, files, n_train, n_test)
    return CheckResult(found, None, files, n_train, n_test)


def _compared(file: DataFile, path: Path) -> FileCheck:
    """With the checksum of the source's file; a packed copy is unpacked first."""
    packed = "" if path.name == file.name else "packed; "
    if file.sha256 is None:
        return FileCheck(file, path, None, f"{packed}no checksum is known")
    digest = hashlib.sha256()
    with open_unpacked(path) as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() == file.sha256:
        return FileCheck(file, path, True, f"{packed}the source's file, byte for byte")
    return FileCheck(file, path, False, f"{packed}another copy than the source's (sha256 {digest.hexdigest()})")
