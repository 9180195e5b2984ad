// Measures three viewers in Chromium, without a GPU and without a limit of frames per second: node compare.mjs FOLDER
// STACKS... Each viewer has its own browser. Times are medians. A picture counts as shown when the browser has
// presented the animation frame after it. "Any change" is the time that the browser needs to show another background
// colour on the same page. On average, no viewer can be faster than that.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { launchUnlimited, rendererMemory, serve } from './measuring.mjs';
import { modelOf, writePage } from './model.mjs';

const LOADS = 3;
const ZOOMS = 24;
/** Maximum time for the first picture, in ms. A viewer that takes longer is not measured further. */
const MAX_LOAD_MS = 60_000;
const here = dirname(fileURLToPath(import.meta.url));
const [folder, ...words] = process.argv.slice(2);
const counts = words.flatMap((word) => word.split(' ')).map(Number);
const release = join(folder, 'node_modules/speedscope/dist/release');

/** Returns distinct stacks of up to 40 frames, each with about 3 new frames. Neighbours share most callers, as in real
 * programs. */
function stacks(count) {
  let seed = 1;
  const random = (below) => {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    return (seed >>> 8) % below;
  };
  const rows = new Map();
  let stack = [];
  while (rows.size < count) {
    const returns = random(8) === 0 ? random(20) : random(4);
    stack = stack.slice(0, Math.max(0, stack.length - returns));
    for (let calls = 1 + random(5); calls > 0 && stack.length < 40; calls--) {
      stack.push(`module_${stack.length}::function_${random(300)}<float, ${random(8)}>`);
    }
    rows.set(stack.join(';'), 1 + random(100000));
  }
  return [...rows];
}

function nested(rows) {
  const root = { name: 'all', value: 0, children: new Map() };
  for (const [stack, value] of rows) {
    let node = root;
    root.value += value;
    for (const name of stack.split(';')) {
      if (!node.children.has(name)) node.children.set(name, { name, value: 0, children: new Map() });
      node = node.children.get(name);
      node.value += value;
    }
  }
  const plain = ({ name, value, children }) => ({ name, value, children: [...children.values()].map(plain) });
  return plain(root);
}

const LOAD_EVENT = 'requestAnimationFrame(()=>requestAnimationFrame(()=>{window.readyAt=performance.now()}))';

function d3Page(rows) {
  const source = join(folder, 'd3.mjs');
  writeFileSync(source, `import { select } from 'd3-selection'; import flamegraph from 'd3-flame-graph';
    const data = JSON.parse(document.getElementById('data').textContent);
    const chart = flamegraph().width(innerWidth - 24).transitionDuration(0).minFrameSize(0.5);
    select('#chart').datum(data).call(chart); ${LOAD_EVENT}`);
  const options = ['--bundle', '--minify', '--format=iife', `--outfile=${join(folder, 'd3.js')}`, '--log-level=error'];
  execFileSync(join(here, '../../page/node_modules/.bin/esbuild'), [source, ...options]);
  const code = readFileSync(join(folder, 'd3.js'), 'utf8').replaceAll('</script', '<\\/script');
  const style = readFileSync(join(folder, 'node_modules/d3-flame-graph/dist/d3-flamegraph.css'), 'utf8');
  const data = JSON.stringify(nested(rows));
  writeFileSync(join(folder, 'd3.html'), `<!doctype html><meta charset="utf-8"><style>${style}</style><div id="chart"></div>
    <script type="application/json" id="data">${data}</script><script>${code}</script>`);
  return { url: 'd3.html', code: code.length + style.length, page: statSync(join(folder, 'd3.html')).size };
}

function ownPage(rows) {
  const file = writePage(folder, 'own.html', modelOf([[rows, {}]]));
  const viewer = join(folder, 'viewer_alone.js');
  const entry = viewer.replace('.js', '.ts');
  writeFileSync(entry, `import { mountFlame } from '${join(here, '../../page/src/flame/index.ts')}'; Object.assign(window, { mountFlame });`);
  execFileSync(join(here, '../../page/bundle'), [entry, viewer]);
  const bytes = [viewer, viewer.replace('.js', '.css')].reduce((sum, name) => sum + statSync(name).size, 0);
  return { url: 'own.html', code: bytes, page: statSync(file).size };
}

function speedscopePage(rows) {
  const text = rows.map(([stack, value]) => `${stack} ${value}`).join('\n');
  writeFileSync(join(folder, 'stacks.folded'), text);
  const code = readdirSync(release).filter((name) => /^speedscope-.*\.(js|css)$|\.woff2$|^index/.test(name));
  const bytes = code.reduce((sum, name) => sum + statSync(join(release, name)).size, 0);
  return { url: 'index.html#profileURL=/stacks.folded&title=stacks', code: bytes, page: bytes + text.length };
}

/** Zooms once, and returns the time in ms until the browser has presented the animation frame after the change. This
 * function runs in the page. */
const zoom = {
  own: (step) => {
    const canvas = document.querySelector('canvas');
    const box = canvas.getBoundingClientRect();
    const place = { clientX: box.left + box.width * (0.05 + 0.035 * step), clientY: box.top + (2 + (step % 3)) * 18 + 9, bubbles: true };
    return window.timed(() => canvas.dispatchEvent(new MouseEvent('click', place)), () => window.flame.reset());
  },
  d3: (step) => {
    const frames = [...document.querySelectorAll('.d3-flame-graph g.frame')];
    const wide = frames.filter((frame) => Number(frame.getAttribute('width')) > 20);
    const frame = wide[(step * 7) % wide.length];
    return window.timed(
      () => frame.dispatchEvent(new MouseEvent('click', { bubbles: true })),
      () => frames[0].dispatchEvent(new MouseEvent('click', { bubbles: true })),
    );
  },
  speedscope: (step) => {
    const canvases = [...document.querySelectorAll('canvas')];
    const canvas = canvases.reduce((one, other) => (other.clientHeight > one.clientHeight ? other : one));
    const box = canvas.getBoundingClientRect();
    const wheel = (deltaY) => {
      const place = { clientX: box.left + box.width * (0.05 + 0.035 * step), clientY: box.top + box.height / 2 };
      const target = document.elementFromPoint(place.clientX, place.clientY);
      target.dispatchEvent(new WheelEvent('wheel', { ...place, deltaY, ctrlKey: true, bubbles: true, cancelable: true }));
    };
    return window.timed(() => wheel(-200), () => wheel(200));
  },
};

/** Changes the background, and returns the time as `zoom` does. This function runs in the page. */
const recolour = (step) => {
  const { style } = document.body;
  return window.timed(() => { style.backgroundColor = `rgb(${step}, 1, 1)`; }, () => { style.backgroundColor = ''; });
};

/** Notes when speedscope is drawn (the two other pages note it themselves), and measures changes. This function runs in
 * the page, before the page's scripts. */
function installTimer() {
  const lookForSpeedscope = () => {
    if (!document.title.includes('stacks')) setTimeout(lookForSpeedscope, 1);
    else presented().then(() => { window.readyAt = performance.now(); });
  };
  if (location.hash) lookForSpeedscope();
  const presented = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  window.timed = async (change, back) => {
    const start = performance.now();
    change();
    await presented();
    const took = performance.now() - start;
    back();
    await presented();
    return took;
  };
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

async function measure(name, base, made) {
  const browser = await launchUnlimited();
  try {
    return await measureIn(browser, base, made, name);
  } finally {
    await browser.close();
  }
}

async function measureIn(browser, base, made, name) {
  const loads = [];
  let page;
  for (let load = 0; load < LOADS; load++) {
    await page?.close();
    page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    await page.addInitScript(installTimer);
    await page.goto(`${base}/${made.url}`, { timeout: MAX_LOAD_MS });
    loads.push(await drawnAt(page));
  }
  const [zooms, changes] = [[], []];
  for (let step = 0; step < ZOOMS; step++) {
    zooms.push(await page.evaluate(zoom[name], step));
    changes.push(await page.evaluate(recolour, step));
  }
  const memory = await rendererMemory(browser);
  return { first: median(loads), zoom: median(zooms), worst: Math.max(...zooms), change: median(changes), memory };
}

async function drawnAt(page) {
  for (const end = Date.now() + MAX_LOAD_MS; ;) {
    const readyAt = await page.evaluate(() => window.readyAt);
    if (readyAt) return readyAt;
    if (Date.now() > end) throw new Error('not drawn');
    await new Promise((done) => setTimeout(done, 20));
  }
}

mkdirSync(folder, { recursive: true });
const { base, close } = await serve([folder, release]);
console.log('| stacks | viewer | code, bytes | page with data, KB | first picture, ms | zoom, ms | slowest zoom, ms | any change, ms | memory, MB |');
console.log('|---:|---|---:|---:|---:|---:|---:|---:|---:|');
for (const count of counts) {
  const rows = stacks(count);
  for (const [name, make] of Object.entries({ own: ownPage, d3: d3Page, speedscope: speedscopePage })) {
    const made = make(rows);
    const sizes = [count, name, made.code, Math.round(made.page / 1000)];
    try {
      const { first, zoom, worst, change, memory } = await measure(name, base, made);
      const times = [first, zoom, worst, change].map((value) => value.toFixed(1));
      console.log(`| ${[...sizes, ...times, Math.round(memory)].join(' | ')} |`);
    } catch (error) {
      console.log(`| ${sizes.join(' | ')} | ${String(error).split('\n')[0]} | | | | |`);
    }
  }
}
close();
