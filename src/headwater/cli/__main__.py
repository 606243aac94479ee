"""The program `headwater`, also as `python -m headwater.cli`."""

import sys


def main() -> None:
    """Run the program and exit. An interrupt ends it quietly, also while it is still being loaded."""
    try:
        # Loading takes a moment, in which somebody may think better of it.
        from headwater import failpoints  # noqa: F401 - refuses what is armed wrongly, before any command begins
        from headwater.cli.app import run

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
