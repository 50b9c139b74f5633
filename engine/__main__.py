"""`python -m engine` is the command `engine`, of the Python that runs it."""

from engine.cli.main import main

if __name__ == "__main__":
    main()
