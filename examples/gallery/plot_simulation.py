"""
The simulation: two environments, a shift that hurts
====================================================

Five columns cause the target. Ten others merely follow it: 99.9 % of the time in one training environment, 70 % in the
other, and almost never in the last test environment. A plain model (ERM) uses the ten, because they pay in training.
A penalty on the difference between the environments makes a model that does not.
"""

# gallery: 1
# %%
# Make the data: two training environments, four test environments.
import matplotlib.pyplot as plt
import numpy as np

from irmtv import InvariantClassifier
from irmtv.datasets import make_simulation, simulation_limit

task = make_simulation(3000, p_s=(0.999, 0.7), p_v=0.9, random_state=0)
X, y = task.train.x.numpy(), task.train.y.numpy().astype(int)
environment = task.train.environment.numpy()
X_test, y_test = task.test.x.numpy(), task.test.y.numpy().astype(int)
test_environment = task.test.environment.numpy()

# %%
# Train the plain model and the penalised one, and score both in every test environment.
accuracy = {}
for objective in ("erm", "irm-tv-l1"):
    model = InvariantClassifier(objective, hidden=(), penalty_weight=1e3, random_state=0)
    model.fit(X, y, environment=environment)
    table = model.evaluate(X_test, y_test, environment=test_environment)
    accuracy[objective] = 100 * table.by_environment[0]
    print(objective, accuracy[objective].round(1))

# %%
# The plain model falls below chance where the ten columns turn. The penalised one is nearly the same everywhere, close
# to the best that a model without those columns can reach (the line).
alt_text = (
    "Bars of accuracy in four test environments. ERM falls from almost 100 percent in the first to far below 50 "
    "in the last; IRM-TV-l1 stays near the line at 90 percent in all four."
)
fig, axes = plt.subplots()
place = np.arange(4)
axes.bar(place - 0.2, accuracy["erm"], 0.4, label="ERM", color="#b0b0b0")
axes.bar(place + 0.2, accuracy["irm-tv-l1"], 0.4, label="IRM-TV-l1", color="#1f6f8b")
axes.axhline(100 * simulation_limit(0.9), color="black", linewidth=1, linestyle="--", label="best invariant model")
axes.set_xticks(place, [f"the ten agree\n{p:.1%}" for p in (0.999, 0.8, 0.2, 0.001)])
axes.set_ylabel("accuracy, %")
axes.legend(loc="lower left")
plt.show()
