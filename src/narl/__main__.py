"""``python -m narl``."""

from narl.cli import main

if __name__ == "__main__":
    main()
