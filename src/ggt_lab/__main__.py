"""``python -m ggt_lab`` is the command ``ggt``."""

from ggt_lab.cli import main

if __name__ == "__main__":
    main()
