"""
King County: when the plain model is kept
=========================================

House prices, environments by decade of building. Invariance does not help here, and the choice says so: ERM is kept.
"""

# sphinx_gallery_thumbnail_path = 'gallery_last/plot_king_county.png'

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from irmtv import InvariantRegressorCV

houses = pd.read_csv(Path(os.environ["IRMTV_DATA"]) / "house_prices" / "kc_house_data.csv.gz")
houses = houses.sample(2500, random_state=0)  # of 21,613 houses, so that this takes seconds
decade = (houses["yr_built"] // 20 * 20).astype(str) + "s"  # of two decades each, so that every one has rows
columns = ["bedrooms", "bathrooms", "sqft_living", "sqft_lot", "floors", "view", "condition", "grade", "lat", "long"]
X, y = houses[columns].astype(float), np.log(houses["price"])

# %%
model = InvariantRegressorCV(hidden=(), random_state=0).fit(X, y, environment=decade)
print(model.selected_["outcome"], "-", model.selected_["message"])
print(model.new_environment_)

# %%
# Every candidate was measured on held-out rows: the price of a penalty, as risk, over its weight.
alt_text = (
    "Three lines of held-out risk over the penalty weight: over all rows, in the worst environment and in environments "
    "left out. Over all rows and in environments left out it is lowest without a penalty, which is chosen."
)
fig, axes = plt.subplots(figsize=(7, 4.2))
model.plot_path(ax=axes)
axes.set_ylabel("held-out risk")
plt.show()
