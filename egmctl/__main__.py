"""``python -m egmctl`` is the same program as the ``egmctl`` script."""

from egmctl.cli.app import main

if __name__ == "__main__":
    main()
