// The workers of a run with a broker: its jobs, and the load and problems of each worker. Hidden in other runs.

import { $, setText } from './dom.js';
import { count, many, seconds } from './format.js';
import { put } from './number-table.js';
import { on, store } from './store.js';

/** What the workers do, or why they do nothing. */
function summary(jobs) {
  if (!jobs.connected) return 'The broker is unreachable: jobs and results wait.';
  if (!jobs.workers.some((worker) => worker.serves.length)) {
    return jobs.workers.length ? 'No worker can serve an environment.' : 'No worker has joined: jobs wait.';
  }
  const places = jobs.workers.reduce((sum, worker) => sum + worker.concurrency, 0);
  const running = jobs.workers.reduce((sum, worker) => sum + worker.running, 0);
  return `${many(jobs.workers.length, 'worker')}, ${count(running)} of ${count(places)} slots busy`;
}

function row(worker) {
  const problems = worker.problems.map(([environment, problem]) => `${environment}: ${problem}`);
  return [
    worker.name,
    `${count(worker.running)} of ${count(worker.concurrency)}`,
    count(worker.done),
    worker.done ? seconds(worker.job_s) : '–',
    `${Math.round(100 * worker.idle)}%`,
    worker.program,
    worker.serves.join(', ') || '–',
    problems.join('; ') || '–',
  ];
}

function show() {
  const jobs = store.state?.workers;
  for (const part of [$('workers'), $('workers-link')]) part.hidden = !jobs;
  if (!jobs) return;
  setText($('workers-hint'), summary(jobs));
  const total = [jobs.queued, jobs.running, jobs.done, jobs.redelivered, jobs.dead].map(count);
  const broker = jobs.connected ? 'connected' : 'unreachable';
  put($('job-table'), 'Jobs', ['broker', 'queued', 'running', 'done', 'redelivered', 'dead letters'], [[broker, ...total]]);
  const heads = ['worker', 'running', 'done', 'time a job', 'idle', 'version', 'serves', 'cannot serve'];
  put($('worker-table'), 'Workers', heads, jobs.workers.map(row));
}

export function start() {
  on('state', show);
}
