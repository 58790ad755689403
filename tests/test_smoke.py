def test_import() -> None:
    import fedhql

    assert fedhql.__version__
