"""Training a federation: the loop that ties an engine to a run folder, and the progress it shows."""
