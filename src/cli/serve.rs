//! `gpuflame serve`: lists the runs in a folder in a browser, and opens the page of each run. Only programs on this
//! machine that know the printed URL can read the list and the pages.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::console::{Console, Outcome};
use super::input::Source;
use super::open_file::open_in_browser;
use super::ranks;
use super::report::{escaped, job_page};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Maximum size of a request in bytes. A browser's request has about 1,000 bytes.
const MAX_REQUEST_BYTES: u64 = 16_384;
/// Maximum time to wait for a client: for the client's request, and until the client accepts more bytes of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Content security policy of the list page. This policy forbids scripts and connections.
const LIST_POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'";

/// Show the runs of a folder in a browser: a list, and the page of each run.
///
/// The server listens at 127.0.0.1 only, at a port that the system chooses, and answers only requests with the token in
/// the printed URL. The server reads recordings and traces in the folder and writes nothing. Ctrl+C ends the server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gpuflame serve out\n  gpuflame serve out --open")]
pub(super) struct Serve {
    /// Folder with recordings and traces.
    folder: PathBuf,
    /// Open the list in a browser.
    #[arg(long)]
    open: bool,
}

impl Serve {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        // The folder is listed once before the server starts, so that a wrong folder name is reported as an error
        // immediately.
        self.files()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let server =
            Server { port: listener.local_addr()?.port(), token: random_token()?, serve: self, console };
        let url = format!("http://127.0.0.1:{}/{}/", server.port, server.token);
        console.remark(format_args!("{} is at {url} until Ctrl+C", self.folder.display()));
        if self.open {
            open_in_browser(url.as_ref(), console);
        }
        std::thread::scope(|scope| {
            for client in listener.incoming().filter_map(io::Result::ok) {
                let server = &server;
                // Failures to send the answer are ignored, because it is not an error if a client disconnects early.
                scope.spawn(move || drop(server.answer(&client)));
            }
        });
        Ok(Outcome::Clean)
    }

    /// Returns the recordings and traces in the folder.
    fn files(&self) -> Result<Vec<Source>> {
        if !self.folder.is_dir() {
            let what = format!(
                "{}: is not a folder; name a folder with recordings or traces",
                self.folder.display()
            );
            return Err(Error::new(ErrorKind::Io, what));
        }
        ranks::expand_folders(&[Source::File(self.folder.clone())])
    }
}

/// Returns 128 random bits as 32 hexadecimal digits.
fn random_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

struct Server<'a> {
    port: u16,
    token: String,
    serve: &'a Serve,
    console: Console,
}

/// HTTP status and body of an answer.
type Answer = (&'static str, Vec<u8>);

impl Server<'_> {
    fn answer(&self, client: &TcpStream) -> io::Result<()> {
        client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut lines = BufReader::new(client.take(MAX_REQUEST_BYTES)).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let mut host = String::new();
        for line in lines {
            let line = line?;
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("host") => {
                    value.trim().clone_into(&mut host)
                }
                _ if line.is_empty() => break,
                _ => {}
            }
        }
        let (status, body) = self.respond(&request, &host);
        let mut client = client;
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\r\n",
            body.len()
        )?;
        client.write_all(&body)
    }

    /// Returns the answer to a request. Requests with a different host name are refused, because such requests may come
    /// from a page of another site whose host name resolves to this machine.
    fn respond(&self, request: &str, host: &str) -> Answer {
        let is_here = ["127.0.0.1", "localhost"].iter().any(|name| host == format!("{name}:{}", self.port));
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let inside = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        match inside.filter(|(token, _)| is_here && same(token, &self.token)) {
            None => ("404 Not Found", page("Not found", "<p>Open the URL that gpuflame has printed.</p>")),
            Some(_) if method != "GET" => ("405 Method Not Allowed", page("Not allowed", "<p>GET only.</p>")),
            Some((_, "")) => self.list(),
            Some((_, what)) => self.report(what),
        }
    }

    /// Returns the page that lists the files which are currently in the folder.
    fn list(&self) -> Answer {
        let files = match self.serve.files() {
            Ok(files) => files,
            Err(error) => return ("500 Internal Server Error", failure(&error.to_string())),
        };
        let mut body = String::new();
        if files.len() > 1 {
            let _ =
                write!(body, "<p><a href=\"all\">all {} files as the ranks of one job</a></p>", files.len());
        }
        body += "<ul>";
        for (number, file) in files.iter().enumerate() {
            let _ = write!(body, "<li><a href=\"{number}\">{}</a></li>", escaped(&file.to_string()));
        }
        body += "</ul>";
        ("200 OK", page(&format!("Runs in {}", self.serve.folder.display()), &body))
    }

    /// Returns the page of one file, given by its index in the list, or the page of all files together.
    fn report(&self, what: &str) -> Answer {
        let files = match self.serve.files() {
            Ok(files) => files,
            Err(error) => return ("500 Internal Server Error", failure(&error.to_string())),
        };
        let chosen = match what.parse::<usize>() {
            Ok(number) => files.get(number).map(std::slice::from_ref),
            Err(_) => (what == "all").then_some(&files[..]),
        };
        match chosen.map(|files| job_page(files, self.console)) {
            None => (
                "404 Not Found",
                page("Not found", "<p>There is no such run; the list may have changed.</p>"),
            ),
            Some(Ok(bytes)) => ("200 OK", bytes),
            Some(Err(error)) => ("500 Internal Server Error", failure(&error.to_string())),
        }
    }
}

/// Compares two texts in constant time. All characters are compared, so that the duration does not reveal how many
/// characters are right.
fn same(one: &str, other: &str) -> bool {
    let differs = |differs: u8, (a, b): (u8, u8)| differs | (a ^ b);
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, differs) == 0
}

fn failure(why: &str) -> Vec<u8> {
    page("No page", &format!("<p>{}</p>", escaped(why)))
}

fn page(title: &str, body: &str) -> Vec<u8> {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{LIST_POLICY}\"><title>{title}</title></head>\
         <body><h1>{title}</h1>{body}</body></html>\n"
    )
    .into_bytes()
}
