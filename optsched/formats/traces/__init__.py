"""Job traces in published formats, converted to the trace format of optsched."""
