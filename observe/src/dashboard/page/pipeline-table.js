// The numbers behind the picture as two tables, exact and readable by screen readers.

import { $ } from './dom.js';
import { count, seconds } from './format.js';
import { TITLES } from './limit.js';
import { put } from './number-table.js';

/** Keeps the tables as the state is, while they are open. */
export function pipelineTables(state) {
  const place = $('pipeline-table');
  if (!place.parentElement.open) return;
  const stages = state.stages.map((stage) => [
    TITLES[stage.name] ?? stage.name,
    count(stage.busy),
    count(stage.done),
    count(stage.failed),
  ]);
  put(place, 'Stages', ['stage', 'busy', 'done', 'failed'], stages);
  const mailboxes = state.mailboxes.map((mailbox) => [
    mailbox.name,
    count(mailbox.depth),
    count(mailbox.capacity),
    count(mailbox.sent),
    seconds(mailbox.waited_s),
    count(mailbox.lost),
  ]);
  put(place, 'Mailboxes', ['mailbox', 'depth', 'capacity', 'sent', 'waited', 'lost'], mailboxes);
}
