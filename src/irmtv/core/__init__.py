"""The mathematics, written once: losses, slopes, reductions over environments, and the shared types."""
