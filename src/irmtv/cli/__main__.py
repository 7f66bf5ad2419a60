"""`python -m irmtv.cli` is the command `irmtv`."""

from irmtv.cli import main

if __name__ == "__main__":
    main()
