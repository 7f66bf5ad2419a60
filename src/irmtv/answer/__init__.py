"""From a table to an answer: does the environment matter, does invariance help, and a model to use tomorrow."""
