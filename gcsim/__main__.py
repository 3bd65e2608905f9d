"""Entry point of `python -m gcsim`."""

import sys

if not sys.flags.safe_path:  # `-m` puts the working folder first: a `yaml.py` in it is not ours
    sys.path.append(sys.path.pop(0))

from gcsim.cli.app import main

if __name__ == "__main__":
    main()
