"""Pack pods with GPUs or GPU shares on nodes of a few classes, to allocate most GPU capacity."""
