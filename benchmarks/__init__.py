"""Side-by-side measurements; each module prints a ratio. `make bench` runs them all."""
