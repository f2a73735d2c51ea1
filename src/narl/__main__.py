"""``python -m narl``."""

import os
import sys

from narl.cli import main

if __name__ == "__main__":
    try:
        main()
    except SystemExit as leaving:
        if os.environ.get("WORLD_SIZE", "1") == "1":
            raise
        # One of several: threads of torch's that still run may abort the process while Python takes itself apart, and
        # torchrun then ends the others. All files are written and closed here.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
