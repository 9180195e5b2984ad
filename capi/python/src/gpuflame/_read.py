"""Reads recordings and traces as tables, by running the `gpuflame` command."""

import html
import os
import subprocess

from . import _library
from ._library import Error


def command(*arguments):
    """Runs the command and returns its standard output as bytes. If the command fails, raises Error with its message."""
    done = subprocess.run([_library.place_of("gpuflame"), *map(os.fspath, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["exit status %d" % done.returncode]
        raise Error(said[-1].replace("gpuflame: ", "", 1), done.returncode)
    return done.stdout


def read(path):
    """Returns the tables of a recording (.gfr), or of any trace that the command reads. The file is read on the first
    use of a table. If the file is unreadable, the first use raises Error."""
    path = os.path.abspath(os.fspath(path))
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    return Run(path)


class Run:
    """Arrow tables (pyarrow.Table) of a run, for pandas, polars and DuckDB: `run.activities.to_pandas()`.

    Tables need a trace, or a recording of every call (GPUFLAME_FORMATS=gfr). If the file has only the sums of a run,
    tables raise Error.

    activities: one row per kernel, copy and fill. Columns: kind, name, device, stream, start_ns, duration_ns, stack, language,
        file, line, thread ...
    launches: one row per launching call that has GPU work. Columns: call, stack, thread, launch_ns, launch_duration_ns and
        activities, the number of its activities. activities.schema.metadata has the number of calls whose activities are
        missing so far, and the losses.
    stacks: one row per stack. Columns: stack, activities and duration_ns
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
                raise ImportError("tables need pyarrow: pip install 'gpuflame[arrow]'") from error
            content = pyarrow.py_buffer(command("convert", "--quiet", "--to", "arrow", "--", self.path))
            # The Arrow table uses the bytes of the command's output directly, without a copy.
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
        """Returns the output of `gpuflame info`: the numbers of launches and activities, their outcomes, and the losses."""
        return command("info", "--quiet", "--", self.path).decode()

    def svg(self):
        """Returns the flame graph as SVG."""
        return command("convert", "--quiet", "--to", "svg", "--", self.path).decode()

    def _repr_html_(self):
        # In a separate frame, the picture's script can run, but the script cannot change the notebook.
        return '<iframe srcdoc="%s" style="width:100%%;height:600px;border:0" title="%s"></iframe>' % (
            html.escape(self.svg()), html.escape(os.path.basename(self.path)))

    def __repr__(self):
        return "gpuflame.read(%r)" % self.path


def _renamed(keys, sums, given):
    """Returns column names for the result of group_by. Some versions of Arrow put the key columns first, other versions
    last."""
    if given[:len(keys)] == keys:
        return keys + sums
    return sums + keys
