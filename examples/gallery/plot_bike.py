"""
Bike rentals: a season that was not seen
========================================

How many bikes are rented in an hour, given the hour, the weather and the year? A model that never saw a winter meets
one.
"""

# sphinx_gallery_thumbnail_path = 'gallery_last/plot_bike.png'

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from irmtv import InvariantRegressorCV

bike = pd.read_csv(Path(os.environ["IRMTV_DATA"]) / "bike_sharing" / "bike_sharing.csv.gz")
bike = bike.sample(3000, random_state=0)  # of 17,379 hours, so that this takes seconds
season = bike["season"].map({1: "winter", 2: "spring", 3: "summer", 4: "autumn"})
features = pd.get_dummies(bike[["hr", "weekday", "weathersit"]].astype(str)).astype(float)
features[["temp", "hum", "windspeed", "workingday", "yr"]] = bike[["temp", "hum", "windspeed", "workingday", "yr"]]
y = np.log1p(bike["cnt"])

# %%
# `new_environment_` has the error in every season, by models that were trained without it.
model = InvariantRegressorCV(hidden=(), random_state=0).fit(features, y, environment=season)
print(model.selected_["outcome"], "-", model.selected_["message"])
left_out = model.new_environment_
print(left_out)
seen = model.evaluate(features, y, environment=season, metric="rmse")

# %%
alt_text = (
    "Two bars for each of four seasons: the error of logarithms in training, and in the season when it was left out of "
    "training. The second is higher, most of all in one of the seasons."
)
names = list(left_out["environment"])
known = [seen.by_environment[0][seen.names.index(name)] for name in names]
fig, axes = plt.subplots()
place = np.arange(len(names))
axes.bar(place - 0.2, known, 0.4, color="#b0b0b0", label="season seen in training")
axes.bar(place + 0.2, left_out["chosen"], 0.4, color="#1f6f8b", label="season left out of training")
axes.set_xticks(place, names)
axes.set_ylabel("error of log(1 + rentals), rmse")
axes.set_ylim(0, 1)
axes.legend(loc="upper left", ncols=2)
plt.show()
