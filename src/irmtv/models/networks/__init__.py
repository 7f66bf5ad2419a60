"""Linear models and networks: how a trained one predicts and is exported."""
