"""A browser's GPU behind the runtime seam: a page that was opened from a link computes for this process.

``server`` invites one tab and serves it the page; ``session`` is the connection to that tab; ``messages`` and
``commands`` are what travels; ``device`` answers the seam's calls by writing commands; ``adapter`` checks what a
browser says of its GPU, and ``implementation`` offers it.
"""
