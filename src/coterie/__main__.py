"""`python -m coterie` is `coterie`."""

from coterie.cli.main import main

if __name__ == "__main__":
    main()
