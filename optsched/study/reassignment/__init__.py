"""Machine reassignment by simulated annealing and CP-SAT neighbourhoods, with a proved bound."""
