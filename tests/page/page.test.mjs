// Tests pages that `gpuflame report` writes, in real browsers. `cargo test --test page` runs these tests.
// GPUFLAME_COMMAND names the command, GPUFLAME_BROWSER the browser, and GPUFLAME_SHOTS a folder for screenshots.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { launch, settled } from './browsers.mjs';

const browserName = process.env.GPUFLAME_BROWSER ?? 'chromium';
const shots = process.env.GPUFLAME_SHOTS;
const HOSTILE = '<img src=x onerror=alert(1)>';
const STEPS = 20;
/** Number of the step that takes three times as long as the others, counted from 1. */
const SLOW_STEP = 8;

/** Returns a trace of 20 steps, one of 3 ms and the others of 1 ms. Each step has a kernel of 100 us and a kernel of
 * `other` us. */
function trace(other) {
  const events = [];
  const slice = (cat, name, pid, tid, ts, dur, args = {}) => events.push({ ph: 'X', cat, name, pid, tid, ts, dur, args });
  let ts = 1000;
  for (let step = 0; step < STEPS; step++) {
    const length = step + 1 === SLOW_STEP ? 3000 : 1000;
    slice('user_annotation', `ProfilerStep#${step}`, 1, 9, ts, length - 10);
    const launch = (id, at, kernel, dur, caller) => {
      slice('python_function', caller, 1, 9, at, 200);
      slice('cuda_runtime', 'cudaLaunchKernel', 1, 9, at + 5, 5, { correlation: id });
      slice('kernel', kernel, 0, 7, at + 20, dur, { correlation: id, device: 0, stream: 7 });
    };
    launch(2 * step + 1, ts + 10, 'void gemm<float, 4>(float*)', 100, 'train.py(3): forward');
    launch(2 * step + 2, ts + 400, 'softmax_kernel', other, `train.py(9): ${HOSTILE}`);
    ts += length;
  }
  return JSON.stringify({ traceEvents: events });
}

const folder = mkdtempSync(join(tmpdir(), 'gpuflame-report-'));
after(() => rmSync(folder, { recursive: true }));
for (const [name, other] of [['rank0', 30], ['rank1', 60]]) writeFileSync(join(folder, `${name}.json`), trace(other));
const report = (page, ...args) => {
  execFileSync(process.env.GPUFLAME_COMMAND, ['report', '-q', ...args, '-o', page], { cwd: folder });
  return join(folder, page);
};
const single = report('single.html', 'rank0.json');
const job = report('job.html', 'rank0.json', 'rank1.json');
const compared = report('compared.html', 'rank1.json', '--against', 'rank0.json');
writeFileSync(join(folder, 'framed.html'), '<!doctype html><iframe sandbox="allow-scripts" src="single.html" width="900" height="600"></iframe>');

async function drawn(frame) {
  for (let tries = 0; tries < 1000; tries++) {
    if (await frame.evaluate(() => document.documentElement.dataset.ready === 'true')) return;
    await new Promise((done) => setTimeout(done, 10));
  }
  throw new Error('the page was not drawn within 10 s');
}

async function open(browser, file, size) {
  const tab = await browser.open(file, size);
  await drawn(tab.page);
  await settled(tab);
  return tab;
}

const texts = (tab, selector) =>
  tab.run((selector) => [...document.querySelectorAll(selector)].map((found) => found.textContent), selector);
/** Waits until a text matches, because the timeline is drawn only at the browser's next animation frame. */
async function eventually(text, pattern) {
  for (let tries = 0; tries < 500 && !pattern.test(await text()); tries++) await new Promise((done) => setTimeout(done, 10));
  assert.match(await text(), pattern);
}
const clickOn = (tab, selector) => tab.run((selector) => void document.querySelector(selector).click(), selector);

async function withBrowser(options, body) {
  const browser = await launch(browserName, options);
  try {
    await body(browser);
  } finally {
    await browser.close();
  }
}

test('the first screen says how busy the GPU was, why not, and what to do', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    // The headline of the page is the most expensive finding: in each step, the GPU works for 130 us and waits for the
    // host the rest of the time.
    const [first] = await texts(tab, '.first-line');
    assert.match(first, /^[A-Z].*: \d+\.\d % of the steady part \(/);
    const [busy, idle] = await texts(tab, '.second-line');
    assert.match(busy, /^GPU 0 busy \d+\.\d % of /);
    assert.match(idle, /^idle .* ms, of which \d+\.\d % /);
    assert.match((await texts(tab, '.findings-section h2'))[0], /in percent of the steady part, /);
    assert.ok((await texts(tab, '.remedy')).every((text) => text.endsWith('.')));
    assert.equal((await texts(tab, '.bar')).length, 1);
    const commands = await texts(tab, '.finding code:not(.finding-id)');
    assert.ok(commands.length > 0 && commands.every((text) => text.startsWith('gpuflame ')), String(commands));
    const bottom = await tab.run(() => document.querySelector('.findings').getBoundingClientRect().bottom);
    assert.ok(bottom <= 800, `the findings end at ${bottom} px`);
    // Names are only text. No name has become an element.
    assert.equal(await tab.run(() => document.querySelectorAll('img').length), 0);
    assert.ok((await texts(tab, '#functions td.name')).some((name) => name.includes(HOSTILE)));
    tab.assertClean();
  });
});

test('the flame graph opens with the view of the first finding', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    // The GPU is busy for 130 us of each step, so the first finding is about idle time.
    const pressed = await tab.run(() => [...document.querySelectorAll('.fg-views [aria-pressed="true"]')].map((one) => one.dataset.view));
    assert.deepEqual(pressed, ['idle']);
    tab.assertClean();
  });
});

test('a table is filtered and sorted, and a name is found in the flame graph', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    assert.deepEqual(await texts(tab, '#kernels td.name'), ['gemm', 'softmax_kernel']);
    await clickOn(tab, '#kernels th:nth-child(2) button');
    await clickOn(tab, '#kernels th:nth-child(2) button');
    assert.deepEqual(await texts(tab, '#kernels td.name'), ['softmax_kernel', 'gemm']);
    // The kernels take 20 x 100 us and 20 x 30 us.
    assert.deepEqual(await texts(tab, '#kernels td:nth-child(2)'), ['600 us', '2 ms']);
    await tab.run(() => {
      const input = document.querySelector('#functions input');
      input.value = 'FORWARD';
      input.dispatchEvent(new Event('input'));
    });
    assert.deepEqual(await texts(tab, '#functions td.name'), ['train.py(3): forward']);
    await clickOn(tab, '#kernels td.name button');
    await settled(tab);
    assert.match((await texts(tab, '.fg-found'))[0], /23/); // 600 of 2,600 us
    tab.assertClean();
  });
});

test('a slow step is marked, and a click or a key selects a step', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    const slow = await tab.run(() => [...document.querySelectorAll('.step')].flatMap((bar, at) => (bar.classList.contains('slow') ? [at + 1] : [])));
    assert.deepEqual(slow, [SLOW_STEP]);
    await tab.run((at) => void document.querySelectorAll('.step')[at].dispatchEvent(new MouseEvent('click')), SLOW_STEP - 1);
    const details = async () => (await texts(tab, '#steps .step-details'))[0];
    assert.match(await details(), /times the median/);
    const before = await details();
    await tab.run(() => document.querySelector('.step-chart').focus());
    await tab.press('ArrowRight');
    assert.notEqual(await details(), before);
    assert.equal(await tab.run(() => document.querySelectorAll('.step.selected').length), 1);
    tab.assertClean();
  });
});

test('ranks have a table and a map, and a page without ranks says so', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, job);
    assert.deepEqual((await texts(tab, '.bar-label')), ['rank 0, GPU 0', 'rank 1, GPU 0']);
    assert.equal((await texts(tab, '#ranks tbody tr')).length, 2);
    assert.equal(await tab.run(() => document.querySelectorAll('#ranks canvas').length), 1);
    tab.assertClean();
    const alone = await open(browser, single);
    assert.equal((await texts(alone, '#ranks .why-empty')).length, 1);
    alone.assertClean();
  });
});

test('a drag in the timeline zooms, and Escape shows everything', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    assert.deepEqual((await texts(tab, '.timeline-labels li')).slice(0, 3), ['critical path', 'GPU 0, idle', 'GPU 0, stream 7']);
    const box = await tab.run(() => {
      const canvas = document.querySelector('.timeline');
      document.getElementById('timeline').scrollIntoView();
      const { left, top, width, height } = canvas.getBoundingClientRect();
      return { left, top, width, height };
    });
    const y = box.top + box.height / 2;
    const { mouse } = tab.page;
    await mouse.move(box.left + box.width * 0.25, y);
    await mouse.down();
    await mouse.move(box.left + box.width * 0.75, y);
    await mouse.up();
    const shown = async () => (await texts(tab, '#timeline .step-details'))[0];
    // The run takes 21.42 ms, from the first call to the end of the last kernel. The middle is at 10.7 ms.
    await eventually(shown, /: 10\.7 ms$/);
    await tab.run(() => document.querySelector('.timeline').focus());
    await tab.press('Escape');
    await eventually(shown, /^0 ns to 21\.4 ms/);
    tab.assertClean();
  });
});

test('idle time in the timeline has a colour by cause, a legend and a tooltip', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    // The call that launches the first kernel of a step begins 15 us after the step, and its kernel begins 5 us later.
    // So 10 us of idle time end with the call.
    const legend = await texts(tab, '#timeline .legend');
    assert.match(legend[1], /^idle:host late \(.*launch latency \(/);
    const rows = await texts(tab, '.timeline-labels li');
    const box = await tab.run(() => {
      document.getElementById('timeline').scrollIntoView();
      const { left, top, width } = document.querySelector('.timeline').getBoundingClientRect();
      return { left, top, width };
    });
    const y = box.top + 18 + 20 * rows.indexOf('GPU 0, idle') + 10;
    // In the middle of the run, as during most of the run, the cause of idle time is the host.
    await tab.move(box.left + box.width * 0.52, y);
    const [tooltip] = await texts(tab, '.timeline-tooltip');
    assert.match(tooltip, /^GPU 0, idle: host late, /);
    assert.equal(await tab.run(() => document.querySelector('.timeline-tooltip').hidden), false);
    const pixel = await tab.run(([x, y]) => {
      const canvas = document.querySelector('.timeline');
      const ratio = window.devicePixelRatio;
      return [...canvas.getContext('2d').getImageData(x * ratio, y * ratio, 1, 1).data];
    }, [box.width * 0.52, y - box.top]);
    assert.deepEqual(pixel, [0xe8, 0x60, 0x3c, 255]);
    tab.assertClean();
  });
});

test('a part of the critical path is marked in the timeline, and the longest is shown', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, single);
    const parts = await texts(tab, '.path-parts li');
    assert.equal(parts.length, 5);
    // In most of the time between two functions, the host makes no call.
    assert.match(parts[0], /host between two calls: from cudaLaunchKernel to cudaLaunchKernel/);
    const shown = async () => (await texts(tab, '#timeline .step-details'))[0];
    const click = (text) => tab.run((text) => [...document.querySelectorAll('.path-parts li:first-child button')].find((one) => one.textContent === text).click(), text);
    await click('show all in the timeline');
    assert.match(await shown(), /: marked in all rows\. Escape removes the marks\.$/);
    await settled(tab);
    const dark = (x) => tab.run((x) => {
      const canvas = document.querySelector('.timeline');
      return [...canvas.getContext('2d').getImageData(x * canvas.width, 16 * window.devicePixelRatio, 1, 1).data].join();
    }, x);
    // 11.7 of the 21.42 ms are between the calls of two steps. The middle of the run is in this time.
    assert.equal(await dark(11.7 / 21.42), '27,27,27,255');
    await click('show the longest');
    // The longest occurrence is in the slow step. It lasts from the end of the step's second function, 600 us after the
    // step begins, to the begin of the next step's first function, 3,010 us after the step begins. The slow step is a
    // third of the view.
    const [from, to] = /^(\S+) ms to (\S+) ms/.exec(await shown()).slice(1).map(Number);
    assert.ok(Math.abs((to - from) / 3 - 2.41) < 0.05, `${from} to ${to}`);
    await tab.run(() => document.querySelector('.timeline').focus());
    await tab.press('Escape');
    await settled(tab);
    assert.notEqual(await dark(11.7 / 21.42), '27,27,27,255');
    tab.assertClean();
  });
});

test('a printed page begins with the headline, the findings and the flame graph', { skip: browserName !== 'chromium' && 'Chromium prints' }, async () => {
  await withBrowser({ dark: true }, async (browser) => {
    // A page of A4 paper has 794 x 1123 pixels.
    const tab = await open(browser, single, { width: 794, height: 1123 });
    await tab.page.emulateMedia({ media: 'print' });
    await settled(tab);
    const found = await tab.run(() => {
      const bottom = (selector) => document.querySelector(selector).getBoundingClientRect().bottom;
      const canvas = document.querySelector('#flame canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let at = 0; at < data.length; at += 4) colours.add(data.slice(at, at + 4).join());
      return {
        bottoms: ['.first-line', '.findings', '#flame canvas'].map(bottom),
        colours: colours.size,
        background: getComputedStyle(document.body).backgroundColor,
        hidden: ['nav', '.fg-bar', '.table-bar'].map((selector) => document.querySelector(selector).offsetParent === null),
      };
    });
    assert.deepEqual(found.bottoms, [...found.bottoms].sort((a, b) => a - b));
    assert.ok(found.bottoms[2] <= 1123, `the flame graph ends at ${found.bottoms[2]} px`);
    assert.ok(found.colours > 3, 'the flame graph is drawn');
    assert.equal(found.background, 'rgb(255, 255, 255)');
    assert.deepEqual(found.hidden, [true, true, true]);
    const printed = await tab.page.pdf({ format: 'A4', printBackground: true });
    assert.equal(printed.subarray(0, 5).toString(), '%PDF-');
    if (shots) writeFileSync(join(shots, 'single.pdf'), printed);
    tab.assertClean();
  });
});

test('a comparison shows what changed', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await open(browser, compared);
    // The total GPU time is 20 x 160 us in the new trace, and 20 x 130 us in the old trace.
    assert.match((await texts(tab, '.change'))[0], /GPU work 3\.200 ms, before 2\.600 ms \(\+23\.1 %\)/);
    const [row] = await texts(tab, '#changes tbody tr');
    assert.match(row, /softmax_kernel.*\+600 us.*\+100\.0 %.*yes/);
    assert.equal((await texts(tab, '#changes tbody tr')).length, 1);
    tab.assertClean();
  });
});

test('the page works in a sandboxed frame', async () => {
  await withBrowser({}, async (browser) => {
    const tab = await browser.open(join(folder, 'framed.html'));
    const frame = tab.page.frames().find((one) => one.url().endsWith('single.html'));
    await drawn(frame);
    assert.match(await frame.evaluate(() => document.querySelector('.second-line').textContent), /^GPU 0 busy /);
    tab.assertClean();
  });
});

test('nothing is wider than the window, in both colour schemes', async () => {
  for (const dark of [false, true]) {
    await withBrowser({ dark }, async (browser) => {
      for (const [name, file] of [['single', single], ['job', job], ['compared', compared]]) {
        for (const [width, height] of [[1280, 800], [390, 844]]) {
          const tab = await open(browser, file, { width, height });
          const wide = await tab.run(() => document.documentElement.scrollWidth);
          assert.ok(wide <= width, `${name}: ${wide} px at ${width}`);
          if (shots) await tab.screenshot(join(shots, `${name}-${width}-${dark ? 'dark' : 'light'}.png`));
          tab.assertClean();
          await tab.close();
        }
      }
    });
  }
});

test('axe finds nothing serious', { skip: browserName !== 'chromium' && 'axe runs in Chromium' }, async () => {
  const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  for (const dark of [false, true]) {
    await withBrowser({ dark }, async (browser) => {
      const tab = await open(browser, job);
      // The page's policy does not allow other scripts, except those of the debugger.
      const session = await tab.page.context().newCDPSession(tab.page);
      await session.send('Runtime.evaluate', { expression: axe });
      const { result } = await session.send('Runtime.evaluate', {
        expression: 'axe.run().then((found) => JSON.stringify(found.violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map((node) => node.html) }))))',
        awaitPromise: true,
      });
      const serious = JSON.parse(result.value).filter(({ impact }) => impact === 'serious' || impact === 'critical');
      assert.deepEqual(serious, []);
    });
  }
});
