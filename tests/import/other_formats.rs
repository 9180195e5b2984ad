//! Tests formats that are not Chrome's JSON: SQLite exports of Nsight Systems, rocprofv3's JSON, CUPTI's text, and
//! gpuflame's recordings. The samples are written by hand, and small enough to be checked without tools.

use std::fs;
use std::path::Path;

use crate::support::command::{Ran, gpuflame};
use crate::support::{handmade, scratch};
use rusqlite::Connection;
use serde_json::json;

fn folded(folder: &Path, name: &str) -> String {
    gpuflame(folder, ["flamegraph", name, "--format", "folded"]).ok().stdout
}

/// Writes an Nsight Systems export with the columns that all versions have, and with the additional columns `more`.
fn nsys(path: &Path, more: &str) {
    let _ = fs::remove_file(path);
    let base = Connection::open(path).unwrap();
    let tables = format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
             correlationId INTEGER, nameId INTEGER);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
             correlationId INTEGER, globalPid INTEGER, demangledName INTEGER{more});
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
             correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
         CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT,
             textId INTEGER);
         INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'gemm<float>'), (3, 'add'),
             (4, 'cudaMemcpyAsync_v3020'), (5, 'decode');"
    );
    base.execute_batch(&tables).unwrap();
    // Processes 7 and 8 have one thread each, and both use the same correlation ids.
    let [seven, eight] = [7_i64 << 24, 8 << 24];
    for (table, values) in [
        ("RUNTIME", format!("100, 110, {}, 1, 1", seven | 70)),
        ("RUNTIME", format!("105, 115, {}, 1, 1", eight | 80)),
        ("RUNTIME", format!("120, 140, {}, 2, 4", seven | 70)),
        ("MEMCPY", format!("150, 190, 0, 7, 2, {seven}, 4096, 1")),
    ] {
        base.execute_batch(&format!("INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({values})")).unwrap();
    }
    for (start, end, id, process, name) in
        [(130, 230, 1, seven, 2), (130, 160, 1, eight, 3), (230, 235, 1, seven, 2), (300, 307, 99, eight, 3)]
    {
        let kernel = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
            (start, end, deviceId, streamId, correlationId, globalPid, demangledName) VALUES (?1, ?2, 1, 7, ?3, ?4, ?5)";
        base.execute(kernel, (start, end, id, process, name)).unwrap();
    }
    let range =
        "INSERT INTO NVTX_EVENTS VALUES (90, 130, 59, ?1, NULL, 5), (95, 96, 59, ?1, 'too early', NULL)";
    base.execute(range, [seven | 70]).unwrap();
}

#[test]
fn nsys_exports_of_any_version_are_linked_within_each_process() {
    let folder = scratch("nsys");
    for more in ["", ", graphNodeId INTEGER, gridX INTEGER, somethingOfNextYear INTEGER"] {
        nsys(&folder.join("report.sqlite"), more);
        let expected = "[no launch stack];[GPU1_Kernel]add 7\n\
                        cudaLaunchKernel;[GPU1_Kernel]add 30\n\
                        decode;cudaLaunchKernel;[GPU1_Kernel]gemm 105\n\
                        decode;cudaMemcpyAsync;[GPU0_Memcpy HtoD] 40\n";
        assert_eq!(folded(&folder, "report.sqlite"), expected);
    }
    // Of the 182 ns of GPU work, 7 ns have no launch.
    let told = gpuflame(&folder, ["flamegraph", "report.sqlite", "--format", "folded"]).ok().stderr;
    assert!(
        told.contains("1 of 5 GPU operations (3.8 % of the GPU time) have no launch in the trace"),
        "{told}"
    );
    let ran = gpuflame(&folder, ["extract", "report.sqlite", "-", "0.12,0.25"]).ok();
    let expected = "kernel_name,start_time_us,end_time_us,duration_us\n\
                    gemm<float>,0.13,0.23,0.1\nadd,0.13,0.16,0.03\nHtoD,0.15,0.19,0.04\ngemm<float>,0.23,0.235,0.005\n";
    assert_eq!(ran.stdout, expected);
}

/// Returns the rows of `top --by copies` as CSV, without the columns that show shares.
fn copies(folder: &Path, name: &str) -> Vec<String> {
    let csv = gpuflame(folder, ["-q", "top", name, "--by", "copies", "--format", "csv"]).ok().stdout;
    let mut lines = csv.lines();
    let columns = "total_ns,share_percent,count,bytes,bandwidth_gb_per_s,device,direction,from,to";
    assert_eq!(lines.next(), Some(columns));
    let without_share = |line: &str| {
        let cells: Vec<_> = line.split(',').collect();
        [&cells[..1], &cells[2..]].concat().join(",")
    };
    lines.map(without_share).collect()
}

#[test]
fn nsys_exports_name_the_kinds_of_memory_by_their_own_numbers() {
    let folder = scratch("nsys-kinds");
    let path = folder.join("report.sqlite");
    nsys(&path, "");
    // The copy moves 4,096 bytes in 40 ns, which is 102.4 GB/s.
    assert_eq!(copies(&folder, "report.sqlite"), ["40,1,4096,102.400000,0,HtoD,,"]);
    let base = Connection::open(&path).unwrap();
    // In this file the number 0 means pageable memory. In CUPTI's own records the number 0 has another meaning.
    let kinds = "ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN srcKind INTEGER;
        ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN dstKind INTEGER;
        UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 0, dstKind = 2";
    base.execute_batch(kinds).unwrap();
    assert_eq!(
        copies(&folder, "report.sqlite"),
        ["40,1,4096,102.400000,0,HtoD,,"],
        "numbers without a meaning"
    );
    let labels = "CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER PRIMARY KEY, name TEXT, label TEXT);
        INSERT INTO ENUM_CUDA_MEM_KIND VALUES (0, 'P', 'Pageable'), (2, 'D', 'Device Static'), (7, 'U', 'Unknown')";
    base.execute_batch(labels).unwrap();
    assert_eq!(copies(&folder, "report.sqlite"), ["40,1,4096,102.400000,0,HtoD,pageable,device_static"]);
    base.execute_batch("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 7, dstKind = 99, bytes = 0").unwrap();
    assert_eq!(copies(&folder, "report.sqlite"), ["40,1,,,0,HtoD,,"]);
}

#[test]
fn an_sqlite_file_that_is_not_an_nsys_export_is_rejected() {
    let folder = scratch("sqlite");
    let base = Connection::open(folder.join("other.sqlite")).unwrap();
    base.execute_batch("CREATE TABLE songs (name TEXT)").unwrap();
    drop(base);
    let ran = gpuflame(&folder, ["flamegraph", "other.sqlite", "--format", "folded"]);
    ran.fails(1, &["other.sqlite", "not an Nsight Systems export", "nsys export --type sqlite"]);
}

#[test]
fn rocprof_dispatches_and_copies_are_under_the_calls_that_launched_them() {
    let folder = scratch("rocprof");
    let id = |id: u64| json!({"internal": id, "external": 0});
    let dispatch = |correlation: u64, kernel: u64, from: u64, to: u64| {
        json!({
            "correlation_id": id(correlation), "start_timestamp": from, "end_timestamp": to, "thread_id": 5,
            "dispatch_info": {
                "agent_id": {"handle": 77}, "kernel_id": kernel, "grid_size": {"x": 512, "y": 1, "z": 1},
                "workgroup_size": {"x": 256, "y": 1, "z": 1},
            },
            "stream_id": {"handle": 3},
        })
    };
    let trace = json!({"rocprofiler-sdk-tool": [{
        "metadata": {"pid": 4},
        "agents": [{"id": {"handle": 76}, "type": 1}, {"id": {"handle": 77}, "type": 2}],
        "kernel_symbols": [
            {"kernel_id": 1, "kernel_name": "_Z4gemmv", "formatted_kernel_name": "gemm()"},
            {"kernel_id": 2, "kernel_name": "add.kd", "formatted_kernel_name": ""},
        ],
        "strings": {"buffer_records": [
            {"kind": "NONE", "operations": []},
            {"kind": "HIP_API", "operations": ["", "hipLaunchKernel", "hipMemcpy"]},
            {"kind": "COPY", "operations": ["", "MEMORY_COPY_HOST_TO_DEVICE"]},
        ]},
        "buffer_records": {
            "kernel_dispatch": [dispatch(11, 1, 200, 300), dispatch(99, 2, 400, 405)],
            "hip_api": [
                {"kind": 1, "operation": 1, "correlation_id": id(11), "start_timestamp": 100, "end_timestamp": 120,
                 "thread_id": 5},
                {"kind": 1, "operation": 2, "correlation_id": id(12), "start_timestamp": 130, "end_timestamp": 180,
                 "thread_id": 5},
            ],
            "memory_copy": [{"kind": 2, "operation": 1, "correlation_id": id(12), "start_timestamp": 140,
                "end_timestamp": 170, "dst_agent_id": {"handle": 77}, "bytes": 64}],
        },
    }]});
    fs::write(folder.join("out.json"), trace.to_string()).unwrap();
    let expected = "[no launch stack];[GPU_Kernel]add.kd 5\n\
                    hipLaunchKernel;[GPU_Kernel]gemm 100\n\
                    hipMemcpy;[GPU_Memcpy HtoD] 30\n";
    assert_eq!(folded(&folder, "out.json"), expected);
}

/// In rocprofv3's records, the names of ranges are in a table keyed by correlation id. A range of the whole process is
/// not in any stack.
#[test]
fn rocprof_ranges_of_a_thread_are_in_the_stacks_of_its_launches() {
    let folder = scratch("rocprof");
    let id = |id: u64| json!({"internal": id, "external": 0});
    let range = |operation: u64, correlation: u64, from: u64, to: u64| {
        json!({"kind": 2, "operation": operation, "correlation_id": id(correlation), "start_timestamp": from,
            "end_timestamp": to, "thread_id": 5})
    };
    let trace = json!({"rocprofiler-sdk-tool": [{
        "metadata": {"pid": 4},
        "agents": [{"id": {"handle": 77}, "type": 2}],
        "kernel_symbols": [{"kernel_id": 1, "kernel_name": "gemm", "formatted_kernel_name": "gemm"}],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_API", "operations": ["hipLaunchKernel"]},
                {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"]},
            ],
            "marker_api": [{"key": 21, "value": "step"}, {"key": 22, "value": "forward"}, {"key": 23, "value": "epoch"}],
        },
        "buffer_records": {
            "kernel_dispatch": [{
                "correlation_id": id(11), "start_timestamp": 200, "end_timestamp": 300, "thread_id": 5,
                "dispatch_info": {"agent_id": {"handle": 77}, "kernel_id": 1}, "stream_id": {"handle": 3},
            }],
            "hip_api": [{"kind": 1, "operation": 0, "correlation_id": id(11), "start_timestamp": 100,
                "end_timestamp": 120, "thread_id": 5}],
            "marker_api": [range(1, 21, 50, 180), range(1, 22, 90, 130), range(2, 23, 10, 400), range(0, 24, 95, 95)],
        },
    }]});
    fs::write(folder.join("ranges.json"), trace.to_string()).unwrap();
    assert_eq!(folded(&folder, "ranges.json"), "step;forward;hipLaunchKernel;[GPU_Kernel]gemm 100\n");
}

const CUPTI: &str = "\
Calling CUPTI API: cuptiActivityEnable
RUNTIME [ 100, 120 ] duration 20, \"cudaLaunchKernel_v7000\", cbid 211, processId 7, threadId 8, correlationId 3
CONCURRENT_KERNEL [ 130, 190 ] duration 60, \"gemm<[4, 4], \"a\">, correlationId 9\", correlationId 3, cacheConfigRequested 0, cacheConfigExecuted 0
\tgrid [ 8, 1, 1 ], block [ 256, 1, 1 ], cluster [ 0, 0, 0 ], sharedMemory (static 0, dynamic 16)
\tdeviceId 1, contextId 1, streamId 7, graphId 0, graphNodeId 0, channelId 8, channelType COMPUTE
RUNTIME [ 200, 220 ] duration 20, \"cudaMemsetAsync_v3020\", cbid 51, processId 7, threadId 8, correlationId 4
MEMSET [ 230, 240 ] duration 10, value 0, size 256, correlationId 4
\tdeviceId 1, contextId 1, streamId 7, graphId 0, graphNodeId 0
OVERHEAD COMPILER [ 1, 9 ] duration 8, THREAD, id 1, correlation id 3
MEMCPY \"HtoD\" [ 250, 290 ] duration 40, size 4096, copyCount 1, srcKind PAGEABLE, dstKind DEVICE, correlationId 5
\tdeviceId 1, contextId 1, streamId 7
CONCURRENT_KERNEL [ 300, 3";

#[test]
fn cupti_text_is_read_with_fills_and_copies_and_quotes_in_names() {
    let folder = scratch("cupti-text");
    fs::write(folder.join("gpu.txt"), CUPTI).unwrap();
    let folded = folded(&folder, "gpu.txt");
    let lines: Vec<&str> = folded.lines().collect();
    assert_eq!(lines.len(), 3, "{folded}");
    assert!(lines[0].contains("[GPU_Memcpy HtoD] 40") && lines[0].starts_with('['), "{folded}");
    assert!(
        lines[1].contains("cudaLaunchKernel") && lines[1].contains("gemm<[4, 4], \"a\">, correlationId_9 60")
    );
    assert!(lines[2].contains("cudaMemset") && lines[2].ends_with("[GPU_Memset] 10"), "{folded}");
    assert_eq!(copies(&folder, "gpu.txt"), ["40,1,4096,102.400000,1,HtoD,pageable,device"]);
}

/// Returns a trace in CUPTI's text format with two kernels. The kernel `relu` on stream 8 is launched at 10 us, and may
/// begin when the kernel `gemm` has ended, at 45 us.
fn cupti_text_with_wait(record: &str) -> String {
    let call = |id: u32, name: &str, from: u32, to: u32| {
        format!(
            "RUNTIME [ {from}, {to} ] duration 1, \"{name}\", cbid 211, processId 7, threadId 8, correlationId {id}\n"
        )
    };
    let kernel = |id: u32, name: &str, stream: u32, from: u32, to: u32| {
        format!(
            "CONCURRENT_KERNEL [ {from}, {to} ] duration 1, \"{name}\", correlationId {id}\n\tgrid [ 1, 1, 1 ], block [ 1, 1, 1 ]\n\t\
             deviceId 0, contextId 1, streamId {stream}, graphId 0, graphNodeId 0\n"
        )
    };
    [
        call(1, "cudaLaunchKernel", 1000, 3000),
        kernel(1, "gemm", 7, 5000, 45_000),
        call(2, "cudaEventRecord", 6000, 7000),
        record.to_owned(),
        call(3, "cudaStreamWaitEvent", 8000, 9000),
        "SYNCHRONIZATION [ 8100, 8900 ] duration 800, type STREAM_WAIT_EVENT, contextId 1, streamId 8, correlationId 3, \
         eventId 5, cudaEventSyncId 11\n"
            .to_owned(),
        call(4, "cudaLaunchKernel", 10_000, 12_000),
        kernel(4, "relu", 8, 47_000, 57_000),
    ]
    .concat()
}

#[test]
fn streams_wait_for_the_events_in_cupti_text() {
    let folder = scratch("formats");
    let waiting_and_pending = |text: String| {
        fs::write(folder.join("waits.txt"), text).unwrap();
        let ran = gpuflame(&folder, ["states", "waits.txt", "--stream", "8", "-f", "json"]).ok();
        let tables: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let row = &tables["states"][0];
        ["waiting_ns", "pending_ns"].map(|state| row[state].as_u64().unwrap())
    };
    let numbered = "CUDA_EVENT contextId 1, streamId 7, correlationId 2, eventId 5, cudaEventSyncId 11\n";
    assert_eq!(waiting_and_pending(cupti_text_with_wait(numbered)), [35_000, 2_000]);
    // In texts of CUPTI before 12.8, records of CUDA events and waits have no sequence numbers. Therefore only the CUDA
    // event itself identifies the record.
    let by_event = cupti_text_with_wait(numbered).replace(", cudaEventSyncId 11", "");
    assert_eq!(waiting_and_pending(by_event), [35_000, 2_000]);
    // If the record of the CUDA event is missing, it is known only that the stream waits, and it is known to wait only
    // from 10 us after the launch.
    assert_eq!(waiting_and_pending(cupti_text_with_wait("")), [25_000, 12_000]);
}

#[test]
fn extract_and_stats_read_recordings_with_windows_as_steps() {
    let folder = scratch("recording");
    handmade::recording(&folder);
    let time = |nanos: u64| {
        let nanos = handmade::BASE + nanos;
        let text = format!("{}.{:03}", nanos / 1000, nanos % 1000);
        text.trim_end_matches('0').to_owned()
    };
    let row = |name: &str, from: u64, to: u64, length: &str| {
        format!("{name},{},{},{length}\n", time(from), time(to))
    };
    let expected = [
        "kernel_name,start_time_us,end_time_us,duration_us\n".to_owned(),
        row("gemm<float>", 20_000, 30_000, "10.0"),
        row("Memcpy HtoD", 20_000, 32_000, "12.0"),
        row("gemm<float>", 30_000, 40_001, "10.001"),
        row("add", 50_000, 55_000, "5.0"),
    ];
    let window = format!("{},{}", time(10_001), time(55_000));
    let Ran { stdout, stderr, .. } = gpuflame(&folder, ["extract", "hand.gfr", "-", &window]).ok();
    assert_eq!(stdout, expected.concat());
    assert!(stderr.contains("skipped 1 events without usable times"), "{stderr}");
    // The window is open from 5 to 100 us. The range `early` began before the window opened.
    let expected = "operation_name,avg_start_time_us,avg_end_time_us,avg_duration_us,bubble_time_us\n\
                    gemm<float>,15.0,25.0,10.0,15.0\n\
                    Memcpy HtoD,15.0,27.0,12.0,0.0\n\
                    gemm<float>,25.0,35.001,10.001,0.0\n\
                    add,45.0,50.0,5.0,9.999\n\
                    Memset,50.0,55.0,5.0,0.0\n\
                    lone,75.0,80.0,5.0,20.0\n";
    assert_eq!(gpuflame(&folder, ["stats", "hand.gfr", "-", "none"]).ok().stdout, expected);
    let by_pipe =
        crate::support::command::gpuflame_with(&folder, ["stats", "-", "-", "none"], &handmade::bytes());
    assert_eq!(by_pipe.ok().stdout, expected);
}

#[test]
fn stacks_without_times_have_no_operations_to_extract() {
    let folder = scratch("folded");
    fs::write(folder.join("cpu.folded"), "main;decode 12\n").unwrap();
    fs::write(folder.join("cpu.txt"), "1700 python 12 12 1 main;decode\n").unwrap();
    for name in ["cpu.folded", "cpu.txt"] {
        gpuflame(&folder, ["extract", name, "out.csv", "1,2"]).fails(1, &[name, "no GPU operations"]);
        assert!(!folder.join("out.csv").exists());
    }
}

#[test]
fn a_trace_without_known_gpu_operations_prints_a_remark() {
    let folder = scratch("mtia");
    let event = r#"{"ph": "X", "cat": "mtia_ccp_events", "name": "x", "ts": "1", "dur": 1}"#;
    fs::write(folder.join("mtia.json"), format!("[{event}]")).unwrap();
    let ran = gpuflame(&folder, ["extract", "mtia.json", "out.csv", "0,9"]).ok();
    assert!(ran.stderr.contains("no GPU operations of a kind that gpuflame knows"), "{}", ran.stderr);
}
