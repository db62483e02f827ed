"""The admission webhook: an HTTPS server of reviews."""
