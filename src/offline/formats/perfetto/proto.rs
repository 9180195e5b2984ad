//! The messages of Perfetto's protobuf format that gpuflame writes, with the field numbers from Perfetto's definitions.

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Packet {
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) sequence: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned: Option<Interned>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "53")]
    pub(super) gpu: Option<RenderStage>,
    #[prost(message, optional, tag = "60")]
    pub(super) track: Option<Track>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Track {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<Process>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<Thread>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub(super) tid: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(super) annotations: Vec<Annotation>,
    /// Type of the event: 1 for the begin of a slice, 2 for the end of a slice, 3 for an instant.
    #[prost(int32, optional, tag = "9")]
    pub(super) kind: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    pub(super) categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub(super) name: Option<String>,
    #[prost(uint64, optional, tag = "34")]
    pub(super) source_iid: Option<u64>,
    #[prost(message, optional, tag = "3000")]
    pub(super) correlation: Option<Correlation>,
    /// Ids of the flows that begin at the slice. The field `ending_flows` has the flows that end at the slice.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flows: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(super) ending_flows: Vec<u64>,
    /// Code of the API; 4 means CUDA.
    #[prost(int32, optional, tag = "3001")]
    pub(super) api: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Correlation {
    #[prost(uint64, repeated, packed = "false", tag = "1")]
    pub(super) submitted: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Annotation {
    #[prost(uint64, optional, tag = "3")]
    pub(super) number: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub(super) text: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub(super) name: Option<String>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) text_iid: Option<u64>,
}

impl Annotation {
    pub(super) fn named(name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::default() }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Interned {
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<Named>,
    #[prost(message, repeated, tag = "4")]
    pub(super) sources: Vec<SourceLocation>,
    #[prost(message, repeated, tag = "23")]
    pub(super) contexts: Vec<Context>,
    #[prost(message, repeated, tag = "24")]
    pub(super) specifications: Vec<Specification>,
    #[prost(message, repeated, tag = "29")]
    pub(super) texts: Vec<Text>,
    #[prost(message, repeated, tag = "1000")]
    pub(super) kernels: Vec<Kernel>,
    #[prost(message, repeated, tag = "1001")]
    pub(super) arguments: Vec<Named>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Named {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SourceLocation {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) file: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) function: Option<String>,
    #[prost(uint32, optional, tag = "4")]
    pub(super) line: Option<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Text {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) text: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Context {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    /// Code of the API; 4 means CUDA.
    #[prost(int32, optional, tag = "3")]
    pub(super) api: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Specification {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    /// Code of the category; 2 means compute.
    #[prost(int32, optional, tag = "4")]
    pub(super) category: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Kernel {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) symbol: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RenderStage {
    #[prost(uint64, optional, tag = "1")]
    pub(super) event_id: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) duration: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) context: Option<u64>,
    #[prost(message, repeated, tag = "6")]
    pub(super) extra: Vec<Extra>,
    #[prost(int32, optional, tag = "11")]
    pub(super) gpu: Option<i32>,
    #[prost(uint64, optional, tag = "13")]
    pub(super) queue: Option<u64>,
    #[prost(uint64, optional, tag = "14")]
    pub(super) stage: Option<u64>,
    #[prost(uint64, optional, tag = "19")]
    pub(super) kernel: Option<u64>,
    #[prost(uint64, optional, tag = "20")]
    pub(super) name_iid: Option<u64>,
    #[prost(message, optional, tag = "21")]
    pub(super) launch: Option<Launch>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Extra {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) value: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Launch {
    #[prost(message, optional, tag = "1")]
    pub(super) grid: Option<Size>,
    #[prost(message, optional, tag = "2")]
    pub(super) block: Option<Size>,
    #[prost(message, repeated, tag = "3")]
    pub(super) arguments: Vec<Argument>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Size {
    #[prost(uint32, optional, tag = "1")]
    pub(super) x: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub(super) y: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub(super) z: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Argument {
    #[prost(uint64, optional, tag = "1")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(super) value: Option<u64>,
}
