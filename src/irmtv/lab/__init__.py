"""The laboratory: experiments, the tables made of them, and the paper's theory as something one can run."""
