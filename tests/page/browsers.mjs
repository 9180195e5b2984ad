// Gives Chromium (through Playwright) and Firefox (through WebDriver BiDi) the same interface. A test fails if a page
// that it opened logs an error, throws, or makes a network request.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { chromium } from 'playwright-core';
import puppeteer from 'puppeteer-core';

const CHROMIUM = '/usr/bin/chromium';
const FIREFOX = '/usr/bin/firefox-esr';

/** Names of the browsers that are installed. */
export const installed = [[CHROMIUM, 'chromium'], [FIREFOX, 'firefox']].filter(([path]) => existsSync(path)).map(([, name]) => name);

export async function launch(name, { dark = false } = {}) {
  return name === 'chromium' ? launchChromium(dark) : launchFirefox(dark);
}

async function launchChromium(dark) {
  const args = ['--no-sandbox', '--disable-gpu'];
  const browser = await chromium.launch({ executablePath: CHROMIUM, args });
  return {
    name: 'chromium',
    async open(file, { width = 1280, height = 800 } = {}) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light' });
      const page = await context.newPage();
      const tab = watched(page);
      tab.close = () => context.close();
      await page.goto(`file://${file}`);
      return tab;
    },
    close: () => browser.close(),
  };
}

async function launchFirefox(dark) {
  const browser = await puppeteer.launch({
    browser: 'firefox',
    executablePath: FIREFOX,
    headless: true,
    extraPrefsFirefox: { 'layout.css.prefers-color-scheme.content-override': dark ? 0 : 1 },
  });
  return {
    name: 'firefox',
    async open(file, { width = 1280, height = 800 } = {}) {
      const page = await browser.newPage();
      await page.setViewport({ width, height });
      const tab = watched(page);
      tab.close = () => page.close();
      await page.goto(`file://${file}`);
      return tab;
    },
    close: () => browser.close(),
  };
}

function watched(page) {
  const problems = [];
  page.on('pageerror', (error) => problems.push(`error: ${error}`));
  page.on('console', (message) => message.type() === 'error' && problems.push(`console: ${message.text()}`));
  page.on('request', (request) => !/^(file|data|about|blob):/.test(request.url()) && problems.push(`request: ${request.url()}`));
  return {
    page,
    problems,
    run: (body, argument) => page.evaluate(body, argument),
    press: (key) => page.keyboard.press(key),
    type: (text) => page.keyboard.type(text),
    click: (x, y, options) => page.mouse.click(x, y, options),
    move: (x, y) => page.mouse.move(x, y),
    async wheel(x, y, down, key) {
      await page.mouse.move(x, y);
      if (key) await page.keyboard.down(key);
      // Puppeteer's function takes an object, and Playwright's takes two numbers.
      await (page.mouse.wheel.length >= 2 ? page.mouse.wheel(0, down) : page.mouse.wheel({ deltaY: down }));
      if (key) await page.keyboard.up(key);
      await settled(this);
    },
    screenshot: (path) => page.screenshot({ path }),
    ready: () => isReady(page),
    assertClean: () => assert.deepEqual(problems, []),
  };
}

/** Waits until the viewer in a page or frame is drawn. The page's content security policy does not allow waiting with
 * code in a string. */
export async function isReady(frame) {
  for (let tries = 0; tries < 1000; tries++) {
    if (await frame.evaluate(() => window.readyAt > 0)) return;
    await new Promise((done) => setTimeout(done, 10));
  }
  throw new Error('the viewer was not drawn within 10 s');
}

/** Waits for two animation frames after the last input. Then the flame graph has been redrawn. */
export async function settled(tab) {
  await tab.run(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0)))));
}
