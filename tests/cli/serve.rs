//! Tests `gpuflame serve`. Tests that only clients that know the secret URL can read the list of files and the pages.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::command::gpuflame;
use crate::support::scratch;
use crate::support::traces::Trace;

/// A running server, which is stopped on drop.
struct Server {
    child: Child,
    port: u16,
    token: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuflame"));
        let command = command.arg("serve").arg(folder).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split("http://127.0.0.1:").nth(1).unwrap_or_else(|| panic!("{line}"));
        let mut parts = url.split('/');
        let (port, token) = (parts.next().unwrap().parse().unwrap(), parts.next().unwrap().to_owned());
        assert_eq!(token.len(), 32, "{line}");
        Self { child, port, token }
    }

    /// Returns the server's answer to a request for `path`.
    fn request(&self, method: &str, path: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, inside: &str) -> String {
        self.request("GET", &format!("/{}/{inside}", self.token), &format!("127.0.0.1:{}", self.port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn runs(folder: &Path) {
    for rank in 0..2 {
        let mut trace = Trace::default();
        trace.launch(1, "gemm", 9, 0, 10, 110).launch(2, "softmax", 9, 200, 210, 230);
        trace.write(&folder.join(format!("rank{rank}.json")));
    }
    fs::write(folder.join("notes.txt"), "secret").unwrap();
}

#[test]
fn runs_are_listed_and_their_pages_are_those_of_report() {
    let folder = scratch("serve");
    runs(&folder);
    let server = Server::start(&folder);
    let list = server.get("");
    assert!(list.starts_with("HTTP/1.1 200 OK\r\n"), "{list}");
    assert!(
        list.contains("rank0.json</a>") && list.contains("rank1.json</a>") && !list.contains("notes"),
        "{list}"
    );
    gpuflame(&folder, ["report", folder.join("rank1.json").to_str().unwrap(), "-o", "page.html"]).ok();
    let (_, page) =
        server.get("1").split_once("\r\n\r\n").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(page, fs::read_to_string(folder.join("page.html")).unwrap());
    assert!(server.get("all").contains("2 ranks: GPUs busy "));
    assert!(server.get("7").starts_with("HTTP/1.1 404 "));
    // If a file appears in the folder after the server has started, the file is in the list.
    fs::copy(folder.join("rank0.json"), folder.join("rank2.json")).unwrap();
    assert!(server.get("").contains("rank2.json</a>"));
}

#[test]
fn only_readers_that_know_the_url_get_anything() {
    let folder = scratch("serve-token");
    runs(&folder);
    let server = Server::start(&folder);
    let here = format!("127.0.0.1:{}", server.port);
    let own = format!("/{}/", server.token);
    let wrong = format!("/{}/", "0".repeat(32));
    for (path, host) in [
        ("/", &*here),
        (&wrong, &here),
        (&own[..own.len() - 1], &here),
        (&own, "evil.example"),
        (&own, &format!("evil.example:{}", server.port)),
        (&format!("{own}../{}/", server.token), &here),
        (&format!("{own}notes.txt"), &here),
        (&format!("{own}..%2fnotes.txt"), &here),
    ] {
        let answer = server.request("GET", path, host);
        assert!(
            answer.starts_with("HTTP/1.1 404 Not Found\r\n") && !answer.contains("secret"),
            "{path}: {answer}"
        );
        assert!(!answer.contains("rank0"), "{path} of {host}: {answer}");
    }
    assert!(server.request("POST", &own, &here).starts_with("HTTP/1.1 405 "));
    assert!(server.request("GET", &own, &format!("localhost:{}", server.port)).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_folder_without_runs_is_refused() {
    let folder = scratch("serve-empty");
    gpuflame(&folder, ["serve", "."]).fails(1, &["contains no recording or trace"]);
    gpuflame(&folder, ["serve", "none"]).fails(1, &["none"]);
}
