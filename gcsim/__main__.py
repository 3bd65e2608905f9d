"""`python -m gcsim` is `gcsim`."""

from gcsim.cli.app import main

if __name__ == "__main__":
    main()
