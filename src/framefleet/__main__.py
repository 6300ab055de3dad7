"""`python -m framefleet`: the command line."""

from framefleet.cli.app import main

if __name__ == "__main__":
    main()
