"""Explanations of why gangs wait."""
