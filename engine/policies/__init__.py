"""One file an algorithm: a config, act(), learn(), actor()."""
