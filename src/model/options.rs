//! Defines the settings whose value is one of a few fixed words, with these words and each setting's default.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};
use crate::profile::{Measure, View};

/// Quantity that the width of a frame represents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// GPU time in nanoseconds. In a folded-stack file with this unit, the sum over all lines is exact.
    #[default]
    Nanos,
    /// GPU time in microseconds. Each line of a folded-stack file is rounded separately, half up. So the sum over all
    /// lines of the file can be wrong by up to half a microsecond per line.
    Micros,
    /// Number of activities, plus number of launches without an activity.
    Count,
}

/// Stacks to show for a graph node. The options are the stack that launched the graph, the stack that created the node
/// (by an API call or by stream capture), or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphStacks {
    /// The launching stack, then `[graph]`, then the frames of the creating stack that are not in the launching
    /// stack.
    #[default]
    Both,
    /// The stack that created the node. If the creating stack is unknown, the launching stack and the reason are shown.
    Capture,
    /// The stack that launched the graph.
    Launch,
}

/// Kind of object named by the frame that is added at the root of each stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// `[process app 4711]`, the name and id of the process.
    Process,
    /// `[thread loader]`, the thread that made the launch. The name includes the thread id if several threads are
    /// called `loader`.
    Thread,
    /// `[GPU 0]`, the GPU on which the work ran.
    Device,
    /// `[stream 7]`, the stream on which the work ran. The name includes the GPU if several streams have the id 7. Idle
    /// time gets no stream frame, because idle time belongs to a whole GPU and not to a stream.
    Stream,
}

/// Treatment of numbers in the names of NVTX ranges and Python functions. Numbers in these names count steps or
/// requests, or identify objects or threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameFolding {
    /// Each number in a name is replaced by `N`, so that all steps share one frame. The numbers of module instances,
    /// such as 17 in `Layer_17` (an `nn.Module`), are unchanged.
    #[default]
    Folded,
    /// Like `Folded`, but the numbers of module instances, such as 17 in `Layer_17` (an `nn.Module`), are also replaced
    /// by `N`.
    Modules,
    /// Numbers in names are unchanged.
    Kept,
}

/// Whether Python frames are captured, and how they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonFrames {
    /// Python frames are shown among the native frames, each with the first line of its function.
    #[default]
    Auto,
    /// Python frames are not captured at all.
    Off,
    /// Stacks with Python frames are shown without native frames.
    Only,
    /// Python frames are shown among the native frames, each with the line that was being executed.
    Lines,
}

/// CUPTI features that gpuflame leaves to other CUPTI clients in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Yield {
    /// gpuflame leaves nothing to other clients: if a client takes the activity records, gpuflame takes the activity
    /// records back when a window opens.
    Nothing,
    /// If a different CUPTI client takes the activity records, gpuflame leaves the records to this client until the
    /// client is done.
    #[default]
    Records,
    /// gpuflame leaves the activity records to other clients as with `Records`. It also leaves the callback
    /// subscription to a client that requests it, until the client is done.
    Subscription,
}

/// Stack to which the work of PyTorch's backward pass is attributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backward {
    /// The stack of autograd's thread, which launched the work.
    #[default]
    Autograd,
    /// The stack of the forward operator, if NVTX ranges show to which forward operator the work belongs.
    Forward,
}

impl Unit {
    /// Returns the index in `view.values` of the value that this unit shows as width.
    pub fn value(self, view: &View) -> usize {
        match self {
            Self::Nanos | Self::Micros => 0,
            Self::Count => usize::from(view.values.len() > 1),
        }
    }

    /// Whether the values of `view` must be divided by 1,000 to convert them to this unit. Values are divided if they
    /// are in nanoseconds and this unit is microseconds.
    pub fn is_micros_of(self, view: &View) -> bool {
        self == Self::Micros && view.values[0].unit == Measure::Nanos
    }
}

/// Implements the conversion between the values of an enum and the words by which users select the values. Parsing of a
/// word ignores case.
macro_rules! words {
    ($type:ident: $first:ident $first_word:literal $(, $value:ident $word:literal)*) => {
        impl $type {
            /// All values of the enum.
            pub const ALL: &[Self] = &[Self::$first $(, Self::$value)*];
            /// List of the words of all values, for help texts and messages.
            pub const WORDS: &str = concat!($first_word $(, ", ", $word)*);

            /// Returns the word that selects the value.
            pub const fn word(self) -> &'static str {
                match self {
                    Self::$first => $first_word,
                    $(Self::$value => $word,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let known = Self::ALL.iter().find(|value| value.word().eq_ignore_ascii_case(text));
                known.copied().ok_or_else(|| {
                    Error::new(ErrorKind::Setting, format!("`{text}` is not one of {}", Self::WORDS))
                })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words!(Unit: Nanos "ns", Micros "us", Count "count");
words!(GraphStacks: Both "both", Capture "capture", Launch "launch");
words!(PythonFrames: Auto "auto", Off "off", Only "only", Lines "lines");
words!(Yield: Records "records", Nothing "0", Subscription "1");
words!(Backward: Autograd "autograd", Forward "forward");
words!(Root: Process "process", Thread "thread", Device "device", Stream "stream");
