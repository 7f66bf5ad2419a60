"""Trees as Phi: gradient boosting that minimises an invariant objective.

To read it: `gradients` (objectives as functions of the scores), `trust_region` (the step rule), `rounds` (the loop),
then `search`.
"""
