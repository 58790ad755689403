import fedhql
import fedhql.federation


def test_the_public_names_are_complete() -> None:
    assert set(fedhql.__all__) == {
        "Acting",
        "BlackBoxAgent",
        "Checkpointable",
        "Closable",
        "Diagnosable",
        "Exportable",
        "FedHQLError",
        "__version__",
    }
    for module in (fedhql, fedhql.federation):
        assert all(hasattr(module, name) for name in module.__all__)


def test_the_equations_are_exported_as_the_readme_says() -> None:
    assert {"fed_ucb", "fed_ucb_bernstein", "fed_td"} <= set(fedhql.federation.__all__)
