// The list of recent groups. Only the rows in sight exist, so its length costs nothing; it is one stop for Tab, and
// arrows or j and k move in it.

import { $, empty, h, setAttrs, setText } from './dom.js';
import { count, many, num, stalenessText } from './format.js';
import { get } from './live.js';
import { modelLine } from './marked.js';
import { on, store, notify } from './store.js';

const AHEAD = 6;
const WAIT = 'Groups appear here with their prompts, completions and rewards when the first step is done.';
const RESUMED = 'Groups of the next steps appear here.';
const WRITTEN = {
  all: 'Groups of earlier steps are in the run folder, under rollouts/; the report shows some of them.',
  sample: 'The run folder has one group of each environment and step, under rollouts/; the report shows some of them.',
  off: 'The run folder has no groups: the config turns rollouts off.',
};
const ASK_EVERY_MS = 1500;
export const selection = { id: null };

let groups = [];
let shown = [];
let cursor = null;
let asked = 0;
let timer = 0;
let loaded = false;
let near = false;
let stale = false;
let list;
let inner;
let controls;
let openGroup = () => {};
const rows = new Map();

const rowHeight = () => (matchMedia('(max-width: 700px)').matches ? 76 : 44);

/** What is known of a group from the list. */
export const summaryOf = (id) => groups.find((group) => group.id === id) ?? null;

/** The group `by` places further down the list. */
export function neighbour(id, by) {
  const at = shown.findIndex((group) => group.id === id);
  return at < 0 ? null : (shown[at + by]?.id ?? null);
}

/** The lowest and the highest reward in the list: the scale of its bars. */
export function rewardScale() {
  let [low, high] = [0, 0];
  for (const { reward_min, reward_max } of groups) {
    if (Number.isFinite(reward_min)) low = Math.min(low, reward_min);
    if (Number.isFinite(reward_max)) high = Math.max(high, reward_max);
  }
  return high > low ? [low, high] : [low, low + 1];
}

function spread(group) {
  const [low, high] = rewardScale();
  const at = (x) => `${((100 * (x - low)) / (high - low)).toFixed(1)}%`;
  const box = h('span', { class: 'spread', 'aria-hidden': 'true' });
  if (Number.isFinite(group.reward_mean)) {
    const range = h('i', { class: 'range' });
    range.style.left = at(group.reward_min);
    range.style.right = `${(100 - (100 * (group.reward_max - low)) / (high - low)).toFixed(1)}%`;
    const mean = h('i', { class: 'mean' });
    mean.style.left = at(group.reward_mean);
    box.append(range, mean);
  }
  return box;
}

function row(group) {
  const flags = [
    group.constant && h('span', { class: 'flag', title: 'all rewards are equal: no gradient', text: 'constant' }),
    group.missing > 0 &&
      h('span', { class: 'flag bad', title: 'members without a reward', text: `${count(group.missing)} missing` }),
  ];
  const node = h(
    'div',
    { class: 'row', role: 'option', id: `g-${group.id}`, 'aria-selected': 'false' },
    h('span', { class: 'id', text: `#${group.id}` }),
    h('span', { class: 'step', text: `step ${count(group.step)}` }),
    h('bdi', { class: 'env', text: group.environment }),
    spread(group),
    h('span', { class: 'reward', text: num(group.reward_mean) }),
    h('span', {
      class: 'stale',
      title: 'steps between the sampling weights and the trained weights',
      text: stalenessText(group),
    }),
    h('span', { class: 'prompt' }, modelLine(group.prompt ?? '')),
    h('span', { class: 'flags' }, flags),
  );
  node.addEventListener('click', () => {
    move(group.id);
    openGroup(group.id);
  });
  return node;
}

/** Creates the visible rows and removes the others. */
function render() {
  const height = rowHeight();
  inner.style.height = `${shown.length * height}px`;
  const first = Math.max(0, Math.floor(list.scrollTop / height) - AHEAD);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / height) + AHEAD);
  const wanted = new Set();
  for (let i = first; i < last; i++) {
    const group = shown[i];
    wanted.add(group.id);
    let node = rows.get(group.id);
    if (!node) {
      node = row(group);
      rows.set(group.id, node);
      inner.append(node);
    }
    node.style.transform = `translateY(${i * height}px)`;
    setAttrs(node, {
      'aria-setsize': shown.length,
      'aria-posinset': i + 1,
      'aria-selected': group.id === selection.id,
    });
    node.classList.toggle('cursor', group.id === cursor);
  }
  for (const [id, node] of rows) {
    if (!wanted.has(id)) {
      node.remove();
      rows.delete(id);
    }
  }
  if (cursor && rows.has(cursor)) list.setAttribute('aria-activedescendant', `g-${cursor}`);
  else list.removeAttribute('aria-activedescendant');
}

function move(id) {
  cursor = id;
  const at = shown.findIndex((group) => group.id === id);
  const height = rowHeight();
  if (at >= 0) {
    if (at * height < list.scrollTop) list.scrollTop = at * height;
    if ((at + 1) * height > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * height - list.clientHeight;
  }
  render();
}

/** Marks the group that is open, and brings the list to it. */
export function select(id) {
  selection.id = id;
  if (id !== null) move(id);
  else render();
}

export const focusList = () => list.focus({ preventScroll: true });

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const page = Math.max(1, Math.floor(list.clientHeight / rowHeight()) - 1);
  const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[
    event.key
  ];
  if (by !== undefined && shown.length) {
    event.preventDefault();
    const at = shown.findIndex((group) => group.id === cursor);
    const to = at < 0 && Number.isFinite(by) ? 0 : Math.min(shown.length - 1, Math.max(0, at + by));
    move(shown[to].id);
  } else if ((event.key === 'Enter' || event.key === ' ') && cursor) {
    event.preventDefault();
    openGroup(cursor);
  }
}

function filter() {
  const [mixed, text] = [controls.mixed.checked, controls.find.value.trim().toLowerCase()];
  const before = shown[Math.floor(list.scrollTop / rowHeight())]?.id;
  shown = groups.filter(
    (group) =>
      (!mixed || !group.constant) &&
      (!text || `#${group.id} step ${group.step} ${group.prompt ?? ''}`.toLowerCase().includes(text)),
  );
  setText(controls.said, loaded ? many(shown.length, 'group') : '');
  const none = list.parentElement.querySelector('.empty');
  none.hidden = shown.length > 0;
  list.parentElement.classList.toggle('none', shown.length === 0);
  const [what, more] = groups.length ? ['No group matches', 'Change the filter above.'] : nothing();
  none.replaceChildren(h('strong', { text: what }), h('span', { text: more }));
  // New groups are inserted at the top: a reader further down keeps the scroll position.
  if (list.scrollTop > 0 && before) {
    const now = shown.findIndex((group) => group.id === before);
    if (now > 0) list.scrollTop = now * rowHeight() + (list.scrollTop % rowHeight());
  }
  render();
}

/** Why the list is empty: a resumed run does not keep groups from before the resume here. */
function nothing() {
  const { first_step: first = 0, rollouts } = store.run ?? {};
  return first > 0
    ? [`No group is trained since step ${count(first)}, where this run resumed`, `${RESUMED} ${WRITTEN[rollouts] ?? ''}`]
    : ['No group is trained yet', WAIT];
}

async function ask() {
  clearTimeout(timer);
  timer = 0;
  asked = Date.now();
  const env = controls.env.value;
  try {
    const answer = await get(env ? `/api/groups?env=${encodeURIComponent(env)}` : '/api/groups');
    if (controls.env.value !== env) return;
    const scale = rewardScale().join();
    groups = answer.map((group) => ({ ...group, id: String(group.id) }));
    loaded = true;
    if (rewardScale().join() !== scale) {
      for (const node of rows.values()) node.remove(); // the bars have another scale now
      rows.clear();
    }
    filter();
    notify('listed');
  } catch {
    // the connection reports the error, and reconnecting requests it again
  }
}

/** Requests the list soon, or when it is scrolled near if it is far out of sight. */
function askSoon() {
  stale = loaded && !near;
  if (!stale && !timer) timer = setTimeout(ask, Math.max(0, asked + ASK_EVERY_MS - Date.now()));
}

function environments() {
  const names = (store.run?.environments ?? []).map((environment) => environment.name);
  const chosen = controls.env.value;
  controls.env.replaceChildren(
    h('option', { value: '', text: 'all environments' }),
    ...names.map((name) => h('option', { value: name, text: name, selected: name === chosen })),
  );
  controls.env.closest('label').hidden = names.length < 2;
}

export function start() {
  controls = {
    env: h('select', { 'aria-label': 'Environment' }),
    mixed: h('input', { type: 'checkbox' }),
    find: h('input', { type: 'search', placeholder: 'find in prompts', 'aria-label': 'Find in prompts', size: '16' }),
    said: h('span', { class: 'said', role: 'status' }),
  };
  $('groups-bar').append(
    controls.said,
    h('label', null, controls.find),
    h('label', null, controls.env),
    h('label', null, controls.mixed, 'hide constant'),
  );
  $('groups-bar').addEventListener('submit', (event) => event.preventDefault());
  inner = h('div', { class: 'rows', role: 'presentation' });
  list = h(
    'div',
    { class: 'list', role: 'listbox', tabindex: '0', 'aria-label': 'Groups that were trained, newest first' },
    inner,
  );
  $('groups').append(
    list,
    empty('No group is trained yet', WAIT),
  );
  list.addEventListener('scroll', render, { passive: true });
  list.addEventListener('keydown', keys);
  list.addEventListener('focus', () => {
    if (!cursor && shown.length) move(selection.id ?? shown[0].id);
  });
  controls.env.addEventListener('change', ask);
  controls.mixed.addEventListener('change', filter);
  controls.find.addEventListener('input', filter);
  new ResizeObserver(render).observe(list);
  const watch = new IntersectionObserver(
    ([entry]) => {
      near = entry.isIntersecting;
      if (near && stale) askSoon();
    },
    { rootMargin: '400px' },
  );
  watch.observe(list);
  on('run', environments);
  on('groups', askSoon);
}

/** Who opens a group. */
export function onOpen(open) {
  openGroup = open;
}
