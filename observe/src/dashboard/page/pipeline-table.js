// The numbers behind the picture as two tables, exact and readable by screen readers.

import { $, h, setText } from './dom.js';
import { count, seconds } from './format.js';
import { TITLES } from './limit.js';

const tables = new Map();

function table(caption, heads) {
  const body = h('tbody');
  const root = h(
    'div',
    { class: 'scroll' },
    h(
      'table',
      null,
      h('caption', { text: caption }),
      h(
        'thead',
        null,
        h(
          'tr',
          null,
          heads.map((head, i) => h('th', { scope: 'col', class: i ? 'n' : null, text: head })),
        ),
      ),
      body,
    ),
  );
  $('pipeline-table').append(root);
  return body;
}

function put(name, caption, heads, rows) {
  if (!tables.has(name)) tables.set(name, table(caption, heads));
  const body = tables.get(name);
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach((cells, i) => {
    const row =
      body.rows[i] ??
      body.appendChild(
        h(
          'tr',
          null,
          h('th', { scope: 'row' }),
          cells.slice(1).map(() => h('td', { class: 'n' })),
        ),
      );
    cells.forEach((cell, j) => setText(row.cells[j], cell));
  });
}

/** Jobs and workers of a run with a broker. */
function workerTables(jobs) {
  const total = [
    jobs.connected ? 'connected' : 'away',
    count(jobs.queued),
    count(jobs.running),
    count(jobs.done),
    count(jobs.redelivered),
    count(jobs.dead),
  ];
  put('jobs', 'Jobs', ['broker', 'queued', 'running', 'done', 'handed out again', 'dead letters'], [total]);
  const workers = jobs.workers.map((worker) => [
    worker.name,
    `${count(worker.running)} of ${count(worker.concurrency)}`,
    count(worker.done),
    worker.done ? seconds(worker.job_s) : '–',
    `${Math.round(100 * worker.idle)} %`,
    worker.problems.length ? worker.problems.map(([name]) => `not ${name}`).join(', ') : worker.serves.join(', '),
  ]);
  put('workers', 'Workers', ['worker', 'running', 'done', 'seconds a job', 'idle', 'serves'], workers);
}

/** Keeps the tables as the state is, while they are open. */
export function pipelineTables(state) {
  if (!$('pipeline-table').parentElement.open) return;
  const stages = state.stages.map((stage) => [
    TITLES[stage.name] ?? stage.name,
    count(stage.busy),
    count(stage.done),
    count(stage.failed),
  ]);
  put('stages', 'Stages', ['stage', 'busy', 'done', 'failed'], stages);
  const mailboxes = state.mailboxes.map((mailbox) => [
    mailbox.name,
    count(mailbox.depth),
    count(mailbox.capacity),
    count(mailbox.sent),
    seconds(mailbox.waited_s),
    count(mailbox.lost),
  ]);
  put('mailboxes', 'Mailboxes', ['mailbox', 'depth', 'capacity', 'sent', 'waited', 'lost'], mailboxes);
  if (state.workers) workerTables(state.workers);
}
