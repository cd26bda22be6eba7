"""`python -m attnroute` is the command `attnroute`."""

from attnroute.cli.main import main

if __name__ == "__main__":
    main()
