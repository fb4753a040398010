// The bar on top: the run, its progress, reward and speed, and the state of the connection.

import { $, h, setAttrs, setText } from './dom.js';
import { clock, count, num, percent, seconds } from './format.js';
import { isOver, latest, on, store } from './store.js';

const NOW = [
  ['step', 'Step'],
  ['eta', 'Time left'],
  ['reward', 'Reward'],
  ['tokens', 'Sampled'],
  ['trainer', 'Trainer'],
];
const ENDS = { done: 'is done', stopped: 'was stopped', failed: 'failed' };
const values = new Map();

function run() {
  const { run } = store;
  setText($('run-name'), run.name);
  $('run-name').title = run.folder;
  const version = `minds-actors ${run.version}${run.commit ? ` · ${run.commit}` : ''}`;
  $('foot').replaceChildren(version, ' · ', run.folder, ' · started ', clock(run.started));
  const notices = (run.warnings ?? []).map((text) => h('p', { class: 'notice warn', text }));
  notices.forEach((notice) => (notice.dataset.kind = 'run'));
  $('notices')
    .querySelectorAll('[data-kind=run]')
    .forEach((old) => old.remove());
  $('notices').append(...notices);
  state();
}

function state() {
  const { run, state } = store;
  if (!state) return;
  setText($('run-state'), state.state);
  $('run-state').dataset.state = state.state;
  const total = run?.steps ?? null;
  const share = total ? Math.min(1, state.step / total) : 0;
  const put = (key, text, more = '') => {
    setText(values.get(key).firstChild, text);
    setText(values.get(key).lastChild, more);
  };
  put('step', `${count(state.step)}`, total ? ` of ${count(total)} · ${percent(Math.floor(share * 100) / 100)}` : '');
  put('eta', state.state === 'running' ? seconds(state.eta_s) : '–');
  const reward = latest('env/all/reward/total');
  put('reward', num(reward), trend());
  put('tokens', num(Math.round(state.rates.tokens_sampled ?? 0)), ' tok/s');
  put('trainer', isOver(state) ? 'at rest' : state.trainer);
  const bar = $('progress');
  setAttrs(bar, {
    'aria-valuenow': state.step,
    'aria-valuemax': total ?? 0,
    'aria-valuetext': `step ${state.step} of ${total ?? 'unknown'}`,
  });
  bar.firstElementChild.style.transform = `scaleX(${share})`;
  bar.dataset.state = state.state;
  document.title = `${total ? `${state.step}/${total}` : state.step} · ${run?.name ?? 'minds-actors'}${state.state === 'running' ? '' : ` · ${state.state}`}`;
}

/** How the last ten steps' mean reward compares with that of the ten before. */
function trend() {
  const rewards = store.rows
    .slice(-40)
    .map((row) => row['env/all/reward/total'])
    .filter(Number.isFinite);
  if (rewards.length < 20) return '';
  const mean = (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
  const gain = mean(rewards.slice(-10)) - mean(rewards.slice(-20, -10));
  return gain > 0.005 ? ' ↗' : gain < -0.005 ? ' ↘' : ' →';
}

function link() {
  const { kind, since, retry } = store.link;
  const words = {
    connecting: 'connecting',
    live: 'live',
    late: 'no news',
    lost: 'reconnecting',
    ended: 'closed',
    refused: 'no access',
  };
  const left = retry ? Math.max(0, Math.ceil(retry - Date.now() / 1000)) : 0;
  const node = $('link');
  node.dataset.link = kind;
  document.documentElement.dataset.link = kind;
  setText(node, words[kind]);
  node.title = kind === 'lost' ? `next attempt in ${left} s` : '';
  notice('link', linkNotice(kind, since));
}

function linkNotice(kind, since) {
  if (kind === 'refused')
    return [
      'warn',
      'This page needs its token: open it with the full address that the run printed, including ?token=.',
    ];
  const gone = Date.now() / 1000 - since > 6;
  if (kind === 'ended')
    return [
      'info',
      `The run ${ENDS[store.state.state]} after step ${count(store.state.step)}, and its process has exited. This page shows its state at ${clock(store.state.at)}; \`minds-actors report ${store.run?.folder ?? ''}\` renders the run folder as a page.`,
    ];
  if (kind === 'lost' && gone) {
    const last = store.state ? `Last update: ${clock(store.state.at)}.` : '';
    return [
      'warn',
      `No answer from the run: it may have stopped, or its machine is unreachable. ${last} This page retries automatically.`,
    ];
  }
  return null;
}

function notice(kind, what) {
  const old = $('notices').querySelector(`[data-kind=${kind}]`);
  if (!what) return old?.remove();
  const [level, text] = what;
  if (old && old.textContent === text) return;
  const fresh = h('p', { class: `notice ${level}`, text });
  fresh.dataset.kind = kind;
  if (old) old.replaceWith(fresh);
  else $('notices').prepend(fresh);
}

/** Marks the current section in the navigation. */
function sections() {
  const links = new Map([...document.querySelectorAll('.sections a')].map((a) => [a.hash.slice(1), a]));
  const seen = new Set();
  const watch = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) isIntersecting ? seen.add(target.id) : seen.delete(target.id);
      const now = [...links.keys()].find((id) => seen.has(id));
      for (const [id, a] of links)
        id === now ? a.setAttribute('aria-current', 'true') : a.removeAttribute('aria-current');
      const here = links.get(now);
      const bar = here?.parentElement;
      if (
        here &&
        (here.offsetLeft < bar.scrollLeft || here.offsetLeft + here.offsetWidth > bar.scrollLeft + bar.clientWidth)
      )
        bar.scrollTo({ left: here.offsetLeft - 40 });
    },
    { rootMargin: '-30% 0px -60% 0px' },
  );
  for (const id of links.keys()) watch.observe($(id));
  // An address with a section in it was followed before the sections above had their height.
  const jump = () => {
    if (jump.done || !store.state || !store.run) return;
    jump.done = true;
    const id = location.hash.startsWith('#group=') ? 'rollouts' : location.hash.slice(1);
    requestAnimationFrame(() => links.has(id) && scrollY > 0 && $(id).scrollIntoView({ behavior: 'instant' }));
  };
  on('state run', jump);
}

export function start() {
  for (const [key, label] of NOW) {
    const value = h('dd', null, h('b', { text: '–' }), h('span'));
    values.set(key, value);
    $('stats').append(h('div', { class: `stat ${key}` }, h('dt', { text: label }), value));
  }
  on('run', run);
  on('state rows', state);
  on('link', link);
  link();
  sections();
  // Sections that are jumped to must not hide behind the bar, however many rows it takes.
  new ResizeObserver(() => document.documentElement.style.setProperty('--top', `${$('top').offsetHeight}px`)).observe(
    $('top'),
  );
}
