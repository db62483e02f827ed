"""Pack pods with GPUs or GPU shares on nodes of a few classes, to maximize the GPU allocation."""
