//! Values that are one of a few words: the words, and which of them is meant where none is said, stand here once.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// What the width of a frame means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// GPU time in nanoseconds. The sum over a folded file is exact.
    #[default]
    Nanos,
    /// GPU time in microseconds. Each line is rounded by itself, half up, so that the sum may be off by
    /// half a microsecond a line.
    Micros,
    /// Activities, and launches that had none.
    Count,
}

/// Which of the two stacks of a graph node to show: that on which the graph was launched, or that on which
/// the node was made, by the API or by the capture of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GraphStacks {
    /// The launch, `[graph]`, and what the other does not share with it.
    #[default]
    Both,
    /// Where the node was made. Where that is not known, the launch, and why.
    Capture,
    /// The stack that launched the graph.
    Launch,
}

/// What a frame at the root of a stack says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// `[process app 4711]`.
    Process,
    /// `[thread loader]`, the one that launched; with its number where several have the name.
    Thread,
    /// `[GPU 0]`.
    Device,
    /// `[stream 7]`, with its GPU where several have that number. Not of idle time, which is a whole GPU's.
    Stream,
}

/// What becomes of the numbers in names that people and Python write: those that count steps and requests or identify
/// objects and threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Each becomes `N`, so that a step is the same frame as the next one.
    #[default]
    Folded,
    /// The same, and so do the numbers of instances of a module: `nn.Module: Layer_17`.
    Modules,
    /// They stay.
    Kept,
}

/// What becomes of the frames of Python.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Python {
    /// They stand among the native ones, each with the line that its function begins in.
    #[default]
    Auto,
    /// They are not taken.
    Off,
    /// Stacks that have any are shown without native frames.
    Only,
    /// They are shown with the line that was executed.
    Lines,
}

/// What other clients of CUPTI in the process are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Yield {
    /// The records if they take them, until a window opens.
    Nothing,
    /// The records, for as long as they use them.
    #[default]
    Records,
    /// The subscription as well.
    Subscription,
}

/// Where the work of PyTorch's backward pass hangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backward {
    /// Under autograd's thread, which launched it.
    #[default]
    Autograd,
    /// Under the forward pass, where ranges say whose it is.
    Forward,
}

/// Ties the values of a type to their words; any case of a word is understood.
macro_rules! words {
    ($type:ident: $first:ident $first_word:literal $(, $value:ident $word:literal)*) => {
        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[Self::$first $(, Self::$value)*];
            /// Their words, for help texts and messages.
            pub const WORDS: &str = concat!($first_word $(, ", ", $word)*);

            /// The word that selects it.
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
