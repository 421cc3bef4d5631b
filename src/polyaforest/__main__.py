"""`python -m polyaforest`: the command line."""

from polyaforest.cli import run

if __name__ == "__main__":
    run()
