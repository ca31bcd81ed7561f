"""The command line: one file a verb."""

import gc
import os

# Every command pays its own start. Imports make many objects and no garbage, so the collector looks less often; and
# pydantic need not search all installed packages for plugins. Together a tenth of a command's start.
gc.set_threshold(50_000, 20, 50)
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
