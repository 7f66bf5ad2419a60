"""Experiments: a spec in TOML, the runs that it asks for, a store that keeps them, and the results read from it."""
