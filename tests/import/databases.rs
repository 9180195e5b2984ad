//! Tests SQLite databases of other tools: exports of several versions of Nsight Systems, rocpd with schemas 3 and 4,
//! and `.rpd`. Each test writes a small database, and compares its sums with sums that were added up by hand.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::command::{Ran, gpuflame};
use crate::support::scratch;
use rusqlite::Connection;

/// Writes the database `name` in `folder`.
fn database(folder: &Path, name: &str, statements: &str) -> PathBuf {
    let path = folder.join(name);
    let _ = fs::remove_file(&path);
    Connection::open(&path).unwrap().execute_batch(statements).unwrap();
    path
}

fn folded(folder: &Path, name: &str) -> Ran {
    gpuflame(folder, ["flamegraph", name, "--format", "folded"]).ok()
}

/// Returns the value in a row of the table that `gpuflame info` prints.
fn fact(folder: &Path, name: &str, what: &str) -> String {
    let table = gpuflame(folder, ["info", name, "--format", "csv"]).ok().stdout;
    let row = table.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(','));
    row.unwrap_or_else(|| panic!("no {what}: {table}")).to_owned()
}

/// Tables that every export of Nsight Systems has. The tables contain one launch and its kernel of 50 ns in process 3,
/// thread 9.
const NSYS: &str = "
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'add'), (3, 'cudaGraphLaunch_v10000');
    CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
    INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.19.7');
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 1100, (3 << 24) | 9, 1, 1);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName,
        graphNodeId);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 2050, 1, 7, 1, 3 << 24, 2, NULL);";

const GRAPHS: &str = "
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, graphId, graphExecId, contextId, streamId,
        correlationId, globalPid);
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (3000, 3100, (3 << 24) | 9, 2, 3), (4000, 4100, (3 << 24) | 9, 3, 3);
    INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (5000, 5600, 1, 8, 9, 1, 7, 2, 3 << 24),
        (6000, 6020, 1, 8, 9, 1, 7, 3, 3 << 24);";

#[test]
fn whole_graphs_of_nsys_count_under_their_launch() {
    let folder = scratch("databases");
    database(&folder, "graphs.sqlite", &format!("{NSYS}{GRAPHS}"));
    let ran = folded(&folder, "graphs.sqlite");
    assert_eq!(ran.stdout, "cudaGraphLaunch;[GPU_Graph] 620\ncudaLaunchKernel;[GPU_Kernel]add 50\n");
    assert_eq!(ran.stderr, "");
    assert_eq!(fact(&folder, "graphs.sqlite", "schema version"), "3.19.7");
    let ran = gpuflame(&folder, ["extract", "graphs.sqlite", "-", "5,6"]).ok();
    assert_eq!(ran.stdout.lines().nth(1), Some("[graph],5.0,5.6,0.6"));
    let check = gpuflame(&folder, ["check", "graphs.sqlite", "--strict"]).ok().stdout;
    assert!(!check.contains("note"), "{check}");
}

#[test]
fn tables_of_nsys_may_have_a_version() {
    let folder = scratch("databases");
    let renamed = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO CUPTI_ACTIVITY_KIND_KERNEL_V3;
        CREATE TABLE NVTX_EVENTS_V2 (start, end, eventType, text, textId, globalTid);
        INSERT INTO NVTX_EVENTS_V2 VALUES (900, 1200, 59, 'step', NULL, (3 << 24) | 9);";
    database(&folder, "versions.sqlite", &format!("{NSYS}{renamed}"));
    let ran = folded(&folder, "versions.sqlite");
    assert_eq!(ran.stdout, "step;cudaLaunchKernel;[GPU_Kernel]add 50\n");
}

/// In this database, GPU work of two processes runs at the same time. Each process has its own device 0, context 1 and
/// stream 7.
const TWO_PROCESSES: &str = "
    DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME;
    DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL;
    ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN contextId;
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 1100, (3 << 24) | 9, 1, 1), (1200, 1300, (3 << 24) | 9, 2, 1),
        (1010, 1110, (4 << 24) | 9, 1, 1), (1210, 1310, (4 << 24) | 9, 2, 1);
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000, 62000, 0, 7, 1, 3 << 24, 2, NULL, 1),
        (70000, 100000, 0, 7, 2, 3 << 24, 2, NULL, 1), (32000, 52000, 0, 7, 1, 4 << 24, 2, NULL, 1),
        (80000, 90000, 0, 7, 2, 4 << 24, 2, NULL, 1);";

#[test]
fn a_stream_and_a_device_of_nsys_belong_to_a_process() {
    let folder = scratch("databases");
    let devices = "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid);
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 3, 'GPU-a'), (1, 0, 4, 'GPU-b');";
    database(&folder, "one-gpu.sqlite", &format!("{NSYS}{TWO_PROCESSES}"));
    database(&folder, "two-gpus.sqlite", &format!("{NSYS}{TWO_PROCESSES}{devices}"));
    for name in ["one-gpu.sqlite", "two-gpus.sqlite"] {
        let check = gpuflame(&folder, ["check", name]).ok();
        assert!(!check.stdout.contains("BAD"), "{name}: {}", check.stdout);
        let is_told = check.stderr.contains("2 processes use device 0");
        assert_eq!(is_told, name == "one-gpu.sqlite", "{name}: {}", check.stderr);
    }
    let stacks = folded(&folder, "two-gpus.sqlite").stdout;
    let info = gpuflame(&folder, ["info", "two-gpus.sqlite", "-f", "json"]).ok().stdout;
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let busy = |at: usize| info["devices"][at]["busy_ns"].as_u64();
    assert_eq!((busy(0), busy(1)), (Some(90_000), Some(30_000)), "{stacks}");
}

#[test]
fn a_graph_whose_nodes_have_rows_counts_once() {
    let folder = scratch("databases");
    let node = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5000, 5500, 1, 7, 2, 3 << 24, 2, 77);";
    database(&folder, "both.sqlite", &format!("{NSYS}{GRAPHS}{node}"));
    let ran = folded(&folder, "both.sqlite");
    let sum: u64 =
        ran.stdout.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 50 + 500 + 20, "{}", ran.stdout);
    assert!(ran.stderr.contains("left out rows of whole graphs: 1"), "{}", ran.stderr);
}

#[test]
fn nvtx_rows_without_a_duration_are_not_events_without_times() {
    let folder = scratch("databases");
    let marks = "
        CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, globalTid);
        INSERT INTO NVTX_EVENTS VALUES (900, 2500, 59, 'step', NULL, (3 << 24) | 9),
            (950, NULL, 34, 'mark', NULL, (3 << 24) | 9), (700, NULL, 75, 'domain', NULL, NULL),
            (NULL, NULL, 33, 'category', NULL, NULL);";
    database(&folder, "marks.sqlite", &format!("{NSYS}{marks}"));
    let ran = folded(&folder, "marks.sqlite");
    assert_eq!((&*ran.stdout, &*ran.stderr), ("step;cudaLaunchKernel;[GPU_Kernel]add 50\n", ""));
    let ranges = "INSERT INTO NVTX_EVENTS VALUES (800, 4000, 60, 'crossing', NULL, (3 << 24) | 9),
        (801, 4001, 60, 'crossing', NULL, (3 << 24) | 9);";
    database(&folder, "ranges.sqlite", &format!("{NSYS}{marks}{ranges}"));
    let ran = folded(&folder, "ranges.sqlite");
    assert!(ran.stderr.contains("left out NVTX start/end ranges: 2; they may overlap"), "{}", ran.stderr);
    // If an NVTX range was never popped, it has no end.
    let open = "INSERT INTO NVTX_EVENTS VALUES (800, NULL, 59, 'open', NULL, (3 << 24) | 9);";
    database(&folder, "open.sqlite", &format!("{NSYS}{marks}{open}"));
    let ran = folded(&folder, "open.sqlite");
    assert!(ran.stderr.contains("skipped 1 events without usable times"), "{}", ran.stderr);
}

#[test]
fn times_of_databases_are_nanoseconds_whatever_their_digits() {
    let folder = scratch("databases");
    let whole = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 3000;";
    database(&folder, "whole.sqlite", &format!("{NSYS}{whole}"));
    assert_eq!(fact(&folder, "whole.sqlite", "times"), "nanoseconds");
    let check = gpuflame(&folder, ["check", "whole.sqlite"]).ok().stdout;
    assert!(check.contains("times are in nanoseconds"), "{check}");
}

#[test]
fn missing_columns_of_nsys_are_named_and_cost_only_their_facts() {
    let folder = scratch("databases");
    let old = "
        ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName;
        ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId;
        ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN nameId;";
    database(&folder, "old.sqlite", &format!("{NSYS}{old}"));
    let ran = folded(&folder, "old.sqlite");
    assert_eq!(ran.stdout, "[call without a name];[GPU_Kernel][kernel without a name] 50\n");
    for column in ["KERNEL.demangledName", "KERNEL.streamId", "RUNTIME.nameId"] {
        assert!(ran.stderr.contains(column), "{}", ran.stderr);
    }
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    // In this export, the kernel's name is in another column, and is a text instead of an id in `StringIds`.
    let short = "
        ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN demangledName TO shortName;
        UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = 'gemm';
        DROP TABLE StringIds;";
    database(&folder, "short.sqlite", &format!("{NSYS}{short}"));
    assert!(folded(&folder, "short.sqlite").stdout.ends_with(";[GPU_Kernel]gemm 50\n"));
}

#[test]
fn strange_values_in_a_database_stop_nothing() {
    let folder = scratch("databases");
    let strange = "
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 2, 1, 7, 1, 3, 2, 4), (NULL, NULL, 1, 7, 1, 3, 2, 4),
            (1e300, 2, 1, 7, 1, 3, 2, 4), (3000, 3010, -5, 1 << 40, -1, 3 << 24, x'ff', -1);
        INSERT INTO StringIds VALUES (50, CAST(x'6bff' AS TEXT));
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (4000, 4001, 1, 7, 1, 3 << 24, 50, NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, deviceId, streamId, correlationId, syncType);
        INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (1, 2, 1 << 40, 'x', NULL, NULL);";
    database(&folder, "strange.sqlite", &format!("{NSYS}{strange}"));
    let ran = folded(&folder, "strange.sqlite");
    assert!(ran.stdout.contains("add 50") && ran.stdout.contains("k\\xff 1"), "{}", ran.stdout);
    assert!(ran.stderr.contains("skipped 3 events without usable times"), "{}", ran.stderr);
    let bytes = fs::read(folder.join("strange.sqlite")).unwrap();
    fs::write(folder.join("cut.sqlite"), &bytes[..bytes.len() / 2]).unwrap();
    gpuflame(&folder, ["info", "cut.sqlite"]).fails(1, &["cut.sqlite", "damaged or truncated", "again"]);
}

/// Returns an export of two processes that use equal ids, on streams 7 and 8 of two GPUs. Stream 8 waits for the CUDA
/// event 5, which is recorded after the first kernel on stream 7. At the end the host waits for stream 7. As in exports
/// of schema 3.24, the `syncType` of all waits is the number for a wait for a stream.
fn nsys_waits(record_columns: &str, records: &str, wait_record: &str) -> String {
    let process = |process: u32, device: u32, first_end: u32| {
        let (second, third) = (first_end + 40_000, first_end + 1000);
        format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 2000, ({process} << 24) | 9, 1, 1),
                (2000, 2500, ({process} << 24) | 9, 2, 4), (2600, 3000, ({process} << 24) | 9, 3, 1),
                (3100, 3400, ({process} << 24) | 9, 4, 3), (4000, 4500, ({process} << 24) | 9, 5, 1),
                (5000, 91000, ({process} << 24) | 9, 6, 5);
             INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
                (10000, {first_end}, {device}, 1, 7, 1, {process} << 24, 2),
                ({first_end}, {second}, {device}, 1, 7, 3, {process} << 24, 2),
                ({third}, {first_end} + 10000, {device}, 1, 8, 5, {process} << 24, 2);
             INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES
                (3110, 3390, 0, 1, 8, 4, {process} << 24, 2, 5, {wait_record}),
                (5010, 90900, 0, 1, 7, 6, {process} << 24, 2, 4294967295, 4294967295);
             {}",
            records.replace("PROCESS", &format!("({process} << 24)"))
        )
    };
    format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'add'), (3, 'cudaStreamWaitEvent_v3020'),
            (4, 'cudaEventRecord_v3020'), (5, 'cudaStreamSynchronize_v3020');
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, globalPid,
            demangledName);
         CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, deviceId, contextId, streamId, correlationId,
            globalPid, syncType, eventId, eventSyncId);
         CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT ({record_columns});
         {}{}",
        process(3, 1, 50_000),
        process(4, 2, 30_000)
    )
}

/// Returns GPU, start and duration in ns of the waits on all streams with the id 8. Each start is relative to the start
/// of the window at 10,000 ns.
fn waiting_of_stream_8(folder: &Path, name: &str) -> Vec<(u64, u64, u64)> {
    let flags = ["states", name, "--stream", "8", "--intervals", "-n", "0", "--format", "json"];
    let json: serde_json::Value = serde_json::from_str(&gpuflame(folder, flags).ok().stdout).unwrap();
    let number = |row: &serde_json::Value, key: &str| row[key].as_u64().unwrap();
    let rows = json["intervals"].as_array().unwrap().iter().filter(|row| row["state"] == "waiting");
    rows.map(|row| (number(row, "device"), number(row, "start_ns"), number(row, "duration_ns"))).collect()
}

#[test]
fn streams_of_nsys_wait_until_the_work_before_the_events_record_ends() {
    let folder = scratch("databases");
    let columns = "timestamp, deviceId, contextId, streamId, correlationId, globalPid, eventId, eventSyncId";
    let record = "INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, 0, 1, 7, 2, PROCESS, 5, 11);";
    database(&folder, "records.sqlite", &nsys_waits(columns, record, "11"));
    assert_eq!(waiting_of_stream_8(&folder, "records.sqlite"), [(1, 0, 40_000), (2, 0, 20_000)]);
    // In older exports, records of CUDA events have no sequence numbers. In such exports, a wait refers to the last
    // record of the event before the wait, not to a later record.
    let columns = "deviceId, contextId, streamId, correlationId, globalPid, eventId";
    let records = "INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, 1, 7, 2, PROCESS, 5),
        (0, 1, 7, 6, PROCESS, 5), (0, 1, 7, 1, PROCESS, 6);";
    database(&folder, "older.sqlite", &nsys_waits(columns, records, "NULL"));
    assert_eq!(waiting_of_stream_8(&folder, "older.sqlite"), [(1, 0, 40_000), (2, 0, 20_000)]);
    // If records of CUDA events are missing, it is known only that the stream waits, and it is known to wait only from
    // 10 us after the launch call.
    database(&folder, "unknown.sqlite", &nsys_waits("eventId", "", "11"));
    assert_eq!(waiting_of_stream_8(&folder, "unknown.sqlite"), [(1, 4500, 36_500), (2, 4500, 16_500)]);
}

#[test]
fn waits_and_records_of_events_survive_sbt() {
    let folder = scratch("databases");
    let columns = "timestamp, deviceId, contextId, streamId, correlationId, globalPid, eventId, eventSyncId";
    let record = "INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, 0, 1, 7, 2, PROCESS, 5, 11);";
    database(&folder, "again.sqlite", &nsys_waits(columns, record, "11"));
    for (from, to) in [("again.sqlite", "a.sbt"), ("a.sbt", "b.sbt"), ("b.sbt", "c.sbt")] {
        gpuflame(&folder, ["convert", from, "--to", "sbt", "-o", to]).ok();
        assert_eq!(waiting_of_stream_8(&folder, to), [(1, 0, 40_000), (2, 0, 20_000)], "{to}");
        // This format contains the times at which the stream waited. This format does not contain the times of the API
        // call that made the stream wait.
        let ran = gpuflame(&folder, ["flamegraph", to, "--view", "wait", "--format", "folded"]).ok();
        assert_eq!(ran.stdout, "cudaStreamSynchronize 171780\n", "{to}");
        for fact in ["event records", "wait records stream wait", "wait records stream"] {
            assert_eq!(self::fact(&folder, to, fact), "2", "{to}: {fact}");
        }
    }
    // The first output file (`a.sbt`) may differ, because it has the calls of the two processes in the order of the
    // database. Therefore the test compares the second and the third file.
    assert_eq!(fs::read(folder.join("b.sbt")).unwrap(), fs::read(folder.join("c.sbt")).unwrap());
}

#[test]
fn waits_of_nsys_have_the_stack_and_the_kind_of_their_calls() {
    let folder = scratch("databases");
    let ranges = "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, globalTid);
        INSERT INTO NVTX_EVENTS VALUES (4900, 95000, 59, 'step', NULL, (3 << 24) | 9);";
    database(&folder, "waits.sqlite", &format!("{}{ranges}", nsys_waits("eventId", "", "11")));
    let ran = gpuflame(&folder, ["flamegraph", "waits.sqlite", "--view", "wait", "--format", "folded"]).ok();
    assert_eq!(ran.stdout, "cudaStreamSynchronize 86000\nstep;cudaStreamSynchronize 86000\n");
}

/// Tables of rocpd with the suffix `_0f`, as schema 3 has them. The tables contain process 1 with thread 5, and GPU 1
/// as agent 4.
fn rocpd_common(suffix: &str) -> String {
    format!(
        "CREATE TABLE rocpd_metadata{suffix} (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
         CREATE TABLE rocpd_string{suffix} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
         INSERT INTO rocpd_string{suffix} VALUES (1, 'g', 'KERNEL_DISPATCH'), (2, 'g', 'HIP_RUNTIME_API_EXT'),
            (3, 'g', 'hipLaunchKernel'), (4, 'g', 'MARKER_CORE_RANGE_API'), (5, 'g', 'roctxRangePushA'),
            (6, 'g', 'MEMORY_COPY'), (7, 'g', 'MEMORY_COPY_HOST_TO_DEVICE'), (8, 'g', 'hipMemcpy');
         CREATE TABLE rocpd_info_node{suffix} (id INTEGER PRIMARY KEY, machine_id TEXT);
         INSERT INTO rocpd_info_node{suffix} VALUES (1, 'machine');
         CREATE TABLE rocpd_info_process{suffix} (id INTEGER PRIMARY KEY, nid, pid);
         INSERT INTO rocpd_info_process{suffix} VALUES (1, 1, 4242);
         CREATE TABLE rocpd_info_thread{suffix} (id INTEGER PRIMARY KEY, nid, pid, tid, name);
         INSERT INTO rocpd_info_thread{suffix} VALUES (5, 1, 1, 4243, 'main');
         CREATE TABLE rocpd_info_agent{suffix} (id INTEGER PRIMARY KEY, nid, pid, type, type_index);
         INSERT INTO rocpd_info_agent{suffix} VALUES (2, 1, 1, 'CPU', 0), (3, 1, 1, 'GPU', 0), (4, 1, 1, 'GPU', 1);
         CREATE TABLE rocpd_info_kernel_symbol{suffix} (id INTEGER PRIMARY KEY, kernel_name, display_name);
         INSERT INTO rocpd_info_kernel_symbol{suffix} VALUES (1, '_Z4gemmv.kd', 'gemm()'), (2, 'add.kd', '');"
    )
}

/// A database of schema 3 with a range, two launches and a copy. The ids that the program itself sets (correlation_id)
/// are all 0 or misleading.
fn rocpd_3(suffix: &str) -> String {
    let common = rocpd_common(suffix);
    format!(
        "{common}
         INSERT INTO rocpd_metadata{suffix} VALUES (1, 'schema_version', '3.0.3'), (2, 'uuid', '{suffix}');
         CREATE TABLE rocpd_event{suffix} (id INTEGER PRIMARY KEY, category_id, stack_id, parent_stack_id,
             correlation_id, call_stack, line_info, extdata);
         INSERT INTO rocpd_event{suffix} VALUES (1, 4, 9, 0, 0, '[]', '[]', '{{\"message\": \"decode\"}}'),
             (2, 2, 10, 0, 11, '[]', '[]', '{{}}'), (3, 1, 10, 10, 0, '[]', '[]', '{{}}'),
             (4, 2, 11, 0, 0, '[]', '[]', '{{}}'), (5, 1, 11, 11, 0, '[]', '[]', '{{}}'),
             (6, 2, 12, 0, 0, '[]', '[]', '{{}}'), (7, 6, 12, 12, 0, '[]', '[]', '{{}}'),
             (8, 1, 99, 99, 0, '[]', '[]', '{{}}');
         CREATE TABLE rocpd_region{suffix} (id INTEGER PRIMARY KEY, nid, pid, tid, start, end, name_id, event_id);
         INSERT INTO rocpd_region{suffix} VALUES (1, 1, 1, 5, 900, 2500, 5, 1), (2, 1, 1, 5, 1000, 1100, 3, 2),
             (3, 1, 1, 5, 2000, 2100, 3, 4), (4, 1, 1, 5, 2600, 2700, 8, 6);
         CREATE TABLE rocpd_kernel_dispatch{suffix} (id INTEGER PRIMARY KEY, nid, pid, tid, agent_id, kernel_id,
             dispatch_id, queue_id, stream_id, start, end, group_segment_size, workgroup_size_x, workgroup_size_y,
             workgroup_size_z, grid_size_x, grid_size_y, grid_size_z, event_id);
         INSERT INTO rocpd_kernel_dispatch{suffix} VALUES
             (1, 1, 1, 5, 4, 1, 1, 2, 6, 1500, 1600, 0, 64, 1, 1, 640, 1, 1, 3),
             (2, 1, 1, 5, 4, 2, 2, 2, 6, 2200, 2207, 0, 64, 1, 1, 640, 1, 1, 5),
             (3, 1, 1, 5, 3, 2, 3, 2, NULL, 3000, 3003, 0, 64, 1, 1, 640, 1, 1, 8);
         CREATE TABLE rocpd_memory_copy{suffix} (id INTEGER PRIMARY KEY, nid, pid, tid, start, end, name_id,
             dst_agent_id, src_agent_id, size, queue_id, stream_id, event_id);
         INSERT INTO rocpd_memory_copy{suffix} VALUES (1, 1, 1, 5, 2800, 2830, 7, 4, 2, 4096, NULL, 6, 7);
         CREATE VIEW IF NOT EXISTS rocpd_region AS SELECT * FROM rocpd_region{suffix};"
    )
}

const ROCPD_STACKS: &str = "[no launch stack];[GPU0_Kernel]add.kd 3\n\
                            decode;hipLaunchKernel;[GPU1_Kernel]add.kd 7\n\
                            decode;hipLaunchKernel;[GPU1_Kernel]gemm 100\n\
                            hipMemcpy;[GPU1_Memcpy HtoD] 30\n";

#[test]
fn rocpd_of_schema_3_links_dispatches_and_copies_by_the_ids_of_calls() {
    let folder = scratch("databases");
    database(&folder, "three.db", &rocpd_3("_0f"));
    assert_eq!(folded(&folder, "three.db").stdout, ROCPD_STACKS);
    assert_eq!(fact(&folder, "three.db", "schema version"), "3.0.3");
    assert_eq!(fact(&folder, "three.db", "kind"), "a rocpd database (rocprofv3)");
    let json = gpuflame(&folder, ["view", "three.db", "--kind", "copy", "--format", "csv"]).ok().stdout;
    assert!(json.contains(",4096,,,HtoD,hipMemcpy"), "{json}");
}

#[test]
fn rocpd_gives_the_rank_and_the_number_of_ranks_in_the_environment() {
    let folder = scratch("databases");
    for (name, rank) in [("a.db", 3), ("b.db", 1)] {
        let environment = format!(r#"{{"HOME": "/root", "RANK": "{rank}", "WORLD_SIZE": "4"}}"#);
        let process = format!(
            "ALTER TABLE rocpd_info_process_0f ADD COLUMN environment;
             UPDATE rocpd_info_process_0f SET environment = '{environment}';"
        );
        database(&folder, name, &format!("{}{process}", rocpd_3("_0f")));
    }
    let ran = gpuflame(&folder, ["merge-ranks", "a.db", "b.db", "--format", "csv"]).ok();
    assert!(ran.stderr.contains("2 of 4 ranks are missing: 0, 2"), "{}", ran.stderr);
    let ranks: Vec<&str> =
        ran.stdout.lines().skip(1).take(2).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(ranks, ["1", "3"], "{}", ran.stdout);
}

#[test]
fn rocpd_of_schema_4_has_places_in_tracks_and_times_in_a_table() {
    let folder = scratch("databases");
    let common = rocpd_common("_0f");
    let four = format!(
        "{common}
         INSERT INTO rocpd_metadata_0f VALUES (1, 'schema_version', '4.0.0');
         CREATE TABLE rocpd_info_category_0f (id INTEGER PRIMARY KEY, name TEXT);
         INSERT INTO rocpd_info_category_0f VALUES (1, 'HIP_RUNTIME_API'), (2, 'KERNEL_DISPATCH');
         CREATE TABLE rocpd_track_0f (id INTEGER PRIMARY KEY, nid, pid, tid, agent_id, queue_id, stream_id);
         INSERT INTO rocpd_track_0f VALUES (1, 1, 1, 5, NULL, NULL, NULL), (2, 1, 1, NULL, 4, 2, 6);
         CREATE TABLE rocpd_timestamp_0f (id INTEGER PRIMARY KEY, value, phase, track_id);
         INSERT INTO rocpd_timestamp_0f VALUES (1, 1000, 1, 1), (2, 1100, 2, 1), (3, 1500, 1, 2), (4, 1600, 2, 2);
         CREATE TABLE rocpd_event_0f (id INTEGER PRIMARY KEY, category_id, stack_id, correlation_id, extdata);
         INSERT INTO rocpd_event_0f VALUES (1, 1, 10, 0, '{{}}'), (2, 2, 10, 0, '{{}}');
         CREATE TABLE rocpd_region_0f (id INTEGER PRIMARY KEY, track_id, name_id, start_id, end_id, event_id);
         INSERT INTO rocpd_region_0f VALUES (1, 1, 3, 1, 2, 1);
         CREATE TABLE rocpd_kernel_dispatch_0f (id INTEGER PRIMARY KEY, track_id, kernel_id, start_id, end_id,
             workgroup_size_x, grid_size_x, event_id);
         INSERT INTO rocpd_kernel_dispatch_0f VALUES (1, 2, 1, 3, 4, 64, 640, 2), (2, 2, 1, 3, 77, 64, 640, 2);"
    );
    database(&folder, "four.db", &four);
    let ran = folded(&folder, "four.db");
    assert_eq!(ran.stdout, "hipLaunchKernel;[GPU_Kernel]gemm 100\n");
    // In the table of times, the end of the second kernel dispatch is missing.
    assert!(ran.stderr.contains("skipped 1 events without usable times"), "{}", ran.stderr);
    assert_eq!(fact(&folder, "four.db", "schema version"), "4.0.0");
}

#[test]
fn merged_rocpd_does_not_mix_up_the_ids_of_two_processes() {
    let folder = scratch("databases");
    // The second process runs on another machine. Therefore the GPUs of the second process are not the same as those of
    // the first process.
    let second = rocpd_3("_b").replace("'machine'", "'other machine'");
    database(&folder, "merged.db", &format!("{}{second}", rocpd_3("_a")));
    let stacks = folded(&folder, "merged.db").stdout;
    let sum: u64 = stacks.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 2 * (3 + 7 + 100 + 30), "{stacks}");
    for gpu in 0..4 {
        assert!(stacks.contains(&format!("[GPU{gpu}_")), "{stacks}");
    }
    assert_eq!(stacks.matches("no launch stack").count(), 2, "{stacks}");
}

#[test]
fn rocpd_reports_compressed_columns_and_rows_that_are_left_out() {
    let folder = scratch("databases");
    let more = "
        INSERT INTO rocpd_metadata_0f VALUES (9, 'compression', 'lz4-frame-v1');
        UPDATE rocpd_event_0f SET call_stack = x'04224d18', extdata = x'04224d18';
        CREATE TABLE rocpd_memory_allocate_0f (id INTEGER PRIMARY KEY, start, end);
        INSERT INTO rocpd_memory_allocate_0f VALUES (1, 2, 3), (2, 3, 4);";
    database(&folder, "packed.db", &format!("{}{more}", rocpd_3("_0f")));
    let ran = folded(&folder, "packed.db");
    // The text of the range is compressed, so gpuflame shows the name of the range's API call instead of the text.
    let expected = "[no launch stack];[GPU0_Kernel]add.kd 3\n\
                    hipMemcpy;[GPU1_Memcpy HtoD] 30\n\
                    roctxRangePushA;hipLaunchKernel;[GPU1_Kernel]add.kd 7\n\
                    roctxRangePushA;hipLaunchKernel;[GPU1_Kernel]gemm 100\n";
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("compressed (lz4-frame-v1)"), "{}", ran.stderr);
    assert!(ran.stderr.contains("left out memory allocations: 2"), "{}", ran.stderr);
    let stacks = "UPDATE rocpd_event_0f SET call_stack = '[{\"name\": \"f\"}]' WHERE id < 4;";
    database(&folder, "stacks.db", &format!("{}{stacks}", rocpd_3("_0f")));
    assert!(folded(&folder, "stacks.db").stderr.contains("left out call stacks: 3"));
}

#[test]
fn rows_of_rocpd_with_repeated_keys_count_once() {
    let folder = scratch("databases");
    // A copy of a table that was made with CREATE TABLE AS has no primary keys. In this test, the copies also contain
    // each symbol and event twice.
    let copied = "
        CREATE TABLE copy AS SELECT * FROM rocpd_info_kernel_symbol_0f;
        DROP TABLE rocpd_info_kernel_symbol_0f;
        CREATE TABLE rocpd_info_kernel_symbol_0f AS SELECT * FROM copy UNION ALL SELECT * FROM copy;
        CREATE TABLE events AS SELECT * FROM rocpd_event_0f;
        DROP TABLE rocpd_event_0f;
        CREATE TABLE rocpd_event_0f AS SELECT * FROM events UNION ALL SELECT * FROM events;";
    database(&folder, "copied.db", &format!("{}{copied}", rocpd_3("_0f")));
    assert_eq!(folded(&folder, "copied.db").stdout, ROCPD_STACKS);
}

#[test]
fn rpd_ties_operations_to_calls_and_leaves_barriers_out() {
    let folder = scratch("databases");
    let rpd = "
        CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT);
        INSERT INTO rocpd_string VALUES (1, 'hipLaunchKernel'), (2, ''), (3, 'KernelExecution'), (4, 'gemm()'),
            (5, 'CopyHostToDevice'), (6, 'BarrierPacket'), (7, 'UserMarker'), (8, 'decode'), (9, 'hipMemcpy');
        CREATE TABLE rocpd_metadata (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
        INSERT INTO rocpd_metadata VALUES (1, 'schema_version', '2');
        CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY, pid, tid, start, end, apiName_id, args_id);
        INSERT INTO rocpd_api VALUES (1, 7, 8, 900, 2000, 7, 8), (2, 7, 8, 1000, 1100, 1, 2), (3, 7, 8, 2100, 2200, 9, 2);
        CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY, gpuId, queueId, sequenceId, start, end, description_id, opType_id);
        INSERT INTO rocpd_op VALUES (1, 0, 0, 1, 1500, 1600, 4, 3), (2, 0, 0, 2, 1600, 1650, 4, 3),
            (3, 1, 0, 3, 2150, 2180, 2, 5), (4, 0, 0, 4, 1650, 1700, 2, 6);
        CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY, api_id, op_id);
        INSERT INTO rocpd_api_ops VALUES (1, 2, 1), (2, 2, 2), (3, 3, 3), (4, 2, 4), (5, 2, 1);
        CREATE TABLE rocpd_copyapi (api_ptr_id INTEGER PRIMARY KEY, stream, size);
        INSERT INTO rocpd_copyapi VALUES (3, 'x', 4096);";
    database(&folder, "a.rpd", rpd);
    let ran = folded(&folder, "a.rpd");
    let expected = "decode;hipLaunchKernel;[GPU0_Kernel]gemm 150\nhipMemcpy;[GPU1_Memcpy HtoD] 30\n";
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("not GPU work: 1 of BarrierPacket"), "{}", ran.stderr);
    let copies = gpuflame(&folder, ["view", "a.rpd", "--kind", "copy", "--format", "csv"]).ok().stdout;
    assert!(copies.contains(",4096,,,HtoD,hipMemcpy"), "{copies}");
    assert_eq!(fact(&folder, "a.rpd", "schema version"), "2");
}

#[test]
fn databases_without_a_timeline_are_rejected_by_name() {
    let folder = scratch("databases");
    for (name, table, words) in [
        ("compute.db", "compute_workload (id)", ["rocprof-compute", "rocprofv3 --sys-trace"]),
        (
            "ingero.db",
            "events (id); CREATE TABLE stack_traces (hash); CREATE TABLE causal_chains (id)",
            ["ingero", "gpuflame run"],
        ),
        ("cpu.sqlite", "StringIds (id, value)", ["without CUDA data", "nsys profile -t cuda"]),
        ("songs.sqlite", "songs (name)", ["not an Nsight Systems export", "rocpd"]),
    ] {
        database(&folder, name, &format!("CREATE TABLE {table};"));
        for verb in ["info", "check", "flamegraph"] {
            gpuflame(&folder, [verb, name]).fails(1, &[&[name], &words[..]].concat());
        }
    }
    // All tables exist, but they are empty.
    database(
        &folder,
        "empty.db",
        "CREATE TABLE rocpd_kernel_dispatch_a (id INTEGER PRIMARY KEY, start, end);",
    );
    gpuflame(&folder, ["info", "empty.db"]).fails(1, &["empty.db", "has no events"]);
}
