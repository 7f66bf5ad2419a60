"""
ONNX: predict without irmtv
===========================

A fitted model becomes an ONNX file, which other programs and languages can run (extra ``onnx``).
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime

from irmtv import InvariantClassifier
from irmtv.datasets import make_simulation

rows = make_simulation(1000, p_s=(0.999, 0.7), p_v=0.9, random_state=0).train
X, y, environment = rows.x.numpy(), rows.y.numpy().astype(int), rows.environment.numpy()
model = InvariantClassifier(hidden=(16,), max_steps=400, random_state=0).fit(X, y, environment=environment)

# %%
# Write the file, and predict with onnxruntime alone. The graph reads float64.
with TemporaryDirectory() as folder:
    path = Path(folder) / "model.onnx"
    model.to_onnx(path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
    session = onnxruntime.InferenceSession(path.read_bytes())
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(None, {session.get_inputs()[0].name: X.astype(np.float64)}), strict=True))
print({name: value.shape for name, value in outputs.items()})

# %%
# Both give the same probabilities.
theirs = next(value for value in outputs.values() if value.ndim == 2 and value.shape[1] == 2)[:, 1]
ours = model.predict_proba(X)[:, 1]
print(f"largest difference: {abs(ours - theirs).max():.1e}")

alt_text = "The probabilities of onnxruntime over those of irmtv for 1,000 rows: all points lie on the diagonal."
fig, axes = plt.subplots(figsize=(4.5, 4))
axes.plot([0, 1], [0, 1], color="#b0b0b0", linewidth=1)
axes.plot(ours, theirs, ".", color="#1f6f8b", markersize=4)
axes.set_xlabel("probability, irmtv")
axes.set_ylabel("probability, onnxruntime")
axes.set_aspect("equal")
plt.show()
