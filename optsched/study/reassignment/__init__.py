"""Machine reassignment by simulated annealing and CP-SAT neighbourhoods, with lower bounds."""
