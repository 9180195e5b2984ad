// Measures 200 moves in the timeline of a page and in speedscope: node compare_timeline.mjs COMMAND FOLDER SLICES...
// Each viewer has its own browser. A move is a step to the left or right, or a zoom by the wheel at some place. A move
// lasts until the browser has presented the animation frame after it. The time to the first picture starts when the
// browser navigates to the page.
import { execFileSync } from 'node:child_process';
import { closeSync, mkdirSync, openSync, statSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { launchUnlimited, rendererMemory, serve } from './measuring.mjs';

const MOVES = 200;
const MAX_LOAD_MS = 180_000;
/** Number of different kernel names. */
const NAMES = 60;
const [command, folder, ...words] = process.argv.slice(2);
const counts = words.flatMap((word) => word.split(' ')).map(Number);
const release = join(folder, 'node_modules/speedscope/dist/release');

/** Returns slices in which calls of 2 us and kernels of 1 to 40 us alternate. So half of the slices are calls. Times
 * are in us. */
function* slices(count) {
  let [seed, time] = [1, 0];
  const random = (below) => {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    return (seed >>> 8) % below;
  };
  for (let id = 1; id <= count / 2; id++) {
    const start = time + 3 + (random(50) === 0 ? random(400) : random(6));
    const end = start + 1 + random(40);
    yield { id, call: time, start, end, name: `kernel_${random(NAMES)}<float, ${id % 7}>` };
    time = end + 1;
  }
}

/** Writes a file in pieces, because its text may exceed the maximum length of a string. */
function writeFile(path, pieces) {
  const file = openSync(path, 'w');
  let text = '';
  for (const piece of pieces) {
    text += piece;
    if (text.length > 1e6) {
      writeSync(file, text);
      text = '';
    }
  }
  writeSync(file, text);
  closeSync(file);
  return statSync(path).size;
}

function ownPage(count) {
  writeFile(join(folder, 'timeline.json'), (function* () {
    yield '{"traceEvents":[';
    let comma = '';
    for (const { id, call, start, end, name } of slices(count)) {
      yield `${comma}{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":9,"ts":${call},"dur":2,"args":{"correlation":${id}}},`;
      yield `{"ph":"X","cat":"kernel","name":"${name}","pid":0,"tid":7,"ts":${start},"dur":${end - start},"args":{"correlation":${id},"device":0,"stream":7}}`;
      comma = ',';
    }
    yield ']}';
  })());
  execFileSync(command, ['report', '-q', 'timeline.json', '-o', 'timeline.html'], { cwd: folder });
  return { url: 'timeline.html', bytes: statSync(join(folder, 'timeline.html')).size };
}

function speedscopePage(count) {
  const frames = new Map([['cudaLaunchKernel', 0]]);
  for (const { name } of slices(count)) if (!frames.has(name)) frames.set(name, frames.size);
  const bytes = writeFile(join(folder, 'timeline.speedscope.json'), (function* () {
    const list = JSON.stringify([...frames.keys()].map((name) => ({ name })));
    yield `{"$schema":"https://www.speedscope.app/file-format-schema.json","shared":{"frames":${list}},"profiles":[{"type":"evented","name":"timeline","unit":"microseconds","startValue":0,"events":[`;
    let [comma, last] = ['', 0];
    for (const { call, start, end, name } of slices(count)) {
      const frame = frames.get(name);
      yield `${comma}{"type":"O","frame":0,"at":${call}},{"type":"C","frame":0,"at":${call + 2}},{"type":"O","frame":${frame},"at":${start}},{"type":"C","frame":${frame},"at":${end}}`;
      [comma, last] = [',', end];
    }
    yield `],"endValue":${last}}]}`;
  })());
  return { url: 'index.html#profileURL=/timeline.speedscope.json&title=timeline', bytes };
}

/** Notes when the timeline is drawn, and measures moves. This function runs in the page, before the page's scripts. */
function installTimer() {
  const isDrawn = () => (location.hash ? document.title.includes('timeline') : document.documentElement?.dataset.ready === 'true');
  const presented = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const look = () => (isDrawn() ? presented().then(() => { window.readyAt = performance.now(); }) : setTimeout(look, 1));
  look();
  /** Zooms in and out and moves, so that the view varies between the whole run and a thousandth of it. */
  window.move = async (step) => {
    const all = [...document.querySelectorAll(location.hash ? 'canvas' : 'canvas.timeline')];
    const canvas = all.reduce((one, other) => (other.clientHeight > one.clientHeight ? other : one));
    const box = canvas.getBoundingClientRect();
    const place = { clientX: box.left + box.width * (0.2 + 0.006 * (step % 100)), clientY: Math.min(box.top + box.height / 2, innerHeight - 5) };
    const isZoom = step % 4 !== 3;
    const deltaY = step % 50 < 25 ? -120 : 120;
    const wheel = isZoom ? { deltaY, ctrlKey: true } : { deltaX: step % 8 === 3 ? 150 : -150 };
    const start = performance.now();
    if (isZoom || location.hash) {
      const target = document.elementFromPoint(place.clientX, place.clientY) ?? canvas;
      target.dispatchEvent(new WheelEvent('wheel', { ...place, ...wheel, bubbles: true, cancelable: true }));
    } else canvas.dispatchEvent(new KeyboardEvent('keydown', { key: step % 8 === 3 ? 'ArrowRight' : 'ArrowLeft', bubbles: true }));
    await presented();
    return performance.now() - start;
  };
}

async function measure(base, url) {
  const browser = await launchUnlimited();
  try {
    const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    page.setDefaultTimeout(MAX_LOAD_MS);
    await page.addInitScript(installTimer);
    await page.goto(`${base}/${url}`, { timeout: MAX_LOAD_MS });
    const first = await (await page.waitForFunction(() => window.readyAt, null, { timeout: MAX_LOAD_MS })).jsonValue();
    await page.evaluate(() => document.querySelector('#timeline')?.scrollIntoView());
    const moves = [];
    for (let step = 0; step < MOVES; step++) moves.push(await page.evaluate((step) => window.move(step), step));
    moves.sort((a, b) => a - b);
    return { first, median: moves[MOVES / 2], p95: moves[Math.ceil(MOVES * 0.95) - 1], worst: moves.at(-1), memory: await rendererMemory(browser) };
  } finally {
    await browser.close();
  }
}

mkdirSync(folder, { recursive: true });
const { base, close } = await serve([folder, release]);
console.log('| slices | viewer | file, MB | first picture, s | median move, ms | p95, ms | slowest, ms | memory, MB |');
console.log('|---:|---|---:|---:|---:|---:|---:|---:|');
for (const count of counts) {
  for (const [name, make] of Object.entries({ own: ownPage, speedscope: speedscopePage })) {
    const { url, bytes } = make(count);
    const start = `| ${count} | ${name} | ${(bytes / 1e6).toFixed(1)} |`;
    try {
      const { first, median, p95, worst, memory } = await measure(base, url);
      console.log(`${start} ${(first / 1000).toFixed(2)} | ${[median, p95, worst].map((ms) => ms.toFixed(1)).join(' | ')} | ${Math.round(memory)} |`);
    } catch (error) {
      console.log(`${start} ${String(error).split('\n')[0]} | | | | |`);
    }
  }
}
close();
