"""The entry point of `fedhql` and of `python -m fedhql`."""


def main() -> None:
    # Imported here, so that importing this module costs nothing.
    from fedhql.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
