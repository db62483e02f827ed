"""Pack pods that share GPUs on nodes of a few classes, to allocate as many GPUs as possible."""
