"""`python -m fedhql` is `fedhql`."""

from fedhql.cli.main import main

if __name__ == "__main__":
    main()
