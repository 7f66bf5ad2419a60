"""A page, its theme, drawing: knows nothing of what is shown."""
