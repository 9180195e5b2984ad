//! The core of a simulated CUDA stack: devices, streams, GPU work, correlation ids, the truth file. The core library
//! exports no CUDA API. The library libcuda (`../cuda`) contains the core and its state; libcudart (`../cudart`) and
//! libcupti (`../cupti`) use its types and access its state through [`table::CoreTable`].

pub mod api;
pub mod arg;
pub mod callback_ids;
pub mod capture;
pub mod clock;
pub mod contents;
pub mod context;
pub mod deps;
pub mod error;
pub mod fail;
pub mod faults;
pub mod gpu;
pub mod graph;
pub mod graph_edges;
pub mod graph_params;
pub mod host_fn;
pub mod init;
pub mod journal;
pub mod kernel;
pub mod kineto;
pub mod layout;
pub mod memory;
pub mod missing;
pub mod schedule;
pub mod settings;
pub mod share;
pub mod site;
pub mod stream;
pub mod sync;
pub mod table;
pub mod thread;
pub mod truth;
pub mod turn;
pub mod unified;
pub mod user_object;
pub mod version;
pub mod work;
