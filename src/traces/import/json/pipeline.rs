//! Reads one uncompressed file with two threads. The scanning thread finds the trace events and their fields. The
//! calling thread reads the fields that the scanning thread has found.
//!
//! ```text
//! scanning thread   file -> buffer -> positions of events and fields -> class -.
//!                                                           full buffers       v
//! calling thread                                     fields -> dialect -> Event -> Sink
//!                                                  used buffers go back
//! ```
//!
//! The sink receives the same events in the same order as with one thread. Only the positions of events and fields are
//! copied from the scanning thread to the calling thread, which takes little time. While the calling thread is slower
//! than the scanning thread, the scanning thread also finds the arguments of API calls and GPU work. So neither thread
//! has to wait for the other thread.

use std::io::Read;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use super::super::model::{Sink, Wants};
use super::ReadCounts;
use super::args::{self, Arg};
use super::buffer::{Buffer, PADDING, ReaderSource};
use super::classes::Classified;
use super::mask::{self, InstructionSet, Job};
use super::scan::{ScanEnd, ScanError, Scanner};
use super::visit::{FoundEvent, FoundProperty, ToSink, Visitor};

/// Number of buffers that the two threads share. One buffer is being scanned, another is being read, and a third one
/// waits to be read.
const BATCHES: usize = 3;

/// The scanning thread finds the arguments of this number of events before it checks again for a used buffer.
const EVENTS_PER_LOOK: usize = 32;

/// A trace event, or a key of the trace object, given by its position in a buffer.
enum Found {
    Event {
        event: FoundEvent,
        classified: Classified,
        /// Start and end in [`Notes::args`] of the event's arguments, if the arguments were found.
        args: Option<(u32, u32)>,
    },
    Property(FoundProperty),
}

/// All events, keys and arguments that were found in one buffer.
#[derive(Default)]
struct Notes {
    found: Vec<Found>,
    args: Vec<Arg>,
}

/// A scanned buffer, and all events, keys and arguments that were found in this buffer.
struct Batch {
    buffer: Buffer,
    notes: Notes,
}

/// Collects the events in a buffer. When all events of the buffer are collected, the buffer is sent to the calling
/// thread.
struct Sender {
    wants: Wants,
    notes: Notes,
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
}

impl Sender {
    /// Waits for a buffer that the calling thread has used. While there is no used buffer, the calling thread is
    /// slower, so the scanning thread finds the arguments of events. Returns `None` if the calling thread no longer
    /// exists.
    fn next_batch(&mut self, buffer: &Buffer) -> Option<Batch> {
        let mut first = 0;
        loop {
            match self.empty.try_recv() {
                Ok(batch) => return Some(batch),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if first >= self.notes.found.len() => return self.empty.recv().ok(),
                Err(TryRecvError::Empty) => {
                    let events = first..self.notes.found.len().min(first + EVENTS_PER_LOOK);
                    first = events.end;
                    mask::run(FindArgs { bytes: buffer.padded(), notes: &mut self.notes, events });
                }
            }
        }
    }
}

/// Finds the arguments of some events in a buffer.
struct FindArgs<'a> {
    bytes: &'a [u8],
    notes: &'a mut Notes,
    events: Range<usize>,
}

impl Job for FindArgs<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: InstructionSet>(self) {
        let Notes { found, args: all } = self.notes;
        for found in &mut found[self.events] {
            if let Found::Event { event, classified, args } = found
                && classified.reads_args()
            {
                let first = all.len() as u32;
                args::find::<L>(self.bytes, event.fields.args, all);
                *args = Some((first, all.len() as u32));
            }
        }
    }
}

impl Visitor for Sender {
    #[inline(always)]
    fn event<L: InstructionSet>(&mut self, bytes: &[u8], found: &FoundEvent, _: &mut ReadCounts) {
        let classified = Classified::new::<L>(bytes, &found.fields, self.wants);
        self.notes.found.push(Found::Event { event: *found, classified, args: None });
    }

    fn property(&mut self, _: &[u8], found: FoundProperty) {
        self.notes.found.push(Found::Property(found));
    }

    fn end_of_buffer(&mut self, mut buffer: Buffer, consumed: usize) -> Buffer {
        if self.notes.found.is_empty() {
            buffer.consume(consumed);
            return buffer;
        }
        // The calling thread ends early only if it has panicked. That panic ends the program.
        let Some(Batch { buffer: mut next, notes: mut unused }) = self.next_batch(&buffer) else {
            buffer.consume(consumed);
            return buffer;
        };
        next.set(&buffer.unread()[consumed..]);
        unused.found.clear();
        unused.args.clear();
        let notes = std::mem::replace(&mut self.notes, unused);
        // Sending fails only if the calling thread has panicked.
        let _ = self.full.send(Batch { buffer, notes });
        next
    }
}

/// Reads the fields of all events in a buffer.
struct ReadBatch<'a, 'b, S> {
    batch: &'a Batch,
    visitor: &'a mut ToSink<'b, S>,
    counts: &'a mut ReadCounts,
}

impl<S: Sink> Job for ReadBatch<'_, '_, S> {
    type Out = ();

    #[inline(always)]
    fn run<L: InstructionSet>(self) {
        let bytes = self.batch.buffer.padded();
        for found in &self.batch.notes.found {
            match found {
                Found::Event { event, classified, args } => {
                    let args = args.map(|(from, to)| &self.batch.notes.args[from as usize..to as usize]);
                    self.visitor.classified_event::<L>(bytes, event, (*classified, args), self.counts);
                }
                Found::Property(property) => self.visitor.property(bytes, property.clone()),
            }
        }
    }
}

/// Reads `input` until its end. `buffer` is the size of each buffer in bytes.
pub(super) fn read(
    input: impl Read + Send,
    buffer: usize,
    sink: &mut impl Sink,
) -> (ReadCounts, Result<ScanEnd, ScanError>) {
    let (full, batches) = sync_channel(BATCHES);
    let (used, empty) = sync_channel(BATCHES);
    let new = || Batch { buffer: Buffer::new(buffer.max(PADDING)), notes: Notes::default() };
    // Sending cannot fail, because the receiver exists, and the channel has room for all buffers.
    (1..BATCHES).for_each(|_| drop(used.send(new())));
    let wants = sink.wants();
    thread::scope(|scope| {
        let scanning = scope.spawn(move || {
            let mut scan = Scanner::new();
            let mut sender = Sender { wants, notes: Notes::default(), full, empty };
            let source = &mut ReaderSource { input, size: buffer };
            let ended = scan.run(source, 0, u64::MAX, &mut sender);
            (scan.counts, ended)
        });
        let mut visitor = ToSink::new(sink);
        let mut counts = ReadCounts::default();
        for batch in batches {
            mask::run(ReadBatch { batch: &batch, visitor: &mut visitor, counts: &mut counts });
            // Sending fails if the scanning thread has already ended.
            let _ = used.send(batch);
        }
        let (mut scanned, ended) = scanning.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        scanned.add(&counts);
        (scanned, ended)
    })
}
