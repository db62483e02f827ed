"""Machine reassignment: annealed shifts and swaps, neighbourhoods solved whole, a proved bound."""
