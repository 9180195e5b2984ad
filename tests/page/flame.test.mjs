// Tests the flame graph viewer in real browsers, on stacks whose sums are computed by hand. `cargo test --test page`
// runs these tests. GPUFLAME_BROWSER is chromium, firefox or axe, and GPUFLAME_SHOTS names a folder for screenshots.
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { installed, isReady, launch, settled } from './browsers.mjs';
import { modelOf, writePage } from './model.mjs';

const ROW = 18; // height of a row, in pixels
const HOSTILE = '<img src=x onerror=alert(1)>';
const DEEP = 2000;

// The rows total 72,001 ns: 57,001 ns under main (train.py 57,001: forward.py 32,001, load.py 9,000, the hostile name
// 16,000), and 15,000 ns of idle time.
const ROWS = [
  ['main;train.py;forward.py;cudaLaunchKernel;gemm<float, 128> [GPU0_Kernel]', 20001, 3, '0/0/7/main'],
  ['main;train.py;forward.py;cudaLaunchKernel;kernel_softmax', 12000, 4, '0/0/7/main'],
  ['main;train.py;load.py;cudaMemcpyAsync;copy host to device', 9000, 2, '0/0/13/loader'],
  [`main;train.py;${HOSTILE};cudaLaunchKernel;gemm<float, 128> [GPU0_Kernel]`, 16000, 2, '0/0/7/main'],
  ['[idle: waits for the host]', 15000, 2, '0/0/7/main'],
];
const OTHER = [
  ['main;train.py;forward.py;cudaLaunchKernel;gemm<float, 128> [GPU0_Kernel]', 10000, 3],
  ['main;train.py;gone.py', 500, 1],
];
const CPU = [[['main;sleep', 5], ['main;work', 7]], { id: 'cpu', label: 'CPU', unit: 'samples' }];

const folder = mkdtempSync(join(tmpdir(), 'gpuflame-page-'));
const places = { places: { 'train.py': 'train.py:12' } };
const plain = writePage(folder, 'plain.html', modelOf([[ROWS, {}], CPU], places));
const compared = writePage(folder, 'compared.html', modelOf([[ROWS, {}]]), modelOf([[OTHER, {}]]));
const deepStack = Array.from({ length: DEEP }, (_, at) => `f${at}`).join(';');
const deep = writePage(folder, 'deep.html', modelOf([[[[deepStack, 10], ['f0;side', 5]], {}]]));
const framed = join(folder, 'framed.html');
writeFileSync(framed, '<!doctype html><iframe sandbox="allow-scripts" src="plain.html" width="1000" height="700"></iframe>');
after(() => rmSync(folder, { recursive: true }));

const details = (tab) => tab.run(() => document.querySelector('.fg-facts').textContent);
const crumbs = (tab) => tab.run(() => [...document.querySelectorAll('.fg-crumbs li')].map((item) => item.textContent));
const found = (tab) => tab.run(() => document.querySelector('.fg-found').textContent);
const focusCanvas = (tab) => tab.run(() => document.querySelector('canvas').focus());

/** Returns a position in a row of the flame graph, at `share` of its width. */
async function at(tab, row, share) {
  const box = await tab.run(() => {
    const { left, top, width } = document.querySelector('canvas').getBoundingClientRect();
    return { left, top, width };
  });
  return [box.left + box.width * share, box.top + row * ROW + ROW / 2];
}

async function clickFrame(tab, row, share, options) {
  await tab.click(...(await at(tab, row, share)), options);
  await settled(tab);
}

async function choose(tab, label, value) {
  await tab.run(([label, value]) => {
    const list = document.querySelector(`select[aria-label="${label}"]`);
    list.value = value;
    list.dispatchEvent(new Event('change'));
  }, [label, value]);
  await settled(tab);
}

async function search(tab, text) {
  await tab.run((text) => {
    const input = document.querySelector('input[type=search]');
    input.value = text;
    input.dispatchEvent(new Event('input'));
  }, text);
}

/** Presses keys while the flame graph has the focus, and returns the name of the selected frame. */
async function keys(tab, ...names) {
  await focusCanvas(tab);
  for (const name of names) await tab.press(name);
  return tab.run(() => document.querySelector('.fg-facts strong').textContent);
}

const wanted = process.env.GPUFLAME_BROWSER?.split(',') ?? [...installed, 'axe'];

for (const name of installed.filter((name) => wanted.includes(name))) {
  describe(name, () => {
    let browser;
    before(async () => { browser = await launch(name); });
    after(() => browser.close());

    /** Opens a page and runs `body` in it. Fails if the page logs an error or makes a request. */
    const inPage = (title, file, body, size) => test(title, async () => {
      const tab = await browser.open(file, size);
      try {
        await tab.ready();
        await body(tab);
        tab.assertClean();
      } finally {
        await tab.close();
      }
    });

    inPage('opens at the root with the sum of all rows, and names stay text', plain, async (tab) => {
      assert.match(await details(tab), /^all GPU timetotal72 us \(72,001 ns\)count13average5\.54 usof all100 %$/);
      assert.deepEqual(await crumbs(tab), ['all GPU time']);
      await clickFrame(tab, 3, 0.6);
      assert.ok((await details(tab)).startsWith(HOSTILE));
      assert.equal(await tab.run(() => document.querySelectorAll('img').length), 0);
    });

    inPage('a click zooms, a crumb and Escape lead back, the wheel enlarges', plain, async (tab) => {
      await clickFrame(tab, 3, 0.7);
      assert.match(await details(tab), /^load\.pyPythontotal9 us \(9,000 ns\)count2average4\.5 usof its parent15\.8 %of all12\.5 %/);
      assert.deepEqual(await crumbs(tab), ['all GPU time', 'main', 'train.py', 'load.py']);
      await clickFrame(tab, 5, 0.5);
      assert.match(await details(tab), /^copy host to device/);
      await tab.run(() => document.querySelectorAll('.fg-crumbs button')[2].click());
      assert.match(await details(tab), /^train\.pyPython · train\.py:12total57 us \(57,001 ns\)/);
      await keys(tab, 'Escape');
      assert.equal((await crumbs(tab)).length, 1);
      await tab.wheel(...(await at(tab, 1, 0.1)), -1200, 'Control');
      assert.deepEqual((await crumbs(tab)).slice(0, 2), ['all GPU time', 'main']);
      await clickFrame(tab, 1, 0.9);
      assert.match(await details(tab), /^main/, 'enlarged, main is under the pointer where idle was');
    });

    inPage('search: share, steps, case, invalid expressions', plain, async (tab) => {
      await keys(tab, '/');
      await tab.type('gemm<');
      assert.equal(await found(tab), '50 % in 2 places');
      await tab.press('Enter');
      assert.match(await details(tab), /^gemm<float, 128> \[GPU0_Kernel\]GPU kerneltotal20 us \(20,001 ns\)/);
      await keys(tab, 'n');
      assert.match(await details(tab), /16,000 ns/);
      await search(tab, 'GEMM');
      assert.equal(await found(tab), 'no match');
      await search(tab, 'softmax|copy');
      assert.equal(await found(tab), '29.2 % in 2 places');
      await search(tab, '(');
      assert.match(await tab.run(() => document.querySelector('.fg-message').textContent), /^Not a regular expression \(.*\): searched as text\.$/);
      await search(tab, 'train.py:12');
      assert.equal(await found(tab), '79.2 % in 1 place');
    });

    inPage('keys move through the frames and zoom', plain, async (tab) => {
      assert.equal(await keys(tab, 'ArrowDown'), 'main');
      assert.equal(await keys(tab, 'ArrowRight'), '[idle: waits for the host]');
      assert.equal(await keys(tab, 'ArrowLeft', 'ArrowDown', 'ArrowDown'), 'forward.py');
      assert.equal(await keys(tab, 'Enter'), 'forward.py');
      assert.equal((await crumbs(tab)).at(-1), 'forward.py');
      assert.match(await tab.run(() => document.querySelector('[role=status]').textContent), /^forward\.py, Python, row 3, total 32 us/);
      assert.equal(await keys(tab, 'Home', 'Escape', 'ArrowDown', '+', '+'), 'main');
      assert.equal((await crumbs(tab)).at(-1), 'train.py', 'the deepest frame that fills the width');
      assert.deepEqual(await tab.run(() => window.chosen.slice(0, 2)), ['main', '[idle: waits for the host]']);
    });

    inPage('views, inverted, callers and callees, split', plain, async (tab) => {
      await tab.run(() => document.querySelector('[data-view=cpu]').click());
      assert.match(await details(tab), /^all CPUtotal12 samplescount2of all100 %/);
      await tab.run(() => document.querySelector('[data-view=gpu]').click());
      await choose(tab, 'Order', 'leaves');
      await clickFrame(tab, 1, 0.1);
      assert.match(await details(tab), /^gemm<float, 128> \[GPU0_Kernel\]GPU kerneltotal36 us \(36,001 ns\)count5/);
      await keys(tab, 's');
      await settled(tab);
      assert.match(await details(tab), /36,001 ns/);
      assert.equal(await keys(tab, 'ArrowUp'), 'cudaLaunchKernel', 'callers are above');
      await choose(tab, 'Order', 'root');
      await choose(tab, 'Split', 'stream');
      await clickFrame(tab, 1, 0.1);
      assert.match(await details(tab), /^stream 7thread or processtotal63 us \(63,001 ns\)/);
      await choose(tab, 'Split', 'thread');
      await clickFrame(tab, 1, 0.95);
      assert.match(await details(tab), /^thread loaderthread or processtotal9 us/);
    });

    inPage('hides a subtree, shows it again, and copies', plain, async (tab) => {
      await clickFrame(tab, 1, 0.9);
      await keys(tab, 'h');
      await settled(tab);
      assert.match(await details(tab), /57,001 ns/);
      const note = () => tab.run(() => [...document.querySelectorAll('.fg-message')].map((line) => line.textContent).join(''));
      assert.equal(await note(), 'Hidden subtrees: 1, 20.8 % of all. Show hidden');
      await clickFrame(tab, 3, 0.9);
      await tab.run(() => {
        navigator.clipboard.writeText = (text) => Promise.resolve(void (window.copied = text));
      });
      await keys(tab, 'C');
      assert.equal(await tab.run(() => window.copied), 'main\ntrain.py\nload.py');
      assert.match(await note(), /Copied\./);
      await tab.run(() => [...document.querySelectorAll('button')].find((one) => one.textContent === 'Show hidden').click());
      await keys(tab, 'Escape');
      assert.match(await details(tab), /72,001 ns/);
    });

    inPage('a tooltip has the facts of the frame under the pointer', plain, async (tab) => {
      await tab.move(...(await at(tab, 5, 0.4)));
      await settled(tab);
      const tip = await tab.run(() => document.querySelector('.fg-tip').textContent);
      assert.equal(tip, 'kernel_softmaxGPU kerneltotal12 us (12,000 ns)count4average3 usof its parent37.5 %of all16.7 %');
    });

    inPage('filters tracks, and can be removed', plain, async (tab) => {
      await tab.run(() => window.flame.filterTracks((track) => track.stream === '13'));
      assert.match(await details(tab), /9,000 ns/);
      await tab.run(() => window.flame.filterTracks(() => false));
      assert.match(await tab.run(() => document.querySelector('.fg-message').textContent), /^Nothing to draw/);
      await tab.run(() => window.flame.destroy());
      assert.equal(await tab.run(() => document.getElementById('host').childElementCount), 0);
    });

    inPage('compares two runs', compared, async (tab) => {
      assert.match(await details(tab), /total72 us \(72,001 ns\)before10\.5 us \(10,500 ns\)change\+61\.5 us \(\+586 %\)/);
      await clickFrame(tab, 5, 0.1);
      assert.match(await details(tab), /before10 us \(10,000 ns\)change\+10 us \(\+100 %\)/);
      await keys(tab, 'Escape');
      await choose(tab, 'Width', 'old');
      await clickFrame(tab, 3, 0.99);
      assert.match(await details(tab), /^gone\.pyPythontotal0 nsbefore500 nschange-500 ns \(gone\)/);
    });

    inPage('shows stacks 2,000 frames deep', deep, async (tab) => {
      const size = await tab.run(() => {
        const box = document.querySelector('.fg-scroll');
        box.scrollTop = 1e9;
        return { all: box.scrollHeight, canvas: document.querySelector('canvas').height / devicePixelRatio };
      });
      assert.equal(size.all, (DEEP + 1) * ROW);
      assert.ok(size.canvas < 1000, `${size.canvas}`);
      await settled(tab);
      const lastRow = Math.floor(size.canvas / ROW) - 1;
      await clickFrame(tab, lastRow, 0.3);
      const [, frame] = /^f(\d+)host/.exec(await details(tab));
      assert.ok(frame >= DEEP - 3, frame);
      assert.match((await crumbs(tab)).join(), /… 1,?99\d more …/);
      assert.equal(await keys(tab, 'Escape'), 'all GPU time');
      assert.equal(await tab.run(() => document.querySelector('.fg-scroll').scrollTop), 0);
    });

    test('works in a frame that may only run scripts', async () => {
      const tab = await browser.open(framed);
      try {
        const frame = tab.page.frames().find((one) => one.url().endsWith('plain.html'));
        await isReady(frame);
        const words = await frame.evaluate(() => {
          const input = document.querySelector('input[type=search]');
          input.value = 'gemm';
          input.dispatchEvent(new Event('input'));
          return document.querySelector('.fg-found').textContent;
        });
        assert.equal(words, '50 % in 2 places');
        tab.assertClean();
      } finally {
        await tab.close();
      }
    });
  });
}

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

for (const dark of wanted.includes('axe') && installed.includes('chromium') ? [false, true] : []) {
  test(`no serious finding of axe, no sideways scrolling, ${dark ? 'dark' : 'light'}`, async () => {
    const browser = await launch('chromium', { dark });
    try {
      for (const [file, width, height] of [[plain, 1280, 800], [plain, 390, 844], [compared, 1280, 800], [deep, 390, 844]]) {
        const tab = await browser.open(file, { width, height });
        await tab.ready();
        await search(tab, 'gemm');
        await tab.run(axe);
        const { violations } = await tab.run(() => window.axe.run());
        const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
        assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), []);
        const overflow = await tab.run(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.equal(overflow, 0, `${file} at ${width} scrolls sideways`);
        if (process.env.GPUFLAME_SHOTS) await tab.screenshot(join(process.env.GPUFLAME_SHOTS, `${file.split('/').pop()}.${dark}.${width}.png`));
        await tab.close();
      }
    } finally {
      await browser.close();
    }
  });
}
