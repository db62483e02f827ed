"""The admission webhook: an HTTPS server that answers AdmissionReviews."""
