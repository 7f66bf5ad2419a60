"""
The theory, run
===============

The paper states that invariant risk minimisation is a total variation model. Each of its statements is a function here:
it computes both sides in two ways, and says whether they agree.
"""

# %%
# One statement: total variation (TV-l1) keeps the steps of a signal, where a squared penalty (TV-l2) smooths them.
import matplotlib.pyplot as plt

from irmtv.lab.theory import STATEMENTS

print(len(STATEMENTS), "statements, such as", ", ".join(list(STATEMENTS)[:5]))
found = STATEMENTS["recovery-1d"]()
print("recovery-1d:", found.verdict)

# %%
# Not every statement holds as printed.
print("zin-rewriting:", STATEMENTS["zin-rewriting"]().verdict)

# %%
# Every statement has a picture. ``irmtv reproduce theory --out DIR`` writes a page with all of them.
alt_text = (
    "Above: a signal of blocks with noise; TV-l1 finds the blocks, TV-l2 rounds their edges. Below: the heights of the "
    "recovered steps, and a smooth signal, of which TV-l1 makes stairs."
)
fig = found.draw()
plt.show()
