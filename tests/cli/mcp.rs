//! Tests `gpuflame mcp`. A client talks to the server over pipes, and the server's answers must equal the output of the
//! verbs.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::command::gpuflame;
use crate::support::traces::Trace;
use crate::support::{handmade, scratch};
use crate::tables::training;

/// Maximum time to wait for the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client, and the server that it has started.
struct Client {
    server: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Replies that arrived while the client waited for the reply to another request.
    replies: Vec<Value>,
    last_id: u64,
}

impl Client {
    /// Starts a server in `folder` without sending it a message.
    fn start(folder: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        command.arg("mcp").args(args).current_dir(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let stdin = server.stdin.take();
        let out = BufReader::new(server.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // If the client no longer exists, this reading thread ends and closes its end of the pipe to the
                // server.
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { server, stdin, lines, replies: Vec::new(), last_id: 0 }
    }

    /// Starts a server in `folder` and begins the conversation.
    fn new(folder: &Path, args: &[&str]) -> Self {
        let mut client = Self::start(folder, args);
        client.initialize();
        client
    }

    fn initialize(&mut self) -> Value {
        let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        let reply = self.request("initialize", &params);
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        reply["result"].clone()
    }

    fn send_line(&mut self, line: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(&[line, b"\n"].concat()).unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes());
    }

    /// Sends a request to the server, and returns the request's id.
    fn ask(&mut self, method: &str, params: &Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Waits for the reply to a request.
    fn reply(&mut self, id: u64) -> Value {
        loop {
            if let Some(at) = self.replies.iter().position(|reply| reply["id"] == id) {
                return self.replies.remove(at);
            }
            let line = self.lines.recv_timeout(PATIENCE).expect("the server replies");
            self.replies.push(serde_json::from_str(&line).unwrap());
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.ask(method, params);
        self.reply(id)
    }

    fn ask_tool(&mut self, name: &str, arguments: &Value) -> u64 {
        self.ask("tools/call", &json!({"name": name, "arguments": arguments}))
    }

    fn call(&mut self, name: &str, arguments: &Value) -> Answer {
        let id = self.ask_tool(name, arguments);
        Answer::new(&self.reply(id))
    }

    /// Ids of the processes that the server has started and that still run.
    fn children(&self) -> BTreeSet<u32> {
        let parent = self.server.id().to_string();
        let ids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let is_child = |id: &u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(parent.as_str())
        };
        ids.filter(is_child).collect()
    }

    fn wait_for_children(&self, count: usize) -> BTreeSet<u32> {
        wait_until("the server has the expected number of children", || {
            let children = self.children();
            (children.len() == count).then_some(children)
        })
    }

    /// Waits until the server ends, and returns its exit status and standard error.
    fn end(&mut self) -> (ExitStatus, String) {
        let status = wait_until("the server ends", || self.server.try_wait().unwrap());
        let mut said = String::new();
        self.server.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }

    /// Closes the server's input, and asserts that the server ends normally.
    fn hang_up(&mut self) {
        self.stdin = None;
        let (status, said) = self.end();
        assert!(status.success() && said.is_empty(), "{status}: {said}");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn wait_until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = done() {
            return result;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

/// The server's reply to a call of a tool.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    is_error: bool,
    texts: Vec<String>,
}

impl Answer {
    fn new(reply: &Value) -> Self {
        let parts = reply["result"]["content"].as_array().unwrap_or_else(|| panic!("{reply}"));
        Self {
            is_error: reply["result"]["isError"] == true,
            texts: parts.iter().map(|part| part["text"].as_str().unwrap().to_owned()).collect(),
        }
    }

    /// Returns the text of a refusal, which must be the only text in the reply.
    fn refusal(&self) -> &str {
        assert!(self.is_error && self.texts.len() == 1, "{self:?}");
        &self.texts[0]
    }
}

/// Writes a hand-made recording, and traces of two ranks of a training job, into a new folder.
fn inputs(name: &str) -> std::path::PathBuf {
    let folder = scratch(name);
    handmade::recording(&folder);
    training(&folder, "rank-0.json", 0);
    training(&folder, "rank-1.json", 20);
    folder
}

/// Creates a named pipe; opening it for reading blocks until a writer opens it.
fn named_pipe(folder: &Path) {
    assert!(Command::new("mkfifo").arg(folder.join("waits")).status().unwrap().success());
}

#[test]
fn answers_are_those_of_the_verbs_to_the_last_byte() {
    let folder = inputs("mcp");
    let mut client = Client::new(&folder, &[]);
    for (tool, arguments, words) in [
        ("summary", json!({"file": "hand.gfr"}), "summary hand.gfr --format json"),
        ("summary", json!({"file": "rank-0.json"}), "summary rank-0.json --format json"),
        ("top", json!({"file": "hand.gfr"}), "top hand.gfr --format json"),
        (
            "top",
            json!({"file": "rank-0.json", "by": ["idle", "line", "comm"], "number": 2}),
            "top rank-0.json --by idle,line,comm -n 2 --format json",
        ),
        (
            "top",
            json!({"file": "hand.gfr", "by": "function", "self": true}),
            "top hand.gfr --by function --self --format json",
        ),
        ("info", json!({"file": "hand.gfr"}), "info hand.gfr --format json"),
        ("check", json!({"file": "hand.gfr"}), "check hand.gfr --format json"),
        (
            "view",
            json!({"file": "hand.gfr", "kind": ["copy", "set"]}),
            "view hand.gfr --kind copy,set --format json",
        ),
        (
            "view",
            json!({"file": "hand.gfr", "number": 1, "device": 0, "from": "10us"}),
            "view hand.gfr -n 1 --device 0 --from 10us --format json",
        ),
        (
            "diff",
            json!({"before": "rank-0.json", "after": "rank-1.json"}),
            "diff rank-0.json rank-1.json --format json",
        ),
        (
            "merge_ranks",
            json!({"files": ["rank-0.json", "rank-1.json"]}),
            "merge-ranks rank-0.json rank-1.json --format json",
        ),
        (
            "stats",
            json!({"file": "rank-0.json", "trim": "none", "max": "1s"}),
            "stats rank-0.json - none 1000",
        ),
        ("settings", json!({}), "settings --format json"),
        ("settings", json!({"names": ["max-mem"]}), "settings max-mem --format json"),
        ("settings", json!({"all": true}), "settings --all --format json"),
    ] {
        let verb = gpuflame(&folder, words.split(' ')).ok();
        let expected = [verb.stdout, verb.stderr].into_iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(client.call(tool, &arguments), Answer { is_error: false, texts: expected }, "{words}");
    }
    client.hang_up();
}

#[test]
fn a_withheld_verdict_and_a_refusal_reach_the_agent() {
    let folder = inputs("mcp");
    let mut few = Trace::default();
    for id in 1..20 {
        few.slice("cuda_runtime", "cudaLaunchKernel", 1, 10 * id, 10 * id + 5);
    }
    few.launch(30, "gemm", 1, 300, 310, 320);
    few.write(&folder.join("few.json"));
    let mut client = Client::new(&folder, &[]);
    let withheld = client.call("summary", &json!({"file": "few.json"}));
    assert!(!withheld.is_error && withheld.texts[0].contains("idle time is unknown: "), "{withheld:?}");
    for (tool, arguments, words) in [
        ("summary", json!({"file": "missing.gfr"}), "summary missing.gfr"),
        ("view", json!({"file": "hand.gfr", "stream": 77}), "view hand.gfr --stream 77"),
        ("top", json!({"file": "hand.gfr", "number": "many"}), "top --number=many hand.gfr"),
        ("top", json!({"file": "hand.gfr", "by": "beauty"}), "top hand.gfr --by=beauty"),
        ("summary", json!({"file": "-"}), "summary ./-"),
    ] {
        let verb = gpuflame(&folder, words.split(' '));
        assert_ne!(verb.code, 0, "{words}");
        assert_eq!(client.call(tool, &arguments).refusal(), verb.stderr, "{words}");
    }
    client.hang_up();
}

#[test]
fn the_list_of_tools_has_the_parameters_and_marks_those_that_write() {
    let folder = scratch("mcp");
    let mut client = Client::start(&folder, &[]);
    let server = client.initialize();
    assert_eq!(server["serverInfo"]["name"], "gpuflame");
    assert_eq!(server["protocolVersion"], "2025-06-18");
    let instructions = server["instructions"].as_str().unwrap();
    assert!(instructions.contains("Call `summary` first"), "{instructions}");
    assert!(
        instructions.ends_with(&format!("Relative paths begin in {}.", folder.display())),
        "{instructions}"
    );
    let list = client.request("tools/list", &json!({}));
    let tools = list["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let expected = [
        "summary",
        "top",
        "info",
        "check",
        "view",
        "diff",
        "merge_ranks",
        "stats",
        "settings",
        "flamegraph",
        "convert",
    ];
    assert_eq!(names, expected);
    for tool in tools {
        let writes = ["flamegraph", "convert"].contains(&tool["name"].as_str().unwrap());
        assert_eq!(tool["annotations"]["readOnlyHint"], !writes, "{tool}");
        jsonschema::validator_for(&tool["inputSchema"]).unwrap();
        assert_eq!(tool["inputSchema"]["type"], "object");
    }
    client.hang_up();
}

#[test]
fn wrong_calls_are_answered_and_later_calls_work() {
    let folder = inputs("mcp");
    let mut client = Client::new(&folder, &[]);
    let unknown = client.request("tools/call", &json!({"name": "run", "arguments": {"command": "true"}}));
    assert_eq!(unknown["error"]["code"], -32602);
    assert!(
        unknown["error"]["message"].as_str().unwrap().contains("the tools are summary, top"),
        "{unknown}"
    );
    assert_eq!(client.request("no/such/method", &json!({}))["error"]["code"], -32601);
    let wrong = client.call("summary", &json!({"path": "hand.gfr"}));
    assert_eq!(wrong.refusal(), "`summary` has no parameter `path`; it has accept_cut, file");
    let none = client.request("tools/call", &json!({"name": "summary"}));
    assert_eq!(Answer::new(&none).refusal(), "`summary` needs the parameter `file`");
    assert!(!client.call("summary", &json!({"file": "hand.gfr"})).is_error);
    client.hang_up();
}

#[test]
fn garbage_between_messages_changes_nothing() {
    let folder = inputs("mcp");
    let garbage: [&[u8]; 7] = [
        b"",
        b"hello",
        b"{\"jsonrpc\":\"2.0\",\"id\":",
        b"\xff\xfe\x00\x80",
        b"[1, 2, {\"method\": \"tools/list\"}]",
        b"{\"jsonrpc\":\"2.0\",\"id\":77,\"method\":5}",
        &b"[".repeat(1_000_000),
    ];
    let mut client = Client::start(&folder, &[]);
    garbage.iter().for_each(|line| client.send_line(line));
    client.initialize();
    garbage.iter().for_each(|line| client.send_line(line));
    // The server must not store a line that never ends, because such a line could fill the memory.
    let long = vec![b'x'; 1 << 20];
    for _ in 0..40 {
        client.stdin.as_mut().unwrap().write_all(&long).unwrap();
    }
    client.send_line(b"");
    assert!(!client.call("summary", &json!({"file": "hand.gfr"})).is_error);
    let status = fs::read_to_string(format!("/proc/{}/status", client.server.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kb: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kb < 100_000, "{peak_kb} kB");
    client.hang_up();
}

#[test]
fn the_end_of_the_input_ends_the_server() {
    let folder = inputs("mcp");
    Client::start(&folder, &[]).hang_up();
    Client::new(&folder, &[]).hang_up();
    // After the client has closed the server's input, the server still answers the last request.
    let mut client = Client::new(&folder, &[]);
    let id = client.ask_tool("summary", &json!({"file": "hand.gfr"}));
    client.hang_up();
    assert!(!Answer::new(&client.reply(id)).is_error);
    let mut client = Client::start(&folder, &[]);
    client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let (status, said) = client.end();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.starts_with("gpuflame: standard input: the first message is not"), "{said}");
}

#[test]
fn a_client_that_reads_no_more_ends_the_server() {
    let folder = inputs("mcp");
    let mut client = Client::new(&folder, &[]);
    // `lines` is replaced, so the client's reading thread ends after the next line and closes the pipe.
    client.lines = channel().1;
    let deadline = Instant::now() + PATIENCE;
    while client.server.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the server still runs without a reader");
        client.last_id += 1;
        let ping = json!({"jsonrpc": "2.0", "id": client.last_id, "method": "ping"});
        // The server may already have ended, so the client ignores a write error.
        let _ = client.stdin.as_mut().unwrap().write_all(format!("{ping}\n").as_bytes());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, said) = client.end();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
}

#[test]
fn calls_run_at_once_and_a_cancelled_call_ends_its_child() {
    let folder = inputs("mcp");
    named_pipe(&folder);
    let mut client = Client::new(&folder, &[]);
    let waits = client.ask_tool("summary", &json!({"file": "waits"}));
    let children = client.wait_for_children(1);
    assert!(!client.call("info", &json!({"file": "hand.gfr"})).is_error);
    assert_eq!(client.children(), children);
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": waits}});
    client.send(&cancel);
    client.wait_for_children(0);
    assert!(!client.call("info", &json!({"file": "hand.gfr"})).is_error);
    client.hang_up();
    assert!(client.replies.iter().all(|reply| reply["id"] != waits), "{:?}", client.replies);
}

#[test]
fn a_child_that_the_system_kills_is_an_error_of_the_call() {
    let folder = inputs("mcp");
    named_pipe(&folder);
    let mut client = Client::new(&folder, &[]);
    let waits = client.ask_tool("summary", &json!({"file": "waits"}));
    let child = client.wait_for_children(1).first().unwrap().to_string();
    // Until the child process calls `exec`, it is still a copy of the server.
    wait_until("the child has started", || {
        let words = fs::read(format!("/proc/{child}/cmdline")).unwrap();
        words.starts_with(b"gpuflame\0summary\0").then_some(())
    });
    assert!(Command::new("kill").args(["-KILL", &child]).status().unwrap().success());
    let answer = Answer::new(&client.reply(waits));
    assert!(answer.refusal().starts_with("the verb was ended by signal 9"), "{answer:?}");
    assert!(!client.call("info", &json!({"file": "hand.gfr"})).is_error);
    client.hang_up();
}

#[test]
fn at_most_four_calls_run_at_once_and_further_ones_wait() {
    let folder = inputs("mcp");
    named_pipe(&folder);
    let mut client = Client::new(&folder, &["--time-limit", "4s"]);
    let ids: Vec<_> = (0..6).map(|_| client.ask_tool("summary", &json!({"file": "waits"}))).collect();
    client.wait_for_children(4);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(client.children().len(), 4);
    for id in ids {
        let reply = client.reply(id);
        assert!(
            Answer::new(&reply)
                .refusal()
                .starts_with("`gpuflame summary` did not finish within 4 s and was ended"),
            "{reply}"
        );
    }
    client.wait_for_children(0);
    client.hang_up();
    gpuflame(&folder, ["mcp", "--time-limit", "0"]).fails(2, &["--time-limit must be at least 1s"]);
}

#[test]
fn the_servers_end_ends_the_children() {
    let folder = inputs("mcp");
    named_pipe(&folder);
    let mut client = Client::new(&folder, &[]);
    client.ask_tool("summary", &json!({"file": "waits"}));
    let children = client.wait_for_children(1);
    client.hang_up();
    wait_until("the child has ended", || children.iter().all(|child| !is_alive(*child)).then_some(()));
    for (signal, name) in [(15, "TERM"), (2, "INT"), (1, "HUP")] {
        let mut client = Client::new(&folder, &[]);
        client.ask_tool("summary", &json!({"file": "waits"}));
        let children = client.wait_for_children(1);
        let server = client.server.id().to_string();
        assert!(Command::new("kill").args([format!("-{name}"), server]).status().unwrap().success());
        let (status, said) = client.end();
        assert_eq!((status.code(), status.signal(), said.as_str()), (Some(128 + signal), None, ""));
        wait_until("the child has ended", || children.iter().all(|child| !is_alive(*child)).then_some(()));
    }
}

#[test]
fn files_are_written_as_the_verb_does_and_never_replaced() {
    let folder = inputs("mcp");
    let mut client = Client::new(&folder, &[]);
    for (tool, arguments, words) in [
        ("flamegraph", json!({"file": "hand.gfr", "output": "a.folded"}), "flamegraph hand.gfr -o b.folded"),
        (
            "flamegraph",
            json!({"file": "rank-1.json", "before": "rank-0.json", "output": "a.svg"}),
            "flamegraph --diff rank-0.json rank-1.json -o b.svg",
        ),
        ("convert", json!({"file": "hand.gfr", "output": "a.csv"}), "convert hand.gfr -o b.csv"),
        (
            "flamegraph",
            json!({"file": "hand.gfr", "view": "idle", "output": "-a.svg"}),
            "flamegraph hand.gfr --idle -o ./-b.svg",
        ),
    ] {
        let output = arguments["output"].as_str().unwrap();
        let answer = client.call(tool, &arguments);
        assert!(
            !answer.is_error && answer.texts.last().unwrap().contains(&format!("{output}\n")),
            "{answer:?}"
        );
        gpuflame(&folder, words.split(' ')).ok();
        let [ours, verbs] =
            [output, words.rsplit(' ').next().unwrap()].map(|file| fs::read(folder.join(file)).unwrap());
        assert!(ours == verbs, "{words}");
        let again = client.call(tool, &arguments);
        assert!(again.refusal().contains("already exists, and no tool replaces a file"), "{again:?}");
        assert!(fs::read(folder.join(output)).unwrap() == verbs, "{words}");
    }
    for output in ["hand.gfr", "/dev/null", "/dev/stdout", "."] {
        let refused = client.call("convert", &json!({"file": "hand.gfr", "output": output}));
        assert!(refused.refusal().contains("already exists"), "{refused:?}");
    }
    fs::write(folder.join("c.stacks.csv"), "mine").unwrap();
    let refused = client.call("convert", &json!({"file": "hand.gfr", "output": "c.csv"}));
    assert!(refused.refusal().starts_with("c.stacks.csv: already exists"), "{refused:?}");
    assert!(!folder.join("c.csv").exists());
    for (tool, output) in [("flamegraph", "a.sh"), ("convert", "profile")] {
        let refused = client.call(tool, &json!({"file": "hand.gfr", "output": output}));
        assert!(refused.is_error && !folder.join(output).exists(), "{refused:?}");
    }
    client.hang_up();
}

#[test]
fn a_file_may_have_the_name_of_an_option() {
    let folder = inputs("mcp");
    fs::rename(folder.join("hand.gfr"), folder.join("--help")).unwrap();
    let mut client = Client::new(&folder, &[]);
    let verb = gpuflame(&folder, ["info", "--format", "json", "--", "./--help"]).ok();
    assert_eq!(client.call("info", &json!({"file": "--help"})).texts[0], verb.stdout);
    client.hang_up();
}

#[test]
fn long_answers_are_cut_between_rows_and_the_rest_is_counted() {
    let folder = scratch("mcp");
    let mut trace = Trace::default();
    for id in 0..200_u32 {
        let name = format!("{}_{id}", "long_name".repeat(100));
        let at = 10 * u64::from(id);
        trace.launch(id, &name, 1, at, at + 5, at + 8);
    }
    trace.write(&folder.join("long.json"));
    let mut client = Client::new(&folder, &[]);
    let answer = client.call("top", &json!({"file": "long.json", "by": "kernels", "number": 0}));
    let verb = gpuflame(&folder, ["top", "long.json", "--by", "kernels", "-n", "0", "--format", "json"]).ok();
    let (cut, whole): (Value, Value) =
        (serde_json::from_str(&answer.texts[0]).unwrap(), serde_json::from_str(&verb.stdout).unwrap());
    let (cut, whole) = (cut["kernels"].as_array().unwrap(), whole["kernels"].as_array().unwrap());
    assert!(answer.texts[0].len() <= 60_000 && whole.len() == 200);
    assert!(cut.len() > 20 && cut[..] == whole[..cut.len()], "{}", cut.len());
    let expected = format!("gpuflame: left out {} of 200 rows of `kernels`, because", 200 - cut.len());
    assert!(answer.texts[1].starts_with(&expected), "{}", answer.texts[1]);
    client.hang_up();
}
