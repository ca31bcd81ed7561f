"""What members of a gang run that note, by CLOCK_BOOTTIME, when they began and when a signal reached them.

``python gang_member.py FOLDER [deaf]``: writes ``began.RANK`` and ``stopped.RANK`` (nanoseconds) into FOLDER, which all
hosts see; ends 0.2 s after SIGTERM, unless deaf; ends with 3, after ``failed.RANK``, once ``fail.RANK`` appears there.
Standard library only: it is sent to the hosts as the code of a run.
"""

import os
import signal
import sys
import time
from pathlib import Path

folder, rank, deaf = Path(sys.argv[1]), os.environ["NODE_RANK"], "deaf" in sys.argv


def stamp(what: str) -> None:
    partial = folder / f".{what}.{rank}"
    partial.write_text(str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
    partial.rename(folder / f"{what}.{rank}")


def stopped(*_: object) -> None:
    stamp("stopped")
    if not deaf:
        time.sleep(0.2)
        sys.exit(143)


signal.signal(signal.SIGTERM, stopped)
stamp("began")
while not (folder / f"fail.{rank}").exists():
    time.sleep(0.1)
stamp("failed")
os._exit(3)
