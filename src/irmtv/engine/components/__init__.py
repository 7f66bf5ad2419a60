"""What may act in a step beside Phi: inferred environments, penalty weights, measures, masks, a second network."""
