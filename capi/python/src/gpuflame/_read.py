"""Recordings and traces as tables: what the command makes of them, over a pipe."""

import html
import os
import subprocess

from . import _library
from ._library import Error


def command(*arguments):
    """What the command says on standard output, as bytes. Raises Error with its own sentence."""
    done = subprocess.run([_library.place_of("gpuflame"), *map(os.fspath, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it ended with %d" % done.returncode]
        raise Error(said[-1].replace("gpuflame: ", "", 1), done.returncode)
    return done.stdout


def read(path):
    """A recording (.gfr), or a trace of any tool that the command reads, as tables. Nothing is read before it is asked for;
    a file that cannot be read is an Error then."""
    path = os.path.abspath(os.fspath(path))
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    return Run(path)


class Run:
    """A run. The tables are Arrow's (pyarrow.Table), for pandas, polars and DuckDB: `run.activities.to_pandas()`.

    activities: one row for each kernel, copy and fill: kind, name, device, stream, start_ns, duration_ns, stack, language,
        file, line, thread ...
    launches: one row for each call whose work is there: call, stack, thread, launch_ns, launch_duration_ns, and how many
        activities it had; activities.schema.metadata tells how many calls had none (yet), and what was lost
    stacks: one row for each stack: activities and duration_ns
    """

    def __init__(self, path):
        self.path = path
        self._table = None

    @property
    def activities(self):
        if self._table is None:
            try:
                import pyarrow
                import pyarrow.ipc
            except ImportError as error:
                raise ImportError("tables are Arrow's: pip install 'gpuflame[arrow]', or pyarrow") from error
            content = pyarrow.py_buffer(command("convert", "--quiet", "--to", "arrow", "--", self.path))
            # It lies in the pipe's bytes as it does in the table: nothing is copied.
            self._table = pyarrow.ipc.open_file(content).read_all()
        return self._table

    @property
    def launches(self):
        import pyarrow.compute as compute
        table = self.activities
        table = table.filter(compute.is_valid(table["launch_ns"]))
        keys = ["thread", "correlation", "launch_ns", "launch_duration_ns", "call", "stack"]
        counted = table.select(keys).group_by(keys).aggregate([([], "count_all")])
        return counted.rename_columns(_renamed(keys, ["activities"], counted.column_names))

    @property
    def stacks(self):
        keys = ["stack"]
        table = self.activities.select(["stack", "duration_ns"])
        sums = table.group_by(keys).aggregate([("duration_ns", "count"), ("duration_ns", "sum")])
        return sums.rename_columns(_renamed(keys, ["activities", "duration_ns"], sums.column_names)) \
            .sort_by([("duration_ns", "descending")])

    def info(self):
        """What was seen, what became of it and what was lost, as the command says it."""
        return command("info", "--quiet", "--", self.path).decode()

    def svg(self):
        """The flame graph."""
        return command("convert", "--quiet", "--to", "svg", "--", self.path).decode()

    def _repr_html_(self):
        # In a frame of its own the picture's script works, and finds nothing of the notebook's.
        return '<iframe srcdoc="%s" style="width:100%%;height:600px;border:0" title="%s"></iframe>' % (
            html.escape(self.svg()), html.escape(os.path.basename(self.path)))

    def __repr__(self):
        return "gpuflame.read(%r)" % self.path


def _renamed(keys, sums, given):
    """Names for what group_by gives: some versions of Arrow put the keys first, others last."""
    if given[:len(keys)] == keys:
        return keys + sums
    return sums + keys
