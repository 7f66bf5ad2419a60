"""The paper's statements as something one can run: numbers, a verdict, a figure each."""
