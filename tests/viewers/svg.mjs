// Uses a flame graph: node svg.mjs NODE_MODULES FILE FRAME WORD clicks on the frame whose title begins with FRAME, then
// searches WORD. Prints as JSON: how wide the frame was and is, how many frames are shown, what matched, and tooltip
// and text of the frames that have a short name.
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, file, frame, word] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, 'x.js'))('playwright-core');
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu'] });
const page = await browser.newPage({ viewport: { width: 1300, height: 900 } });
const errors = [];
page.on('pageerror', (error) => errors.push(String(error)));
await page.goto(`file://${file}`);
const look = () => page.evaluate((frame) => {
  const groups = [...document.querySelectorAll('.frames > g')];
  const shown = groups.filter((group) => getComputedStyle(group).display !== 'none');
  const found = groups.find((group) => group.querySelector('title').textContent.startsWith(frame));
  const short = groups.filter((group) => group.querySelector('title').hasAttribute('data-short'));
  const drawn = short.map((group) => ['title', 'text'].map((part) => group.querySelector(part).textContent));
  return { width: found.querySelector('rect').getBoundingClientRect().width, shown: shown.length, all: groups.length, drawn };
}, frame);
const before = await look();
await page.evaluate((frame) => {
  const groups = [...document.querySelectorAll('.frames > g')];
  const found = groups.find((group) => group.querySelector('title').textContent.startsWith(frame));
  found.querySelector('rect').dispatchEvent(new MouseEvent('click', { bubbles: true }));
}, frame);
const zoomed = await look();
await page.click('.reset');
const unzoomed = await look();
// The search box must be visible, and the keyboard must reach it.
await page.keyboard.press('/');
await page.keyboard.type(word);
const matched = await page.textContent('.matched');
console.log(JSON.stringify({ before, zoomed, unzoomed, matched, errors }));
await browser.close();
