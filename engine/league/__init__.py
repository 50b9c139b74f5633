"""Players that learn from each other: payoffs, mixtures, matchmaking."""
