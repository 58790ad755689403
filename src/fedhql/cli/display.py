"""Tables on a terminal."""

from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table as RichTable

from fedhql.results.curves import Run
from fedhql.results.summary import returns_table
from fedhql.results.tables import Table
from fedhql.results.verdicts import NOT_RUN


def print_table(console: Console, table: Table, of: str = "") -> None:
    """Print a table; of a wide one, its brief columns and the rows that were run."""
    console.print(_drawn(table, of))


def returns_tables(run: Run, console: Console) -> Iterator[RichTable]:
    """Yield tables of agents by arms, each with as many arms as fit beside each other."""
    arms, unlimited = list(run.arms), console.options.update(max_width=100_000)
    while arms:
        for count in range(len(arms), 0, -1):
            table = _drawn(_with_high_heads(returns_table(run, arms[:count])))
            if console.measure(table, options=unlimited).maximum <= console.width:
                break
        yield table
        arms = arms[count:]


def _with_high_heads(table: Table) -> Table:
    """Return the table with heads on several lines, so that more columns fit."""
    heads = [head.replace(",", ",\n").replace(": ", ":\n") for head in table.header]
    return replace(table, header=heads)


def _drawn(table: Table, of: str = "") -> RichTable:
    title = f"{of}: {table.title}" if of else table.title
    columns = table.brief or range(len(table.header))
    rows = [row for row in table.rows if not (table.brief and row[0] == NOT_RUN)]
    if left_out := len(table.rows) - len(rows):
        title += f" ({left_out} of {len(table.rows)} not run)"
    shown = RichTable(title=title, caption=None if table.brief else table.note)
    for n in columns:
        shown.add_column(
            table.header[n], justify="left" if n < table.words else "right", overflow="fold"
        )
    for row in rows:
        shown.add_row(*(row[n] for n in columns))
    return shown
