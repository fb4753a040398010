// Drives the dashboard of a live run in a real browser, as a user would.
//
//   npm install --no-package-lock && node page.mjs http://127.0.0.1:8018/ shots [--hostile TEXT]
//
// The page must update by itself, log no error, be usable by keyboard alone, show hostile text as text, and never be
// wider than a phone. One line of JSON says what was seen; the exit code is 0 only if all of it holds. With `--hostile`
// some group kept by the run must have a completion with TEXT in it: of the newest few, the one with the longest
// completion is opened, and everything in it must be shown, as text and as nothing else.
// The browser is $CHROMIUM, else the first of the usual names that is installed.

import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { wrongPieces } from './pieces.mjs';

const [base, out, flag, hostile] = process.argv.slice(2);
if (!base || !out || (flag !== undefined && (flag !== '--hostile' || !hostile))) {
  console.error('usage: node page.mjs BASE_URL SCREENSHOT_FOLDER [--hostile TEXT]');
  process.exit(2);
}
const NAMES = [
  '/usr/bin/chromium',
  '/usr/bin/google-chrome',
  '/usr/bin/chromium-browser',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
];
const executablePath = process.env.CHROMIUM ?? NAMES.find(existsSync);
if (!executablePath) {
  console.error('no browser: install Chromium (Debian: chromium), or name one in CHROMIUM');
  process.exit(2);
}
const LIVE_MS = 60_000;
/** So many groups with the hostile text are looked at. */
const HOSTILE_GROUPS = 8;
/** What holds text of models. */
const BOXES = '#group, #group :is(.group-body, .members, .turn, .model-text)';
const LAPTOP = { width: 1440, height: 900 };
const PHONE = { width: 390, height: 844 };
mkdirSync(out, { recursive: true });

const verdict = { ok: false, checks: {} };
const troubles = [];

function check(name, holds, detail) {
  verdict.checks[name] = holds ? (detail ?? true) : false;
  if (!holds) throw new Error(`${name}: ${detail ?? 'does not hold'}`);
}

/** A check that something comes to hold in its time. */
async function comes(name, waiting) {
  await waiting.catch((error) => {
    throw new Error(`${name}: ${error.name === 'TimeoutError' ? 'did not come to hold in time' : error.message}`);
  });
  check(name, true);
}

/** A page whose errors, dialogs and requests to other places are remembered as troubles. */
async function visit(browser, options, hash = '') {
  const context = await browser.newContext({ reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on('console', (message) => message.type() === 'error' && troubles.push(`console: ${message.text()}`));
  page.on('pageerror', (error) => troubles.push(`error: ${error.message}`));
  page.on('dialog', (dialog) => {
    troubles.push(`a dialog opened: ${dialog.message()}`);
    void dialog.dismiss();
  });
  const { origin } = new URL(base);
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.origin !== origin && url.protocol !== 'data:') troubles.push(`a request left the page: ${url.origin}`);
  });
  await page.goto(new URL(hash, base).href);
  await comes('connects', page.waitForSelector('#link[data-link="live"]'));
  await comes('draws_the_line', page.waitForSelector('#picture svg'));
  return page;
}

const shot = (page, name) => page.screenshot({ path: join(out, `${name}.png`) });
/** By how much the widest of these is wider than its place; text that ends in an ellipsis is meant to be. */
const tooWide = (page, which = 'html') =>
  page.evaluate((names) => {
    const places = [...document.querySelectorAll(names)].filter(
      (node) => node.clientWidth > 0 && getComputedStyle(node).textOverflow !== 'ellipsis',
    );
    return Math.max(...places.map((node) => node.scrollWidth - node.clientWidth));
  }, which);
/** Words of badges that stand out of their boxes, shown or not. */
const outOfBadges = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll('#picture .tag, #picture .stage.failed .fail')]
      .map((badge) => [badge.querySelector('text'), ...['rect', 'text'].map((part) => badge.querySelector(part).getBBox())])
      .filter(([, box, words]) => words.x < box.x + 4 || words.x + words.width > box.x + box.width - 4)
      .map(([words]) => words.textContent),
  );
const readings = (page) => page.evaluate(() => document.querySelector('#stats').textContent);

async function updates(page) {
  const before = await readings(page);
  await comes(
    'updates_live',
    page.waitForFunction((old) => document.querySelector('#stats').textContent !== old, before, { timeout: LIVE_MS }),
  );
  await comes(
    'a_step_is_done',
    page.waitForFunction(() => Number(document.querySelector('#progress').getAttribute('aria-valuenow')) > 0, null, {
      timeout: LIVE_MS,
    }),
  );
  await comes('draws_curves', page.waitForSelector('#bound-chart canvas', { timeout: LIVE_MS }));
}

/** Tab to the list of groups, down by arrow and by letter, open with Enter, read tokens, leave with Escape. */
async function keyboard(page) {
  // Two down and one up end elsewhere only in a list of three or more.
  const rows = () => document.querySelectorAll('.list .row').length >= 3;
  await comes('lists_groups', page.waitForFunction(rows, null, { timeout: LIVE_MS }));
  const inList = () => page.evaluate(() => document.activeElement?.classList.contains('list'));
  for (let i = 0; i < 150 && !(await inList()); i++) await page.keyboard.press('Tab');
  check('list_is_reached_by_tab', await inList());
  const cursor = () => page.getAttribute('.list', 'aria-activedescendant');
  const first = await cursor();
  await page.keyboard.press('j');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('k');
  check('keys_move_in_the_list', (await cursor()) !== first, await cursor());
  await page.keyboard.press('Enter');
  await page.waitForSelector('#group .member');
  check('enter_opens', (await page.evaluate(() => document.activeElement?.id)) === 'group-title');
  check('address_names_the_group', /^#group=./.test(new URL(page.url()).hash), new URL(page.url()).hash);
  const inTokens = () => page.evaluate(() => document.activeElement?.classList.contains('tokens'));
  if ((await page.locator('#group .tokens').count()) > 0) {
    for (let i = 0; i < 60 && !(await inTokens()); i++) await page.keyboard.press('Tab');
    await page.keyboard.press('ArrowRight');
    const said = await page.textContent('#group .readout');
    check('token_reads_out', /logprob/.test(said) && /probability/.test(said), said.trim());
  }
  await shot(page, 'inspector');
  await page.keyboard.press('Escape');
  check('escape_closes_and_returns', (await inList()) && (await page.isHidden('#group')));
}

/** Of the newest groups that have the hostile text, the one with the longest completion. */
const hostileGroup = (page) =>
  page.evaluate(
    async ([text, most]) => {
      let [found, seen] = [null, 0];
      for (const { id } of await (await fetch('/api/groups')).json()) {
        const group = await (await fetch(`/api/groups/${encodeURIComponent(id)}`)).json();
        const all = (group.members ?? []).flatMap((member) => member.turns ?? []).map((turn) => turn.text);
        if (!all.some((one) => one.includes(text))) continue;
        const longest = Math.max(...all.map((one) => one.length));
        if (longest > (found?.longest ?? -1)) found = { id: String(id), longest };
        if (++seen === most) break;
      }
      return found;
    },
    [hostile, HOSTILE_GROUPS],
  );

const unfold = async (page) => {
  for (let shut = page.locator('#group .member:not([open]) > summary'); (await shut.count()) > 0;)
    await shut.first().click();
};

/** In this view the open group is shown whole, as text and as nothing else, and inside its boxes. `longest` is how many
 * characters its longest completion has in this view, at least. */
async function onlyText(page, view, longest) {
  const holds = (what) => `${view}_view_${what}`;
  await page.click(`#group .switch button:has-text("${view}")`);
  for (let more = page.locator('#group .more'); (await more.count()) > 0;) await more.first().click();
  await comes(
    holds('shows_hostile_text'),
    page.waitForFunction(
      (text) => [...document.querySelectorAll('#group .model-text')].some((node) => node.textContent.includes(text)),
      hostile,
    ),
  );
  await comes(
    holds('shows_all_of_it'),
    page.waitForFunction(
      (length) => [...document.querySelectorAll('#group .model-text')].some((node) => node.textContent.length >= length),
      longest,
    ),
  );
  const made = await page.evaluate(() =>
    [
      ...document.querySelectorAll(
        '#group :is(script, img, iframe, object, embed, style, link, form, a, svg, h1, video, audio)',
      ),
    ].map((node) => node.tagName),
  );
  check(holds('makes_no_element'), made.length === 0, made.join(', ') || true);
  const steering = await page.evaluate(() =>
    [...document.querySelectorAll('#group .model-text')].some((node) =>
      /[\u0000-\u0008\u001b\u202a-\u202e\u2066-\u2069]/.test(node.textContent),
    ),
  );
  check(holds('leaves_no_control_character'), !steering);
  check(holds('stays_in_its_boxes'), (await tooWide(page, BOXES)) <= 0);
  await page.evaluate((text) => {
    const nodes = [...document.querySelectorAll('#group .model-text')];
    nodes.find((node) => node.textContent.includes(text)).scrollIntoView({ block: 'nearest' });
  }, hostile);
  await shot(page, `hostile-${view}`);
}

async function harmless(page) {
  const found = await hostileGroup(page);
  const none = `no kept group has a completion with ${JSON.stringify(hostile)}`;
  check('a_hostile_group_is_there', found !== null, found ? `${found.id}: ${found.longest} characters` : none);
  await page.evaluate((group) => (location.hash = `group=${encodeURIComponent(group)}`), found.id);
  await page.waitForFunction(
    (group) =>
      document.querySelector('#group-title')?.textContent === `Group ${group}` &&
      document.querySelector('#group .member'),
    found.id,
  );
  await unfold(page);
  await onlyText(page, 'text', found.longest);
  // Of a long completion the run sends the first tokens only.
  await onlyText(page, 'tokens', hostile.length);
  await page.keyboard.press('Escape');
}

async function phone(browser) {
  const page = await visit(browser, {
    viewport: PHONE,
    deviceScaleFactor: 2,
    isMobile: true,
    hasTouch: true,
    colorScheme: 'light',
  });
  await page.waitForSelector('.list .row', { timeout: LIVE_MS });
  check('phone_is_not_too_wide', (await tooWide(page)) <= 0, await tooWide(page));
  check('phone_badges_hold_their_words', (await outOfBadges(page)).length === 0, (await outOfBadges(page)).join());
  await shot(page, 'phone');
  await page.locator('.list .row').first().tap();
  await page.waitForSelector('#group .member');
  check('phone_inspector_is_not_too_wide', (await tooWide(page)) <= 0, await tooWide(page));
  await shot(page, 'phone-inspector');
  await unfold(page);
  check('phone_members_are_not_too_wide', (await tooWide(page, `html, ${BOXES}`)) <= 0);
  await page.emulateMedia({ colorScheme: 'dark' });
  await comes('follows_the_system_while_it_is_open', page.waitForSelector('html[data-theme="dark"]'));
  await shot(page, 'phone-dark-inspector');
  await page.click('#group [aria-label^="Close"]');
  await page.evaluate(() => scrollTo(0, 0));
  await shot(page, 'phone-dark');
  await page.context().close();
}

const browser = await chromium.launch({ executablePath, args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] });
try {
  const page = await visit(browser, { viewport: LAPTOP, colorScheme: 'light' });
  await updates(page);
  check('laptop_is_not_too_wide', (await tooWide(page)) <= 0, await tooWide(page));
  check('badges_hold_their_words', (await outOfBadges(page)).length === 0, (await outOfBadges(page)).join());
  const wrong = await wrongPieces(page);
  check('pieces_do_what_they_say', wrong.length === 0, wrong.join('; ') || true);
  await shot(page, 'light');
  await keyboard(page);
  if (hostile) await harmless(page);
  await page.context().close();

  const dark = await visit(browser, { viewport: LAPTOP, colorScheme: 'dark' });
  check('follows_the_system_into_the_dark', (await dark.getAttribute('html', 'data-theme')) === 'dark');
  await dark.waitForSelector('#bound-chart canvas');
  await shot(dark, 'dark');
  await dark.locator('.list .row').first().click();
  await dark.waitForSelector('#group .member');
  await unfold(dark);
  await shot(dark, 'dark-inspector');
  await dark.context().close();

  await phone(browser);
  check('no_trouble', troubles.length === 0, troubles.join('; ') || true);
  verdict.ok = true;
} catch (error) {
  verdict.failed = error.message;
  verdict.troubles = troubles;
} finally {
  await browser.close();
}
console.log(JSON.stringify(verdict));
if (!verdict.ok) {
  console.error(`the page does not do what it should: ${verdict.failed}`);
  process.exitCode = 1;
}
