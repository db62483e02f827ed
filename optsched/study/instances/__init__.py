"""The project's benchmark instances, which are generated from a seed, and their best known plans.
"""
