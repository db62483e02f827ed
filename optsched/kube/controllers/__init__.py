"""The controller process: watches, workers, and the executor of effects."""
