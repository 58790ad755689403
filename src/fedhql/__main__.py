"""The entry point of `fedhql` and of `python -m fedhql`."""


def main() -> None:
    # Imported here, because worker processes import this module again and need no command line.
    from fedhql.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
