"""Records a window while a flag file exists. Every worker of a server calls tick_by_flag once per step.

    from chakra_trace.manager import get_global_manager

    manager = get_global_manager()
    manager.tick_by_flag()              # before the first CUDA call, and before graphs are captured: this sets gpuflame up
    while serving:
        manager.tick_by_flag()
        one_step()

While the flag file exists, each call to tick_by_flag begins a step of a window. The first call after the file was removed
writes the window to the folder VLLM_CHAKRA_TRACE_DIR:

    kineto_<tag>.json        the timeline: PyTorch's operators, calls, GPU work, and which call started which work
    pytorch_et_<tag>.json    PyTorch's execution trace: operators, shapes, dependencies

If VLLM_CHAKRA_AUTO_CONVERT=1 is set, the command `gpuflame link-et` links the two files and writes:

    pytorch_et_plus_<tag>.json, chakra_trace_<tag>.et

The tag is `pid<process id>_<milliseconds since 1970>`. If the flag file is removed and created again, a new window begins,
even if tick_by_flag was not called in between. After a window has reached its maximum number of steps, no window opens until
the flag file is created again. A window that is open on exit is written. The recording from which the timelines are made is
kept in gpuflame_pid<process id>/ and contains all windows.

Operators come from torch.profiler with CPU activity alone, which does not use CUPTI. Calls and GPU work come from gpuflame. If
PyTorch is not installed, the timeline has no operators. If there is no CUDA, the timeline has no calls and no GPU work.
"""

import atexit
import json
import os
import stat
import sys
import threading
import time

import gpuflame

PREFIX = "VLLM_CHAKRA_"
TRUE = ("1", "true", "yes", "y", "on")
# Maximum wait in seconds for the last GPU work of a window, and interval in seconds between the checks whether that
# work is complete.
LONGEST_WAIT, LOOK_EVERY = 5.0, 0.02


class Settings:
    """Settings from environment variables. `warnings` is one message about all settings that have no effect."""

    def __init__(self, environment):
        self._environment = environment
        self.enabled = self._switch("TRACE", True)
        self.folder = environment.get(PREFIX + "TRACE_DIR", "").strip()
        self.flag = environment.get(PREFIX + "FLAG", "").strip() or "/tmp/vllm_chakra_trace_on"
        self.record_shapes = self._switch("RECORD_SHAPES", True)
        self.with_stack = self._switch("WITH_STACK", False)
        self.auto_convert = self._switch("AUTO_CONVERT", False)
        self.synchronize = self._switch("SYNC_CUDA", False)
        self.debug = self._switch("DEBUG", False)
        self.most_steps, unfit = self._number("TRACE_MAX_STEPS")
        self.warnings = ""
        if unfit:
            self.warnings = "%sTRACE_MAX_STEPS=%s is not a number; steps are not limited" % (PREFIX, unfit)

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
    """Opens and closes the windows of this process. Any thread may call any method. No method raises an exception."""

    def __init__(self, environment=None):
        self.settings = Settings(os.environ if environment is None else environment)
        self._lock = threading.RLock()
        self._told = set()
        self._window = None
        self._latched = None  # identity of the flag file when a window reached its maximum number of steps
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
        """Opens the window, begins a step or closes the window, depending on the flag file. A call costs one `stat`
        system call, and works on network file systems."""
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
            opens = not self.active and flag != self._latched
            if opens:
                self._start(flag)
            if self.active:
                self._step(opens)

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
        self._window = Window(flag, self.settings, self._recorder, self._tell)
        self._debug("window %s opened" % self._window.tag)

    def step(self):
        """Begins the next step of the window. If VLLM_CHAKRA_SYNC_CUDA is set, first waits for the GPU."""
        with self._lock:
            self._step(False)

    def _step(self, opens):
        """As `step`. `opens` states whether the window was just opened. Opening the window has already begun the first
        step."""
        if not self.active:
            return
        if self.settings.synchronize:
            self._synchronize()
        is_last = 0 < self.settings.most_steps <= self._window.steps + 1
        self._window.step(not opens and not is_last)
        if is_last:
            self._latched = self._window.flag
            self._debug("maximum of %d steps reached; create the flag file again for another window" % self._window.steps)
            self.stop()

    def stop(self):
        """Closes the window, if one is open, and writes its files."""
        with self._lock:
            window, self._window = self._window, None
            if window is None:
                return
            try:
                written = window.close()
            except Exception as error:  # a worker must not die because of its trace
                self._tell("window %s was not written: %s" % (window.tag, error))
                return
            self.written += written
            self._debug("window %s: %d steps, wrote %s" % (window.tag, window.steps, ", ".join(written) or "nothing"))

    def _exit(self, process):
        # A forked child process must not write the files of its parent's window.
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
        """Prints a message, unless it was printed before."""
        if text not in self._told:
            self._told.add(text)
            _say(text)


class Recorder:
    """Sets gpuflame up in this process, and extracts windows from its recording."""

    def __init__(self, folder, tell):
        self._tell = tell
        self._is_ready = None
        self._folder = folder

    def prepare(self):
        """Sets gpuflame up on the first call. Returns whether windows can be recorded. GPU work that is captured into CUDA
        graphs after this call has stacks."""
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
            own = "gpuflame_pid%d" % os.getpid()
            os.environ.setdefault("GPUFLAME_OUTPUT", os.path.join(self._folder.replace("%", "%%"), own, "%e"))
        try:
            gpuflame.start()
            gpuflame.stop()
        except gpuflame.Error as error:
            self._tell("timelines (kineto_*.json) have no calls and no GPU work: %s" % error)
            return False
        return True

    def start(self):
        """Opens a window. Returns whether launches are recorded."""
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
    def _flush():
        # The program waits at most LONGEST_WAIT seconds until the launched GPU work has ended. `gpuflame.flush` also
        # writes the recording to disk.
        deadline = time.monotonic() + LONGEST_WAIT
        while gpuflame.stats().pending and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        gpuflame.flush()

    def write(self, path, began, ended, operators, with_stack):
        """Writes the calls of a window and their GPU work to `path`, merged with the trace `operators` if there is one.
        Returns whether the file was written. The `gpuflame` command does the work, so this process only waits."""
        missing = "no calls and no GPU work in the timeline (kineto_*.json): "
        try:
            self._flush()
        except gpuflame.Error as error:
            self._tell(missing + str(error))
            return False
        recording = self.recording()
        if recording is None:
            self._tell(missing + "no recording; either nothing was launched, or "
                       "gpuflame was set up without gfr in GPUFLAME_FORMATS")
            return False
        flags = ["--quiet", "--accept-cut", "--to", "chrome", "--window", "%d,%d" % (began, ended), "-o", path]
        if not with_stack:
            flags.append("--no-stacks")
        if operators is not None:
            flags += ["--operators", operators]
        try:
            gpuflame._read.command("convert", *flags, "--", recording)
        except (gpuflame.Error, OSError) as error:
            self._tell(missing + str(error))
            return False
        return True


class Window:
    """A window, from its opening until its files are written."""

    def __init__(self, flag, settings, recorder, tell):
        self.flag = flag
        self.tag = "pid%d_%d" % (os.getpid(), time.time_ns() // 1_000_000)
        self.steps = 0
        self._settings = settings
        self._recorder = recorder
        self._tell = tell
        self._observer = Observer(self._path("pytorch_et_%s.json"), tell)
        self._profiler = Profiler(settings, tell)
        # The recording of calls begins after PyTorch's profiler, so that the profiler has seen the operator of every
        # recorded call.
        self._records = recorder.start()
        self._began = time.time_ns()

    def _path(self, name):
        return os.path.join(self._settings.folder, name % self.tag)

    def step(self, is_annotated):
        self.steps += 1
        gpuflame.step()
        if is_annotated:
            self._profiler.step()

    def close(self):
        """Closes the window. Returns the files that were written."""
        ended = time.time_ns()
        if self._records:
            gpuflame.stop()
        # The execution trace contains only annotations that have ended, so the step's annotation ends before the trace
        # is closed. The execution trace is closed before the profiler, because the rest of this function calls CUDA.
        self._profiler.end_step()
        written = self._observer.close()
        operators = self._profiler.close(self._path(".operators_%s.json"))
        timeline = self._path("kineto_%s.json")
        try:
            merged = False
            if self._records:
                merged = self._recorder.write(timeline, self._began, ended, operators, self._settings.with_stack)
            if not merged and operators is not None:
                os.replace(operators, timeline)
                operators = None
                merged = True
        finally:
            if operators is not None:
                os.unlink(operators)
        if merged:
            written.append(timeline)
        if self._settings.auto_convert:
            written += self._convert(written)
        return written

    def _convert(self, written):
        """Links the execution trace and the timeline. Returns the files of this window that were written."""
        execution, timeline = self._path("pytorch_et_%s.json"), self._path("kineto_%s.json")
        if execution not in written or timeline not in written:
            self._tell("%sAUTO_CONVERT: needs both an execution trace and a timeline" % PREFIX)
            return []
        try:
            gpuflame._read.command("link-et", execution, timeline, "-o", self._settings.folder)
        except (gpuflame.Error, OSError) as error:
            self._tell("%sAUTO_CONVERT: `gpuflame link-et` failed: %s" % (PREFIX, error))
        names = ("pytorch_et_plus_%s.json", "chakra_trace_%s.et")
        return [path for path in map(self._path, names) if os.path.exists(path)]


class Observer:
    """Writes PyTorch's execution trace, which does not need CUPTI. Does nothing if torch is not installed."""

    def __init__(self, path, tell):
        self._path, self._observer = path, None
        try:
            from torch.profiler import ExecutionTraceObserver
        except ImportError:
            tell("no execution trace (pytorch_et_*.json) and no operators: PyTorch is not installed; pip install torch")
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


class Profiler:
    """Runs PyTorch's profiler with CPU activity alone. The profiler records operators, and the steps of the window as
    annotations. Does nothing if torch is not installed."""

    def __init__(self, settings, tell):
        self._tell, self._profile, self._step = tell, None, None
        self._steps, self._thread = 0, threading.get_ident()
        try:
            # torch.profiler.profile is not used, because it imports PyTorch's compiler when it starts, which takes
            # seconds.
            from torch.autograd import profiler
        except ImportError as error:
            if sys.modules.get("torch") is not None:  # otherwise the observer has printed why
                tell("no operators in the timeline (kineto_*.json): %s" % error)
            return
        try:
            self._module = profiler
            self._profile = profiler.profile(use_kineto=True, record_shapes=settings.record_shapes,
                                             with_stack=settings.with_stack, **_all_threads())
            self._profile.__enter__()
        except Exception as error:
            self._profile = None
            tell("no operators in the timeline (kineto_*.json): %s" % error)
            return
        self._describe_job()
        self._begin_step()

    def _describe_job(self):
        """Adds the rank and the number of ranks to the trace, as torch.profiler does. Programs that read the trace take
        the rank from its metadata."""
        try:
            import torch
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                about = {"backend": torch.distributed.get_backend(), "rank": torch.distributed.get_rank(),
                         "world_size": torch.distributed.get_world_size()}
                torch.autograd._add_metadata_json("distributedInfo", json.dumps(about))
        except Exception as error:
            self._tell("no rank in the timeline (kineto_*.json): %s" % error)

    def _begin_step(self):
        self._step = self._module.record_function("ProfilerStep#%d" % self._steps)
        self._step.__enter__()
        self._steps += 1

    def end_step(self):
        step, self._step = self._step, None
        # An annotation must end on the thread on which it began. If another thread closes the window, the annotation
        # does not end.
        if step is not None and threading.get_ident() == self._thread:
            step.__exit__(None, None, None)

    def step(self):
        if self._profile is None or threading.get_ident() != self._thread:
            return
        self.end_step()
        self._begin_step()

    def close(self, path):
        """Writes the operators to `path`. Returns the path, or None if no operators were recorded."""
        profile, self._profile = self._profile, None
        if profile is None:
            return None
        try:
            profile.__exit__(None, None, None)
            profile.export_chrome_trace(path)
            return path
        except Exception as error:
            self._tell("no operators in the timeline (kineto_*.json): %s" % error)
            return None


def _all_threads():
    """Returns the argument that makes the profiler record the operators of all threads, as the execution trace does.
    Versions of PyTorch without this argument only record the thread that opened the window, and autograd's threads."""
    try:
        from torch._C._profiler import _ExperimentalConfig
        return {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
    except (ImportError, TypeError):
        return {}


def _identity(path):
    """Returns an identity that distinguishes this file from other files that had the same name. Returns None if there
    is no file, or if it is a folder."""
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
    # Status 201: this thread has no CUDA context. Status 3: CUDA is not initialized yet.
    if status not in (0, 3, 201):
        raise RuntimeError("cuCtxSynchronize returned %d" % status)


def _say(text):
    sys.stderr.write("chakra_trace[%d]: %s\n" % (os.getpid(), text))


_manager = None
_process = None
_manager_lock = threading.Lock()


def get_global_manager():
    """Returns the manager of this process. A forked child gets its own manager."""
    global _manager, _process
    with _manager_lock:
        if _manager is None or _process != os.getpid():
            _manager, _process = ChakraTraceManager(), os.getpid()
        return _manager
