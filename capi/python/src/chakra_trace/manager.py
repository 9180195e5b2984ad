"""Records a window while a flag file exists, in every worker that calls tick_by_flag once per step.

    from chakra_trace.manager import get_global_manager

    manager = get_global_manager()
    manager.tick_by_flag()              # before the first CUDA call, and before graphs are captured: this sets gpuflame up
    while serving:
        one_step()
        manager.tick_by_flag()

While the file exists, each tick is a step of a window. When it is removed, the window is written to VLLM_CHAKRA_TRACE_DIR:

    kineto_<tag>.json        the timeline: calls, GPU work, and which call started which work; with native stacks on request
    pytorch_et_<tag>.json    PyTorch's execution trace, if torch is installed: operators, shapes, dependencies

The tag is `pid<process>_<milliseconds since 1970>`. If the file is removed and created again, a new window begins, even if no
tick happened in between. A window that reached its maximum number of steps stays closed until the file is created again. A
window that is open at exit is written. The recording from which the timelines are made is kept in
chakra_trace_pid<process>/ and contains all windows.
"""

import atexit
import json
import os
import stat
import sys
import tempfile
import threading
import time

import gpuflame

PREFIX = "VLLM_CHAKRA_"
TRUE = ("1", "true", "yes", "y", "on")
# Maximum wait for the last GPU work of a window, and the interval between checks, in seconds.
LONGEST_WAIT, LOOK_EVERY = 5.0, 0.02


class Settings:
    """Settings from the environment. `warnings` is one message about all settings that have no effect."""

    def __init__(self, environment):
        self._environment = environment
        self.enabled = self._switch("TRACE", True)
        self.folder = environment.get(PREFIX + "TRACE_DIR", "").strip()
        self.flag = environment.get(PREFIX + "FLAG", "").strip() or "/tmp/vllm_chakra_trace_on"
        self.with_stack = self._switch("WITH_STACK", False)
        self.synchronize = self._switch("SYNC_CUDA", False)
        self.debug = self._switch("DEBUG", False)
        self.most_steps, unfit = self._number("TRACE_MAX_STEPS")
        refused = []
        if unfit:
            refused.append("%sTRACE_MAX_STEPS=%s is not a number; steps are not limited" % (PREFIX, unfit))
        if self._switch("RECORD_SHAPES", False):
            refused.append("%sRECORD_SHAPES has no effect: the timeline contains no operators; "
                           "pytorch_et_*.json has the shapes" % PREFIX)
        if self._switch("AUTO_CONVERT", False):
            refused.append("%sAUTO_CONVERT has no effect: run chakra_trace_link on both files instead" % PREFIX)
        self.warnings = "; ".join(refused)

    def _switch(self, name, default):
        value = self._environment.get(PREFIX + name)
        return default if value is None else value.strip().lower() in TRUE

    def _number(self, name):
        text = self._environment.get(PREFIX + name, "").strip()
        try:
            return max(int(text or "0"), 0), ""
        except ValueError:
            return 0, text


class ChakraTraceManager:
    """The windows of this process. Any thread may call any method; no method raises."""

    def __init__(self, environment=None):
        self.settings = Settings(os.environ if environment is None else environment)
        self._lock = threading.RLock()
        self._told = set()
        self._window = None
        self._latched = None  # flag of the window that reached its maximum number of steps
        self._recorder = None
        self.written = []
        if not self.settings.enabled:
            return
        if self.settings.warnings:
            self._tell(self.settings.warnings)
        if not self.settings.folder:
            self.settings.folder = os.getcwd()
            self._tell("traces go to %s; set %sTRACE_DIR for another folder" % (self.settings.folder, PREFIX))
        self.settings.folder = os.path.abspath(self.settings.folder)
        self._recorder = Recorder(self.settings.folder, self._tell)
        atexit.register(self._exit, os.getpid())

    @property
    def active(self):
        """Whether a window is open."""
        return self._window is not None

    def tick_by_flag(self):
        """Opens, steps or closes the window, depending on the flag file. Costs one `stat`; works on network file systems."""
        with self._lock:
            if not self.settings.enabled:
                return
            self._recorder.prepare()
            flag = _identity(self.settings.flag)
            if self.active and flag != self._window.flag:
                self.stop()
            if flag is None:
                self._latched = None
                return
            if not self.active and flag != self._latched:
                self._start(flag)
            if self.active:
                self.step()

    def start(self):
        """Opens a window, unless one is open."""
        with self._lock:
            self._start(_identity(self.settings.flag))

    def _start(self, flag):
        if not self.settings.enabled or self.active:
            return
        try:
            os.makedirs(self.settings.folder, exist_ok=True)
        except OSError as error:
            self._tell("cannot create %s: %s; set %sTRACE_DIR to another folder"
                       % (self.settings.folder, error.strerror, PREFIX))
        self._window = Window(flag, self.settings.folder, self._recorder, self._tell)
        self._debug("window %s opened" % self._window.tag)

    def step(self):
        """Begins the next step of the window. With VLLM_CHAKRA_SYNC_CUDA it waits for the GPU."""
        with self._lock:
            if not self.active:
                return
            if self.settings.synchronize:
                self._synchronize()
            self._window.steps += 1
            gpuflame.step()
            if self.settings.most_steps and self._window.steps >= self.settings.most_steps:
                self._latched = self._window.flag
                self._debug("maximum of %d steps reached; create the flag file again for another window" % self._window.steps)
                self.stop()

    def stop(self):
        """Closes the open window, if any, and writes its files."""
        with self._lock:
            window, self._window = self._window, None
            if window is None:
                return
            try:
                written = window.close(self.settings.with_stack)
            except Exception as error:  # a worker must not die because of its trace
                self._tell("window %s was not written: %s" % (window.tag, error))
                return
            self.written += written
            self._debug("window %s: %d steps, wrote %s" % (window.tag, window.steps, ", ".join(written) or "nothing"))

    def _exit(self, process):
        # A forked child must not write its parent's window.
        if os.getpid() == process:
            self.stop()

    def _synchronize(self):
        torch = sys.modules.get("torch")
        try:
            if torch is not None and torch.cuda.is_available():
                torch.cuda.synchronize()
            elif torch is None:
                _driver_synchronize()
        except Exception as error:
            self._tell("%sSYNC_CUDA: %s" % (PREFIX, error))

    def _debug(self, text):
        if self.settings.debug:
            _say(text)

    def _tell(self, text):
        """Prints a message once."""
        if text not in self._told:
            self._told.add(text)
            _say(text)


class Recorder:
    """gpuflame in this process, with a recording to read windows from."""

    def __init__(self, folder, tell):
        self._tell = tell
        self._is_ready = None
        self._folder = folder

    def prepare(self):
        """Sets gpuflame up on the first call. Returns whether windows can be recorded. Work captured into graphs from now on
        has stacks."""
        if self._is_ready is None:
            self._is_ready = self._set_up()
        return self._is_ready

    def _set_up(self):
        if gpuflame._library.loaded() is None:
            formats = os.environ.get("GPUFLAME_FORMATS", "")
            if "gfr" not in formats.split(","):
                os.environ["GPUFLAME_FORMATS"] = ",".join(filter(None, [formats, "gfr"]))
            os.environ.setdefault("GPUFLAME_ENABLED", "0")
            os.environ.setdefault("GPUFLAME_QUIET", "1")
            own = "chakra_trace_pid%d" % os.getpid()
            os.environ.setdefault("GPUFLAME_OUTPUT", os.path.join(self._folder.replace("%", "%%"), own, "%e"))
        try:
            gpuflame.start()
            gpuflame.stop()
        except gpuflame.Error as error:
            self._tell("no timeline (kineto_*.json): %s" % error)
            return False
        return True

    def start(self):
        """Opens a window. Returns whether anything is recorded."""
        if self.prepare():
            gpuflame.start()
        return self._is_ready

    @staticmethod
    def recording():
        """Returns the path of the recording that this process writes, or None."""
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink("/proc/self/fd/" + descriptor)
            except OSError:
                continue
            if path.endswith(".gfr"):
                return path
        return None

    @staticmethod
    def stop():
        gpuflame.stop()
        # Waits for the launched work, at most LONGEST_WAIT; gpuflame_flush also writes the recording to disk.
        deadline = time.monotonic() + LONGEST_WAIT
        while gpuflame.stats().pending and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        gpuflame.flush()

    def events(self):
        """Returns everything recorded so far, in torch.profiler's format; None if there is no recording yet, which is created
        with the first launch."""
        path = self.recording()
        if path is None:
            self._tell("no timeline (kineto_*.json): no recording; either nothing was launched, or gpuflame was set up "
                       "without gfr in GPUFLAME_FORMATS")
            return None
        return json.loads(gpuflame._read.command("convert", "--quiet", "--accept-cut", "--to", "chrome", "--", path))


class Window:
    """A window, from its opening to its files."""

    def __init__(self, flag, folder, recorder, tell):
        self.flag = flag
        self.tag = "pid%d_%d" % (os.getpid(), time.time_ns() // 1_000_000)
        self.steps = 0
        self._folder = folder
        self._recorder = recorder
        self._observer = Observer(os.path.join(folder, "pytorch_et_%s.json" % self.tag), tell)
        self._began = time.time_ns()
        self._records = recorder.start()

    def close(self, with_stack):
        """Closes the window. Returns the files that were written."""
        # The execution trace ends first, because the rest of this function calls CUDA.
        written = self._observer.close()
        if self._records:
            ended = time.time_ns()
            self._recorder.stop()
            events = self._recorder.events()
            if events is None:
                return written
            trace = cut(events, self._began, ended, with_stack)
            path = os.path.join(self._folder, "kineto_%s.json" % self.tag)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, suffix=".part", delete=False) as file:
                json.dump(trace, file, separators=(",", ":"))
            os.replace(file.name, path)
            written.append(path)
        return written


class Observer:
    """Writes PyTorch's execution trace, which needs no CUPTI. Does nothing if torch is not installed."""

    def __init__(self, path, tell):
        self._path, self._observer = path, None
        try:
            from torch.profiler import ExecutionTraceObserver
        except ImportError:
            tell("no execution trace (pytorch_et_*.json): PyTorch is not installed; pip install torch")
            return
        try:
            observer = ExecutionTraceObserver()
            observer.register_callback(path)
            observer.start()
            self._observer = observer
        except Exception as error:
            tell("no execution trace (pytorch_et_*.json): %s" % error)

    def close(self):
        observer, self._observer = self._observer, None
        if observer is None:
            return []
        observer.stop()
        observer.unregister_callback()
        return [self._path]


def cut(trace, began, ended, with_stack):
    """Returns the trace reduced to the calls of a window and the GPU work that they started, whenever that work ran. Times are
    nanoseconds since 1970."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    first, last = (began - base) / 1000.0, (ended - base) / 1000.0
    events = trace["traceEvents"]
    inside = lambda event: first <= event["ts"] <= last
    calls = {event["args"]["correlation"] for event in events if event.get("cat", "").startswith("cuda_") and inside(event)}

    def belongs(event):
        kind = event["ph"]
        if kind == "M":
            return True
        if kind == "i":
            return inside(event)
        if kind == "X":
            return event["args"].get("correlation") in calls
        return event.get("id") in calls

    kept = [event for event in events if belongs(event)]
    if not with_stack:
        for event in kept:
            event.get("args", {}).pop("stack", None)
    return dict(trace, traceEvents=kept)


def _identity(path):
    """Returns an identity that distinguishes this file from others of the same name; None if it is missing or a folder."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return None if stat.S_ISDIR(found.st_mode) else (found.st_dev, found.st_ino, found.st_mtime_ns)


def _driver_synchronize():
    """Waits for the GPU through the driver, for programs without PyTorch."""
    import ctypes
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return  # no CUDA, nothing to wait for
    status = driver.cuCtxSynchronize()
    # 201: this thread has no context; 3: CUDA is not initialized yet.
    if status not in (0, 3, 201):
        raise RuntimeError("cuCtxSynchronize returned %d" % status)


def _say(text):
    sys.stderr.write("chakra_trace[%d]: %s\n" % (os.getpid(), text))


_manager = None
_process = None
_manager_lock = threading.Lock()


def get_global_manager():
    """Returns the manager of this process. A forked child gets its own."""
    global _manager, _process
    with _manager_lock:
        if _manager is None or _process != os.getpid():
            _manager, _process = ChakraTraceManager(), os.getpid()
        return _manager
