// Events, checkpoints and the config.

import { $, copyButton, empty, h, memory, setText } from './dom.js';
import { clock, count, many, num } from './format.js';
import { appendMarked } from './marked.js';
import { on, store } from './store.js';
import { highlight } from './toml.js';

const MOST_TEXT = 2000;
let list = null;
let newest = null;
let seen = 0;

function eventRow(event) {
  const level = ['warn', 'error'].includes(event.level) ? event.level : 'info';
  const text = event.text.length > MOST_TEXT ? `${event.text.slice(0, MOST_TEXT)}…` : event.text;
  const time = h('time', { datetime: new Date(event.at * 1000).toISOString(), text: clock(event.at) });
  return h(
    'li',
    { class: `event ${level}` },
    time,
    h('span', { class: 'level', text: level }),
    appendMarked(h('bdi', { class: 'event-text' }), text),
  );
}

/** Newest first; only what is new is made, so that a selection and a place in the list stay. */
function events() {
  const { events } = store;
  if (!events.length) return;
  const all = events.slice().reverse();
  const known = all.indexOf(newest);
  const fresh = known < 0 ? all : all.slice(0, known);
  if (known < 0) list.replaceChildren();
  list.prepend(...fresh.map(eventRow));
  while (list.children.length > events.length) list.lastChild.remove();
  newest = all[0];
  $('event-list').querySelector('.empty')?.remove();
  badges(events);
}

function badges(events) {
  const bad = events.filter((event) => event.level === 'error').length;
  const warned = events.filter((event) => event.level === 'warn').length;
  const badge = $('events-badge');
  badge.hidden = bad + warned === 0;
  badge.dataset.level = bad ? 'error' : 'warn';
  setText(badge, count(bad + warned));
  badge.title = `${bad} errors, ${warned} warnings`;
  if (bad > seen)
    setText($('event-alert'), `Error: ${events.findLast((event) => event.level === 'error').text.slice(0, 200)}`);
  seen = bad;
}

/** A resumed run shows no events from before the resume. */
function nothing() {
  const { first_step: first = 0 } = store.run ?? {};
  const title = $('event-list').querySelector('.empty strong');
  if (first > 0 && title) setText(title, `No events since step ${count(first)}, where this run resumed`);
}

function eventsSection() {
  list = h('ol', { class: 'events', reversed: true, tabindex: '0', 'aria-label': 'Events, newest first' });
  $('event-list').append(
    h('p', { class: 'unseen', id: 'event-alert', role: 'alert' }),
    list,
    empty(
      'No events yet',
      'Checkpoints, retries, failures and the end of the run are listed here.',
    ),
  );
  const box = h('input', { type: 'checkbox', checked: memory.get('warnings-only', false) });
  const show = () => {
    list.classList.toggle('warnings-only', box.checked);
    memory.set('warnings-only', box.checked);
  };
  box.addEventListener('change', show);
  show();
  $('events-bar').append(h('label', null, box, 'warnings and errors only'));
  on('events', events);
  on('run', nothing);
}

let drawn = '';

function checkpoints() {
  const { checkpoints, state, run } = store;
  if (!checkpoints) return;
  const last = state?.checkpoint;
  setText($('checkpoint-hint'), last ? `last saved: step ${count(last.step)}, ${clock(last.at)}` : '');
  const shape = JSON.stringify(checkpoints);
  if (shape === drawn) return;
  drawn = shape;
  if (!checkpoints.length) {
    $('checkpoint-list').replaceChildren(
      empty(
        'No checkpoint yet',
        'One is saved every few steps, as configured, and at the end. A resumed run starts from the newest.',
      ),
    );
    return;
  }
  const path = (text, what) =>
    h('td', null, text ? h('span', { class: 'path' }, h('code', { text }), copyButton(text, what)) : '–');
  const rows = checkpoints
    .slice()
    .reverse()
    .map((saved) =>
      h(
        'tr',
        null,
        h('th', { scope: 'row', text: saved.name }),
        h('td', { class: 'n', text: count(saved.step) }),
        path(saved.state_path, `the path of state ${saved.name}`),
        path(saved.sampler_path, `the path of the sampler weights ${saved.name}`),
      ),
    );
  const head = ['name', 'step', 'state', 'sampler weights'].map((text, i) =>
    h('th', { scope: 'col', class: i === 1 ? 'n' : null, text }),
  );
  $('checkpoint-list').replaceChildren(
    h(
      'div',
      { class: 'scroll tall', tabindex: '0', role: 'region', 'aria-label': 'Checkpoints' },
      h(
        'table',
        null,
        h('caption', { class: 'unseen', text: `Checkpoints of ${run?.name ?? 'the run'}, newest first` }),
        h('thead', null, h('tr', null, head)),
        h('tbody', null, rows),
      ),
    ),
  );
}

function config() {
  const { run } = store;
  const facts = [
    ['model', run.base_model],
    ['service', run.service],
    ['renderer', run.renderer],
    ['loss', run.loss],
    ['batch', `${many(run.groups_per_batch, 'group')} of ${num(run.group_size)}`],
    ['steps', count(run.steps) + (run.first_step ? `, from step ${count(run.first_step)}` : '')],
    [
      'off-policy',
      `${many(run.batches_ahead, 'batch', 'batches')} ahead${run.weights === 'inflight' ? ', sampled by in-flight weights' : ''}, at most ${many(run.max_staleness, 'step')} stale, ${run.staleness === 'drop' ? 'older ones are dropped' : 'stragglers are waited for'}`,
    ],
    ['credits', `${count(run.credits)} groups in flight at most`],
    ['scorers', count(run.scorers)],
    ['folder', run.folder],
    ['started', clock(run.started)],
    ['version', `${run.version}${run.commit ? ` (${run.commit})` : ''}`],
  ];
  const weights = run.environments.reduce((sum, environment) => sum + environment.weight, 0) || 1;
  const shares = run.environments.map(({ name, weight }) =>
    h(
      'tr',
      null,
      h('th', { scope: 'row' }, h('bdi', { text: name })),
      h('td', { class: 'n', text: weight ? `${num((100 * weight) / weights)}\u202f%` : 'evaluated only' }),
    ),
  );
  $('facts').replaceChildren(
    h(
      'dl',
      { class: 'facts' },
      facts.map(([term, value]) => [h('dt', { text: term }), h('dd', { text: value ?? '–' })]),
    ),
    h('table', { class: 'envs' }, h('caption', { text: 'Environments' }), h('tbody', null, shares)),
  );
  $('toml').replaceChildren(
    h('div', { class: 'pane-head' }, h('h3', { text: 'config.toml' }), copyButton(run.config, 'the config')),
    h('pre', { class: 'toml', tabindex: '0', 'aria-label': 'The config' }, highlight(run.config)),
  );
}

export function start() {
  eventsSection();
  $('checkpoint-list').append(
    empty('Checkpoints are listed here', 'The list appears with the first answer of the run.'),
  );
  $('facts').append(empty('Facts of the run', 'Model, service and sizes appear as soon as the run answers.'));
  on('checkpoints state', checkpoints);
  on('run', config);
}
