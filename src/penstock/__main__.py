"""``python -m penstock``: the command line; knows nothing else."""

from penstock.cli.main import main

if __name__ == "__main__":
    main()
