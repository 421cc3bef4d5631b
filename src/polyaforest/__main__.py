"""`python -m polyaforest`: the command line."""

from polyaforest.cli import program

if __name__ == "__main__":
    program()
