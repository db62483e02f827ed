"""Engines turn problems into decisions; all answer to the same verifier and the same levels."""
