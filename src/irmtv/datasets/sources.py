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
from irmtv.datasets.fetch import VARIABLE, DataFile, named_folder, no_folder, open_unpacked

CACHE = "the cache of downloads"


@dataclass(frozen=True)
class Source:
    """A data set of files: what it is, whose, which files, and what reads them."""

    name: str  # as specs and the command line call it
    loader: str  # function of irmtv.datasets: (random_state, data_home=...) -> Task
    files: tuple[DataFile, ...]
    title: str
    licence: str
    source: str
    citation: str
    rows: int | None = None  # of its files; None: differs between copies
    n_train: int | None = None  # what the loader gives by default; None: depends on the copy
    n_test: int | None = None
    cure: str = ""  # how to get files that cannot be downloaded
    any_file: bool = False  # one of the files will do: they are layouts of the same data
    instead: tuple[DataFile, ...] = ()  # a smaller copy, read where `files` are not in the folder

    @property
    def card(self) -> dict[str, Any]:
        """What the card of its task says too, whatever the arguments: written here once."""
        facts = {"description": self.title, "source": self.source, "citation": self.citation, "licence": self.licence}
        return facts if self.rows is None else {**facts, "rows": self.rows}

    def joined(self, names: Sequence[str]) -> str:
        return (" or " if self.any_file else " and ").join(names)

    def origins(self, files: Sequence[DataFile]) -> str:
        """Where to take files from."""
        return self.joined(list(dict.fromkeys(file.url or self.source for file in files)))

    def load(self, data_home: str | os.PathLike[str]) -> Any:
        """The data set by its loader, from this folder."""
        return getattr(import_module("irmtv.datasets"), self.loader)(0, data_home=data_home)


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_MODERNDIVE = "https://raw.githubusercontent.com/moderndive/moderndive/016a66a371b2c8f35957628cae77586543f77b68/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
CELEBA_PAGE = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
_CELEBA_CITATION = "Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015"
_CELEBA_LICENCE = "non-commercial research only, by the agreement on CelebA's page"
_ALL = (
    Source(
        "adult",
        loader="load_adult",
        files=(
            DataFile(
                "adult",
                "adult.data",
                _UCI + "adult.data",
                "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
            ),
            DataFile(
                "adult",
                "adult.test",
                _UCI + "adult.test",
                "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
            ),
        ),
        title="Census records of 1994: is a person's income above 50,000 dollars a year?",
        licence="CC BY 4.0",
        source="UCI Machine Learning Repository, https://archive.ics.uci.edu/dataset/2/adult",
        citation="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
        rows=48_842,
        n_train=10_840,
        n_test=38_002,
    ),
    Source(
        "house-prices",
        loader="load_house_prices",
        files=(
            DataFile(
                "house_prices",
                "kc_house_data.csv",
                _MODERNDIVE + "data-raw/kc_house_data.csv",
                "d0875baa0251b21d4bdc9d2ae940a4fe0bb6009824f23dd0e2a5b2bf04557b7e",
            ),
        ),
        title="House sales around Seattle, 2014 and 2015: what makes a house dear among those of its year?",
        licence="CC0 1.0",
        source="Kaggle, https://www.kaggle.com/datasets/harlfoxem/housesalesprediction; copy of GitHub's moderndive",
        citation="harlfoxem, House Sales in King County, USA, Kaggle, 2016",
        rows=21_613,
        n_train=5187,
        n_test=11_885,
    ),
    Source(
        "landcover",
        loader="load_landcover",
        files=(DataFile("landcover", "landcover.pkl"), DataFile("landcover", "landcover.npz")),
        title="What covers the land, six classes, from 46 measurements of a year in 8 bands of a satellite.",
        licence="not stated with the file",
        source="MODIS, as gathered for In-N-Out, https://github.com/p-lambda/in-n-out",
        citation=(
            "Xie, Kumar, Jones, Khani, Ma, Liang, In-N-Out: Pre-training and self-training using auxiliary "
            "information for out-of-distribution robustness, ICLR 2021"
        ),
        cure=(
            "Take landcover.pkl, released with In-N-Out (Xie et al., 2021, https://github.com/p-lambda/in-n-out), or "
            "write landcover.npz with the arrays series (N, 8, 46), latlon (N, 2), label (N,) and, where there are, "
            "domain and climate. Put it into a folder, at its top or in a folder 'landcover', and name the folder by "
            "data_home= or the environment variable IRMTV_DATA; or name the file itself by path=."
        ),
        any_file=True,
    ),
    Source(
        "cerrado",
        loader="load_cerrado",
        files=(DataFile("landcover_cerrado", "samples_validation_cerrado.npz"),),
        title=(
            "What covers the land of Brazil's Cerrado, 9 classes, "
            "from 24 measurements of a year in 9 bands of Landsat-8."
        ),
        licence="GPL-2",
        source="R package sitsdata, samples_validation_cerrado, https://github.com/rolfsimoes/sitsdata",
        citation=(
            "Simoes, Camara, Queiroz, Souza, Andrade, Santos, Carvalho, Ferreira, Satellite image time series analysis "
            "for big Earth observation data, Remote Sensing 13 (13), 2021, doi:10.3390/rs13132428"
        ),
        cure=(
            "The series are samples_validation_cerrado.rda of the R package sitsdata "
            "(https://github.com/rolfsimoes/sitsdata, data/): write X (N, times, bands), y (N,) names of classes, lat "
            "(N,) and lon (N,) by numpy.savez to samples_validation_cerrado.npz, put it into a folder, at its top or "
            "in a folder 'landcover_cerrado', and name the folder by data_home= or the environment variable IRMTV_DATA."
        ),
        rows=5286,
        n_train=1792,
        n_test=2745,
    ),
    Source(
        "celeba-features",
        loader="load_celeba_features",
        files=(DataFile("celeba", "celeba_features.csv"),),  # no reliable address is known
        title="Faces of celebrities: does a person smile? 512 features of each image.",
        licence=_CELEBA_LICENCE,
        source=f"CelebA, {CELEBA_PAGE}; features by `irmtv data celeba-features`, or a published file",
        citation=_CELEBA_CITATION,
        cure=(
            "Make the file by `irmtv data celeba-features`, which reads the aligned images (img_align_celeba.zip) and "
            f"the attributes (list_attr_celeba.txt) of {CELEBA_PAGE}, or take a published one of the same columns; put "
            "it as celeba/celeba_features.csv into the folder that data_home or IRMTV_DATA names."
        ),
    ),
    Source(
        "celeba-standin",
        loader="make_celeba_standin",
        files=(DataFile("celeba_attributes", "celeba.csv"),),  # no reliable address is known
        title="A stand-in for features of CelebA's images: real attributes of faces, features generated from them.",
        licence=_CELEBA_LICENCE,
        source=f"attributes: CelebA, {CELEBA_PAGE}; features: generated by irmtv.datasets.make_celeba_standin",
        citation=_CELEBA_CITATION,
        cure=(
            f"Take list_attr_celeba.txt from {CELEBA_PAGE} (folder Anno), or a CSV of it named celeba.csv; put it into "
            "the folder celeba_attributes of the one that data_home or IRMTV_DATA names."
        ),
        rows=202_599,
        n_train=40_000,
        n_test=20_000,
    ),
    Source(
        "colored-mnist",
        loader="load_colored_mnist",
        files=(
            DataFile(
                "mnist",
                "train-images-idx3-ubyte.gz",
                _MNIST + "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            DataFile(
                "mnist",
                "train-labels-idx1-ubyte.gz",
                _MNIST + "train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
        ),
        instead=(
            DataFile(
                "mnist_t10k",
                "t10k-images-idx3-ubyte.gz",
                _MNIST + "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            DataFile(
                "mnist_t10k",
                "t10k-labels-idx1-ubyte.gz",
                _MNIST + "t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        title="Handwritten digits: is one above 4? Coloured, so that the colour misleads in the test.",
        licence="CC BY-SA 3.0",
        source=f"MNIST, {_MNIST}",
        citation=(
            "LeCun, Cortes, Burges, The MNIST database of handwritten digits, 1998; coloured as by Arjovsky, Bottou, "
            "Gulrajani, Lopez-Paz, Invariant Risk Minimization, 2019, arXiv:1907.02893"
        ),
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
    """Where data sets are looked for: in the folder of :func:`irmtv.datasets.fetch.find_files`, without its download.

    >>> data_folder(".").said_by
    'data_home'
    """
    named = named_folder(data_home)
    if named is None:
        import pooch  # takes time to import

        return Folder(Path(pooch.os_cache("irmtv")), CACHE)
    path, said_by = named
    if not path.is_dir():
        raise FileNotFoundError(
            f"{said_by} must be a folder that holds data sets. Got {no_folder(path)}. Name the folder that does."
        )
    return Folder(path, said_by)


@dataclass(frozen=True)
class LocalFiles:
    """A data set's files on this machine."""

    source: Source
    folder: Folder
    files: tuple[DataFile, ...]  # the source's, or its smaller copy where only that is here
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
        return tuple(file for file, path in zip(self.files, self.paths, strict=True) if path is None)

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
        if not by_itself and self.source.cure:
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
    """Which files of a data set are in the :func:`data_folder`. Nothing is read or downloaded.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "adult.data.gz").write_bytes(b"")
    ...     found = look(SOURCES["adult"], folder)
    >>> found.here, [file.name for file in found.missing]
    (False, ['adult.test'])
    """
    folder = data_folder(data_home)
    found = [
        LocalFiles(source, folder, files, tuple(file.path_in(folder.path) for file in files))
        for files in (source.files, source.instead)
        if files
    ]
    return next((one for one in found if one.here), found[0])


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
    """
    found = look(source, data_home)
    if not found.here:
        looked = (
            f"{found.missing_names} of data set {source.name!r} is not in {found.folder.path} ({found.folder.said_by})"
        )
        return CheckResult(found, f"{looked}. {found.advice}")
    try:
        task = source.load(found.folder.path)
        pairs = zip(found.files, found.paths, strict=True)
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
    as_given = path.name == file.name
    packed = "" if as_given else "unpacked; " if path.name == file.unpacked_name else "packed; "
    if file.sha256 is None or packed == "unpacked; ":
        return FileCheck(file, path, None, f"{packed}no checksum is known")
    digest = hashlib.sha256()
    with path.open("rb") if as_given else open_unpacked(path) as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() == file.sha256:
        return FileCheck(file, path, True, f"{packed}the source's file, byte for byte")
    return FileCheck(file, path, False, f"{packed}another copy than the source's (sha256 {digest.hexdigest()})")
