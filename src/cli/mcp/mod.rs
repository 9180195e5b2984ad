//! `gpuflame mcp`: a server for the Model Context Protocol. Through this server, an AI agent uses the other verbs.
//!
//! Each tool of the server is a verb of `gpuflame`. A tool call runs this program again with the tool's verb, and
//! returns the verb's output. Therefore an agent gets the same answers and the same error messages as a person. No tool
//! runs a program other than `gpuflame`.

mod child;
mod requests;
mod shortened;
mod tools;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use clap::Args;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use tokio::io::AsyncWrite;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore};

use super::console::{Console, Outcome, usage_error};
use super::times::{SECOND, parse_seconds};
use gpuflame_model::error::{Error, ErrorKind, Result};
use requests::Request;
use tools::{TOOLS, ToolSpec};

/// Maximum number of tool calls that run at the same time. The number is limited because each call may read a large
/// file into memory. Tool calls beyond this number wait until another call ends.
const MAX_CALLS: usize = 4;

/// Answer to a cancelled call. The answer to a cancelled call is not sent to the client.
const CANCELLED: &str = "the call was cancelled";

/// Answer an agent's questions about recordings and traces, through the Model Context Protocol.
///
/// A client starts this command and talks to it through standard input and output: one JSON message per line. Each tool
/// is a verb: summary, top, info, check, view, diff, merge_ranks, stats, settings, flamegraph and convert. A tool
/// returns the verb's output as JSON. If the verb refuses its input, the tool returns an error with the reason. The
/// tools flamegraph and convert write a new file. All other tools write nothing. No tool runs a program. The server
/// ends when its input ends.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame mcp --time-limit 30min\n\n\
    In the configuration of a client:\n  \
    {\"mcpServers\": {\"gpuflame\": {\"command\": \"gpuflame\", \"args\": [\"mcp\"]}}}")]
pub(super) struct Mcp {
    /// Maximum time for one answer, such as `90s` or `30min`. The answer for a large trace takes minutes. A time
    /// without a unit is in seconds.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = parse_seconds)]
    time_limit: i64,
}

impl Mcp {
    /// Runs the server until its input ends. `command` describes the arguments of all verbs.
    pub(super) fn run(&self, command: &clap::Command, console: Console) -> Result<Outcome> {
        if self.time_limit < SECOND {
            return Err(usage_error("--time-limit must be at least 1s"));
        }
        if io::stdin().is_terminal() {
            console.remark("waiting for the messages of an MCP client on standard input; Ctrl+C ends this");
        }
        let server = Server::new(command, Duration::from_nanos(self.time_limit.unsigned_abs()));
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let outcome = runtime.block_on(serve(server));
        // Kills the child processes that are still running. The thread that reads standard input may be blocked
        // forever, so the shutdown does not wait for this thread.
        runtime.shutdown_background();
        outcome
    }
}

/// Serves requests until one of three events: the input ends, the client closes its end of the output, or SIGTERM,
/// SIGINT or SIGHUP arrives.
async fn serve(server: Server) -> Result<Outcome> {
    let closed = Arc::new(Notify::new());
    let out = Replies { out: tokio::io::stdout(), closed: Arc::clone(&closed) };
    let mut signals =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
    let [terminate, interrupt, hangup] = &mut signals;
    let conversation = async {
        match server.serve((tokio::io::stdin(), out)).await {
            Ok(running) => running.waiting().await.map(|_| Outcome::Clean).map_err(|error| {
                Error::new(ErrorKind::State, format!("a call ended the server: {error}; report this"))
            }),
            // `ConnectionClosed` and `TransportError` mean that the client disconnected before it sent its first
            // request.
            Err(
                ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::TransportError { .. },
            ) => Ok(Outcome::Clean),
            Err(_) => Err(Error::new(
                ErrorKind::Format,
                "standard input: the first message is not the request `initialize` of a supported version; start \
                 `gpuflame mcp` from an MCP client",
            )),
        }
    };
    tokio::select! {
        outcome = conversation => outcome,
        () = closed.notified() => Ok(Outcome::Clean),
        _ = terminate.recv() => Ok(Outcome::Status(128 + 15)),
        _ = interrupt.recv() => Ok(Outcome::Status(128 + 2)),
        _ = hangup.recv() => Ok(Outcome::Status(128 + 1)),
    }
}

/// Standard output of the server. `Replies` notifies the server when the client has closed its end of the pipe.
struct Replies {
    out: tokio::io::Stdout,
    closed: Arc<Notify>,
}

impl Replies {
    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(result, Poll::Ready(Err(_))) {
            self.closed.notify_one();
        }
        result
    }
}

impl AsyncWrite for Replies {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.out).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.out).poll_flush(context);
        self.note(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.out).poll_shutdown(context);
        self.note(closed)
    }
}

/// The tools of the server, and the limits on tool calls.
struct Server {
    tools: Vec<(&'static ToolSpec, Tool)>,
    instructions: String,
    time_limit: Duration,
    calls: Semaphore,
}

impl Server {
    fn new(command: &clap::Command, time_limit: Duration) -> Self {
        let tools = TOOLS.iter().map(|spec| (spec, spec.describe(command))).collect();
        let folder = std::env::current_dir();
        let folder = folder.as_deref().unwrap_or(Path::new("an unknown folder")).display();
        let instructions = format!("{}\n\nRelative paths begin in {folder}.", tools::INSTRUCTIONS);
        Self { tools, instructions, time_limit, calls: Semaphore::new(MAX_CALLS) }
    }

    /// Runs the verb of a tool and returns the answer.
    ///
    /// # Errors
    /// Returns a text for the agent. This text states why the verb failed, or which limit the verb exceeded.
    async fn answer(
        &self,
        request: &Request,
        cancelled: impl Future<Output = ()>,
    ) -> std::result::Result<Vec<String>, String> {
        if let Some(path) = request.new_files.iter().find(|path| path.symlink_metadata().is_ok()) {
            return Err(format!(
                "{}: already exists, and no tool replaces a file; name a new file",
                path.display()
            ));
        }
        let mut cancelled = std::pin::pin!(cancelled);
        let _permit = tokio::select! {
            permit = self.calls.acquire() => permit.map_err(|error| error.to_string())?,
            () = &mut cancelled => return Err(CANCELLED.to_owned()),
        };
        let stop = async {
            tokio::select! {
                () = tokio::time::sleep(self.time_limit) => format!(
                    "`gpuflame {}` did not finish within {} s and was ended; start `gpuflame mcp` with a larger \
                     --time-limit, or give a smaller file",
                    request.verb,
                    self.time_limit.as_secs()
                ),
                () = cancelled => CANCELLED.to_owned(),
            }
        };
        let finished = child::run(&request.words, stop).await?;
        let (text, left_out) = shortened::shorten(finished.stdout, request.is_json);
        let remarks = [left_out.unwrap_or_default(), finished.remarks].concat();
        Ok([text, remarks].into_iter().filter(|part| !part.is_empty()).collect())
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("gpuflame", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions.as_str())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.iter().map(|(_, tool)| tool.clone()).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let Some((spec, tool)) = self.tools.iter().find(|(spec, _)| spec.name == request.name) else {
            let known: Vec<_> = TOOLS.iter().map(|spec| spec.name).collect();
            let message = format!("no tool has this name; the tools are {}", known.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let answer = match Request::new(spec, tool, &request.arguments.unwrap_or_default()) {
            Ok(request) => self.answer(&request, context.ct.cancelled()).await,
            Err(reason) => Err(reason),
        };
        Ok(match answer {
            Ok(parts) => CallToolResult::success(parts.into_iter().map(ContentBlock::text).collect()),
            Err(reason) => CallToolResult::error(vec![ContentBlock::text(reason)]),
        }
        .into())
    }
}
