//! The program that the demo profiles: a decode loop, whose functions the flame graph should show. On a real GPU the
//! kernels compute, but their results are meaningless.
//!
//! The program uses two streams: one computes, and the other copies embeddings in and results out.

use crate::Result;
use crate::call_site::frame;
use crate::driver::Argument::{Buffer as Address, Count};
use crate::driver::{Buffer, Event, Gpu, Kernel, Stream};
use std::ffi::CStr;

const WIDTH: usize = 1024;
const LAYERS: usize = 4;
const VOCABULARY: usize = 256;
const PROMPT: [usize; 4] = [11, 42, 7, 201];
const TOKENS: usize = 48;
const CONTEXT: usize = PROMPT.len() + TOKENS;

const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Runs the workload, for the command-line argument `workload`.
#[inline(never)]
pub(crate) fn run() -> Result<()> {
    frame!(run);
    let ptx = CStr::from_bytes_with_nul(KERNELS.as_bytes()).map_err(|e| format!("kernels.ptx: {e}"))?;
    let mut session = load(Gpu::open(ptx)?)?;
    generate(&mut session)?;
    session.gpu.finish()
}

/// A layer of the model, consisting of matrices of WIDTH by WIDTH.
struct Layer {
    query: Buffer,
    attention_out: Buffer,
    up: Buffer,
    down: Buffer,
    /// CONTEXT rows of WIDTH numbers, one row for each position so far.
    cache: Buffer,
}

/// The model, and one sequence that is being decoded.
struct Session {
    gpu: Gpu,
    matmul: Kernel,
    attention: Kernel,
    silu: Kernel,
    accumulate: Kernel,
    compute: Stream,
    copy: Stream,
    event: Event,
    layers: Vec<Layer>,
    /// VOCABULARY rows of WIDTH numbers.
    embeddings: Buffer,
    /// The residual stream, and the temporary vectors of the blocks, each of WIDTH numbers.
    x: Buffer,
    query: Buffer,
    mixed: Buffer,
    out: Buffer,
    position: usize,
}

#[inline(never)]
fn load(gpu: Gpu) -> Result<Session> {
    frame!(load);
    let mut random = Random(1);
    let mut layers = Vec::new();
    for _ in 0..LAYERS {
        layers.push(load_layer(&gpu, &mut random)?);
    }
    Ok(Session {
        matmul: gpu.kernel(c"matmul_kernel")?,
        attention: gpu.kernel(c"attention_kernel")?,
        silu: gpu.kernel(c"silu_kernel")?,
        accumulate: gpu.kernel(c"accumulate_kernel")?,
        compute: gpu.stream()?,
        copy: gpu.stream()?,
        event: gpu.event()?,
        layers,
        embeddings: upload(&gpu, VOCABULARY, &mut random)?,
        x: gpu.buffer(WIDTH)?,
        query: gpu.buffer(WIDTH)?,
        mixed: gpu.buffer(WIDTH)?,
        out: gpu.buffer(WIDTH)?,
        position: 0,
        gpu,
    })
}

#[inline(never)]
fn load_layer(gpu: &Gpu, random: &mut Random) -> Result<Layer> {
    frame!(load_layer);
    Ok(Layer {
        query: upload(gpu, WIDTH, random)?,
        attention_out: upload(gpu, WIDTH, random)?,
        up: upload(gpu, WIDTH, random)?,
        down: upload(gpu, WIDTH, random)?,
        cache: gpu.buffer(CONTEXT * WIDTH)?,
    })
}

/// Uploads a matrix of random numbers. The matrix's numbers are so small that numbers do not grow in products with the
/// matrix.
#[inline(never)]
fn upload(gpu: &Gpu, rows: usize, random: &mut Random) -> Result<Buffer> {
    frame!(upload);
    let numbers: Vec<f32> = (0..rows * WIDTH).map(|_| random.next() / (WIDTH as f32).sqrt()).collect();
    let buffer = gpu.buffer(numbers.len())?;
    gpu.write(&buffer, &numbers)?;
    Ok(buffer)
}

#[inline(never)]
fn generate(session: &mut Session) -> Result<()> {
    frame!(generate);
    reset(session)?;
    prefill(session)?;
    for _ in 0..TOKENS {
        let token = sample(session)?;
        decode(session, token)?;
    }
    Ok(())
}

/// Starts a new sequence with an empty cache.
#[inline(never)]
fn reset(session: &mut Session) -> Result<()> {
    frame!(reset);
    session.position = 0;
    for layer in &session.layers {
        session.gpu.clear(&layer.cache, session.compute)?;
    }
    Ok(())
}

#[inline(never)]
fn prefill(session: &mut Session) -> Result<()> {
    frame!(prefill);
    for token in PROMPT {
        forward(session, token)?;
    }
    Ok(())
}

#[inline(never)]
fn decode(session: &mut Session, token: usize) -> Result<()> {
    frame!(decode);
    forward(session, token)
}

#[inline(never)]
fn forward(session: &mut Session, token: usize) -> Result<()> {
    frame!(forward);
    embed(session, token)?;
    for layer in &session.layers {
        attention(session, layer)?;
        mlp(session, layer)?;
    }
    session.position += 1;
    Ok(())
}

/// Embeds a token on the copy stream, after `x` is free and before any kernel computes with `x`.
#[inline(never)]
fn embed(session: &Session, token: usize) -> Result<()> {
    frame!(embed);
    let row = session.embeddings.part(token * WIDTH, WIDTH);
    session.gpu.order(session.compute, session.event, session.copy)?;
    session.gpu.copy(&session.x, &row, session.copy)?;
    session.gpu.order(session.copy, session.event, session.compute)
}

#[inline(never)]
fn attention(session: &Session, layer: &Layer) -> Result<()> {
    frame!(attention);
    matmul(session, &session.query, &session.x, &layer.query)?;
    append_to_cache(session, layer)?;
    attend(session, layer)?;
    matmul(session, &session.out, &session.mixed, &layer.attention_out)?;
    accumulate(session)
}

#[inline(never)]
fn mlp(session: &Session, layer: &Layer) -> Result<()> {
    frame!(mlp);
    matmul(session, &session.mixed, &session.x, &layer.up)?;
    silu(session)?;
    matmul(session, &session.out, &session.mixed, &layer.down)?;
    accumulate(session)
}

#[inline(never)]
fn append_to_cache(session: &Session, layer: &Layer) -> Result<()> {
    frame!(append_to_cache);
    let row = layer.cache.part(session.position * WIDTH, WIDTH);
    session.gpu.copy(&row, &session.x, session.compute)
}

#[inline(never)]
fn matmul(session: &Session, out: &Buffer, x: &Buffer, matrix: &Buffer) -> Result<()> {
    frame!(matmul);
    let arguments = [Address(out), Address(x), Address(matrix), Count(WIDTH as u32)];
    // SAFETY: the arguments are as kernels.ptx declares them: two vectors and a square matrix.
    unsafe { session.gpu.launch(session.matmul, WIDTH as u32, session.compute, &arguments) }
}

/// Runs the attention kernel. On a real GPU it takes longer with every token, because the cache grows. On the simulated
/// stack it always takes the same time.
#[inline(never)]
fn attend(session: &Session, layer: &Layer) -> Result<()> {
    frame!(attend);
    let length = session.position as u32 + 1;
    let arguments = [
        Address(&session.mixed),
        Address(&session.query),
        Address(&layer.cache),
        Count(length),
        Count(WIDTH as u32),
    ];
    // SAFETY: the arguments are as kernels.ptx declares them: two vectors and `length` rows. The cache has CONTEXT
    // rows.
    unsafe { session.gpu.launch(session.attention, WIDTH as u32, session.compute, &arguments) }
}

#[inline(never)]
fn silu(session: &Session) -> Result<()> {
    frame!(silu);
    let arguments = [Address(&session.mixed), Count(WIDTH as u32)];
    // SAFETY: the argument is as kernels.ptx declares it: a vector.
    unsafe { session.gpu.launch(session.silu, WIDTH as u32, session.compute, &arguments) }
}

#[inline(never)]
fn accumulate(session: &Session) -> Result<()> {
    frame!(accumulate);
    let arguments = [Address(&session.x), Address(&session.out), Count(WIDTH as u32)];
    // SAFETY: the arguments are as kernels.ptx declares them: two vectors.
    unsafe { session.gpu.launch(session.accumulate, WIDTH as u32, session.compute, &arguments) }
}

/// Returns the next token, which is the position of the largest result.
#[inline(never)]
fn sample(session: &Session) -> Result<usize> {
    frame!(sample);
    let mut logits = [0.0; VOCABULARY];
    session.gpu.order(session.compute, session.event, session.copy)?;
    session.gpu.read(&mut logits, &session.x, session.copy)?;
    let largest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    Ok(largest.map_or(0, |(token, _)| token))
}

/// A generator of random numbers by xorshift64* (Vigna 2016). The numbers are the same in every run.
struct Random(u64);

impl Random {
    /// Returns a number between -1 and 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(2_685_821_657_736_338_717) >> 40;
        bits as f32 / (1 << 23) as f32 - 1.0
    }
}
