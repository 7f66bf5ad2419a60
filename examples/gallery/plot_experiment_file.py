"""
An experiment is a file
=======================

Data, methods, repetitions and rules of choice stand in a TOML file. `irmtv run first.toml --out results` does the same
on the command line. Finished runs are kept: the same call goes on where it was stopped.
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt

from irmtv.lab.experiments import parse_spec, read_results, run_experiment
from irmtv.lab.tables import summarise

SPEC = """
name = "first"
repetitions = 3

[data]
name = "simulation"
[data.settings."strong"]
p_s = [0.999, 0.7]
p_v = 0.9
n_samples = 2000

[training]
steps = 600
learning_rate = 0.02

[[methods]]
objective = "erm"

[[methods]]
objective = "irm-tv-l1"
penalty_weight = [100, 1e4]

[selection]
rules = ["iid", "invariance"]
"""

# %%
# Train what is not there yet, and read the results. A rule chooses a penalty weight on held-out rows: "iid" by the
# lowest risk, "invariance" by a test.
with TemporaryDirectory() as folder:
    spec = parse_spec(SPEC)
    run_experiment(spec, Path(folder) / "first")
    results = read_results(spec, Path(folder) / "first")
summary = summarise(results)
worst = summary[(summary["summary"] == "worst") & (summary["metric"] == "accuracy")]
print(worst[["method", "rule", "mean", "sd"]].to_string(index=False))

# %%
alt_text = (
    "Accuracy in the worst test environment by method and rule. 57 percent for ERM with both rules and for IRM-TV-l1 "
    "with the rule iid; 83 percent for IRM-TV-l1 with the rule invariance."
)
fig, axes = plt.subplots()
names = [f"{row.method}\nrule {row.rule}" for row in worst.itertuples()]
axes.bar(names, 100 * worst["mean"], yerr=100 * worst["sd"], color="#1f6f8b", width=0.6, capsize=4)
axes.set_ylabel("worst test environment, accuracy in %")
plt.show()
