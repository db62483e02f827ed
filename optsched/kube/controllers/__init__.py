"""The controller process, which consists of watches, workers and an executor of effects."""
