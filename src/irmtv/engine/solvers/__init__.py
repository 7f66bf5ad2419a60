"""Training procedures that are no gradient loop of the engine."""
