"""`python -m headrace.cli`, which the `headrace` script of a checkout runs."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
