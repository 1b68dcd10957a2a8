"""`python -m headrace.cli`, which the `headrace` script of a checkout runs."""

import sys

if __name__ == "__main__":
    try:
        from headrace.cli.main import main

        main()
    except KeyboardInterrupt:  # while the modules were read
        sys.exit(130)
