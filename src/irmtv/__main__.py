"""`python -m irmtv`: the command, also where torchrun starts it."""

from irmtv.cli import run

if __name__ == "__main__":
    run()
