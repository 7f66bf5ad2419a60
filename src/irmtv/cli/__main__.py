"""`python -m irmtv.cli` is the command `irmtv`."""

from irmtv.cli import run

if __name__ == "__main__":
    run()
