//! Settings whose value is one of a few words. The words and the default are defined only here.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Meaning of a frame's width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// GPU time in nanoseconds. The sum over a folded file is exact.
    #[default]
    Nanos,
    /// GPU time in microseconds. Each line is rounded separately, half up, so that the sum may be off by half a
    /// microsecond per line.
    Micros,
    /// Number of activities, and of launches without one.
    Count,
}

/// Stacks of a graph node to show: the one that launched the graph, or the one that created the
/// node, by an API call or by stream capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphStacks {
    /// The launching stack, `[graph]`, and the part of the creating stack that differs.
    #[default]
    Both,
    /// The stack that created the node. If it is unknown, the launching stack and the reason.
    Capture,
    /// The stack that launched the graph.
    Launch,
}

/// Content of a frame at the root of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// `[process app 4711]`.
    Process,
    /// `[thread loader]`, the launching thread; with its id if several threads have the name.
    Thread,
    /// `[GPU 0]`.
    Device,
    /// `[stream 7]`, with its GPU if several streams have that number. Not for idle time, which belongs to a whole
    /// GPU.
    Stream,
}

/// Treatment of numbers in names written by people and Python that count steps and requests, or identify objects and
/// threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Each number becomes `N`, so that all steps share one frame.
    #[default]
    Folded,
    /// Like `Folded`, including the numbers of module instances: `nn.Module: Layer_17`.
    Modules,
    /// Numbers are kept.
    Kept,
}

/// Treatment of Python frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Python {
    /// Shown among the native frames, each with the first line of its function.
    #[default]
    Auto,
    /// Not captured.
    Off,
    /// Stacks with Python frames are shown without native frames.
    Only,
    /// Shown with the line that was being executed.
    Lines,
}

/// CUPTI features left to other clients in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Yield {
    /// Activity records, if they take them, until a window opens.
    Nothing,
    /// Activity records, for as long as they use them.
    #[default]
    Records,
    /// Activity records and the callback subscription.
    Subscription,
}

/// Attribution of the work of PyTorch's backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backward {
    /// Under autograd's thread, which launched it.
    #[default]
    Autograd,
    /// Under the forward pass, if ranges identify it.
    Forward,
}

/// Maps the values of a type to their words, which are parsed in any case.
macro_rules! words {
    ($type:ident: $first:ident $first_word:literal $(, $value:ident $word:literal)*) => {
        impl $type {
            /// All values.
            pub const ALL: &[Self] = &[Self::$first $(, Self::$value)*];
            /// Words of all values, for help texts and messages.
            pub const WORDS: &str = concat!($first_word $(, ", ", $word)*);

            /// Returns the word that selects it.
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
                    Error::new(ErrorKind::Setting, format!("`{text}` is none of {}", Self::WORDS))
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
words!(Python: Auto "auto", Off "off", Only "only", Lines "lines");
words!(Yield: Records "records", Nothing "0", Subscription "1");
words!(Backward: Autograd "autograd", Forward "forward");
words!(Root: Process "process", Thread "thread", Device "device", Stream "stream");
