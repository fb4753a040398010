// Throughput against the bound: a step can be no faster than the busiest of training, sampling and scoring, so the gap
// between a step's seconds and the longest busy time is what better overlap could still save.

import { $, h, s, setAttrs, setText } from './dom.js';
import { Chart } from './charts.js';
import { count, many, NONE, percent, seconds } from './format.js';
import { on, store } from './store.js';
import { trainerShares } from './limit.js';

const BUSY = [
  ['training', 'time/training_busy', '--training', []],
  ['sampling', 'time/sampling_busy', '--sampling', [7, 4]],
  ['scoring', 'time/scoring_busy', '--scoring', [3, 3]],
  ['shadow', 'shadow/busy_s', '--shadow', [3, 3]],
];
const OUTCOMES = [
  ['trained', '--training'],
  ['in_flight', '--sampling'],
  ['filtered', '--quiet'],
  ['dropped', '--warn'],
  ['failed', '--bad'],
];
const DOING = {
  trains: 'trains',
  'waits for sampling': 'sampling',
  'waits for scoring': 'scoring',
  'waits for the export': 'export',
  waits: 'waits',
};
const STRIP_S = 120;

const has = (key) => store.rows.slice(-30).some((row) => Number.isFinite(row[key]));
const boundOf = (row) => Math.max(...BUSY.slice(0, 3).map(([, key]) => (Number.isFinite(row[key]) ? row[key] : 0)));

function series() {
  const busy = BUSY.filter(([name, key]) => name !== 'shadow' || has(key));
  return [
    { key: 'time/total', label: 'step', colour: '--ink', width: 2.25, value: (row) => row['time/total'] },
    { key: 'bound', label: 'bound', colour: '--muted', width: 1, value: boundOf },
    ...busy.map(([label, key, colour, dash]) => ({ key, label, colour, dash, width: 1.5, value: (row) => row[key] })),
  ];
}

/** How close the last ten steps came to their bound. */
function closeness() {
  const rows = store.rows.slice(-10).filter((row) => row['time/total'] > 0 && boundOf(row) > 0);
  if (!rows.length) return null;
  const sum = (f) => rows.reduce((total, row) => total + f(row), 0);
  return Math.min(1, sum(boundOf) / sum((row) => row['time/total']));
}

const parts = {};

function bars() {
  const rows = ['sampling', 'scoring', 'training', 'shadow', 'overlap'].map((name) => {
    const bar = h('span', { class: `meter-fill ${name}` });
    const value = h('td', { class: 'n', text: NONE });
    const label = { shadow: 'measuring', overlap: 'overlap' }[name] ?? name;
    const row = h(
      'tr',
      { title: name === 'overlap' ? 'share of the training time in which sampling or scoring went on' : null },
      h('th', { scope: 'row', text: label }),
      h('td', { class: 'meter-cell' }, h('span', { class: 'meter' }, bar)),
      value,
    );
    parts[name] = { row, bar, value };
    return row;
  });
  return h(
    'table',
    { class: 'meters' },
    h('caption', { class: 'unseen', text: 'Busy shares of the last 30 seconds' }),
    h('tbody', null, rows),
  );
}

function build() {
  parts.close = h('strong', { text: NONE });
  parts.closeText = h('span', { class: 'hint' });
  parts.strip = s('svg', { class: 'strip', viewBox: `0 0 ${STRIP_S} 10`, preserveAspectRatio: 'none', role: 'img' });
  parts.span = h('h3', { text: 'The trainer' });
  parts.doing = h('p', { class: 'keys' });
  parts.stack = h(
    'div',
    { class: 'stacked', 'aria-hidden': 'true' },
    OUTCOMES.map(([name, colour]) => {
      const piece = h('span');
      piece.style.background = `var(${colour})`;
      parts[`v-${name}`] = piece;
      return piece;
    }),
  );
  parts.counts = h('p', { class: 'keys' });
  $('shares').append(
    h('div', { class: 'big-number' }, parts.close, parts.closeText),
    h('div', null, h('h3', { text: 'Busy, last 30 s' }), bars()),
    h('div', null, parts.span, parts.strip, parts.doing),
    h('div', null, h('h3', { text: 'Outcomes of the groups' }), parts.stack, parts.counts),
  );
}

const key = (colour, text) => {
  const mark = h('i', { class: 'dot' });
  mark.style.background = `var(${colour})`;
  return h('span', { class: 'key' }, mark, text);
};

const DOING_COLOURS = {
  trains: '--training',
  sampling: '--sampling',
  scoring: '--scoring',
  export: '--shadow',
  waits: '--line',
};

function strip(history) {
  const now = history.at(-1).at;
  setText(parts.span, `The trainer, last ${seconds(Math.min(STRIP_S, Math.max(1, Math.round(now - history[0].at))))}`);
  const runs = [];
  for (const state of history) {
    const what = DOING[state.trainer] ?? 'waits';
    const from = Math.max(0, STRIP_S - (now - state.at) - 1);
    const last = runs.at(-1);
    if (last && last.what === what && from - last.to < 2.5) last.to = from + 1;
    else runs.push({ what, from: last && from - last.to < 2.5 ? last.to : from, to: from + 1 });
  }
  parts.strip.replaceChildren(
    ...runs.map(({ what, from, to }) =>
      s('rect', { x: from.toFixed(1), y: 0, width: (to - from).toFixed(1), height: 10, class: `do-${what}` }),
    ),
  );
  const shares = trainerShares(history, STRIP_S);
  parts.doing.replaceChildren(
    ...shares.map(({ what, share }) => key(DOING_COLOURS[DOING[what] ?? 'waits'], `${what} ${percent(share)}`)),
  );
  parts.strip.setAttribute(
    'aria-label',
    `What the trainer did: ${shares.map(({ what, share }) => `${what} ${percent(share)}`).join(', ')}`,
  );
}

function draw() {
  const { state, history } = store;
  const close = closeness();
  setText(parts.close, percent(close));
  setText(
    parts.closeText,
    close === null ? 'of the bound, once steps are done' : 'of the bound’s speed, last 10 steps',
  );
  if (!state) return;
  const shadow = state.stages.some((stage) => stage.name === 'shadow_trainer');
  for (const name of ['sampling', 'scoring', 'training', 'shadow', 'overlap']) {
    const share = state.busy?.[name];
    parts[name].row.hidden = name === 'shadow' && !shadow;
    setText(parts[name].value, percent(share));
    parts[name].bar.style.transform = `scaleX(${Math.min(1, Math.max(0, share ?? 0))})`;
  }
  strip(history);
  const { counts } = state;
  const total = Math.max(1, counts.opened);
  for (const [name] of OUTCOMES) parts[`v-${name}`].style.width = `${(100 * (counts[name] ?? 0)) / total}%`;
  const said = OUTCOMES.filter(([name]) => counts[name] > 0 || name === 'trained').map(([name, colour]) =>
    key(colour, `${count(counts[name])} ${name.replace('_', ' ')}`),
  );
  parts.counts.replaceChildren(h('span', { class: 'key', text: `${many(counts.opened, 'group')} opened:` }), ...said);
  setAttrs(parts.stack, { title: `${counts.opened} groups opened` });
}

export function start() {
  const chart = new Chart({
    title: 'Throughput against the bound',
    hint: 'seconds per step; shaded: above the longest busy time',
    unit: seconds,
    series,
    // Between the step's own line (1) and the bound (2).
    bands: () => [{ series: [1, 2] }],
    height: 268,
  });
  $('bound-chart').append(chart.root);
  build();
  on('state rows', draw);
  draw();
}
