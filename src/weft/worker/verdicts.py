"""Why an attempt was stopped from outside, or does not begin."""

#: Over its time; not ours any more; the worker stops; its queue was paused before it began.
TIMED_OUT, LOST, DRAINED, PAUSED = "timed out", "lost", "drained", "paused"
