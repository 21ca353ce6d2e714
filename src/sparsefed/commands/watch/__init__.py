"""A run as it goes on, of a simulation or of a deployment: accuracy, norms, and who was refused, late or clipped.

    sparsefed.watch("runs/live", most_refused=2).alerts        # now, for a script of one's own
    with LivePage("runs/live") as page: ...                    # a page on this machine that follows the run

Everything comes from the run folder, which is only read: the run need not know that it is watched, and what is watched
may be a copy.
"""

from __future__ import annotations

from sparsefed.commands.watch.live import LivePage, RunWatcher
from sparsefed.commands.watch.snapshot import WatchResult, watch

__all__ = ["LivePage", "RunWatcher", "WatchResult", "watch"]
