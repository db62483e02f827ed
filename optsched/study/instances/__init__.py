"""The project's benchmark instances: generated from a seed, with the best known plan of each."""
