"""Experiments: a spec in TOML, a store that survives being killed, and results chosen by stated rules."""

from irmtv.lab.experiments.results import read_records, read_results
from irmtv.lab.experiments.run import ExperimentInterrupted, Report, run_experiment
from irmtv.lab.experiments.spec import Spec, SpecError
from irmtv.lab.experiments.spec_file import load_spec, parse_spec
from irmtv.lab.experiments.store import Store
from irmtv.lab.experiments.store_files import StoreBusy, StoreDamaged, StoreError, StoreFull
from irmtv.lab.experiments.store_repair import repair_store

__all__ = [
    "ExperimentInterrupted",
    "Report",
    "Spec",
    "SpecError",
    "Store",
    "StoreBusy",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "load_spec",
    "parse_spec",
    "read_records",
    "read_results",
    "repair_store",
    "run_experiment",
]
