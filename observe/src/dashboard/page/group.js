// One group in full: the prompt, every member with its reward and what it is made of, its advantage and its turns.
//
// `#group=137` in the address opens it. A member's turns are made when it is opened for the first time.

import { $, h } from './dom.js';
import { count, many, stalenessText } from './format.js';
import { focusList, neighbour, onOpen, select, selection, summaryOf } from './groups.js';
import { get } from './live.js';
import { modelText } from './marked.js';
import { forget, member, view, views } from './member.js';
import { on } from './store.js';
import { legend } from './tokens.js';

const HASH = /^#group=(.+)$/;
/** Whether the page was opened with the group in its address: the focus then stays where it is. */
let linked = false;
/** The group on the page, with its answer. */
let shown = null;

const pane = () => $('group');

const nav = (label, title, act) =>
  h('button', { type: 'button', class: 'icon', 'aria-label': title, title, onclick: act, text: label });

function head(id) {
  const go = (by) => {
    const next = neighbour(id, by);
    if (next) location.replace(`#group=${encodeURIComponent(next)}`);
  };
  return h(
    'header',
    { class: 'pane-head group-head' },
    h('h3', { id: 'group-title', tabindex: '-1', text: `Group ${id}` }),
    h('span', { class: 'hint', id: 'group-facts' }),
    h('span', { class: 'push' }),
    nav('↑', 'Newer group (k)', () => go(-1)),
    nav('↓', 'Older group (j)', () => go(1)),
    nav('×', 'Close (Escape)', close),
  );
}

function message({ role, content }) {
  return h(
    'li',
    { class: `message ${['system', 'user', 'assistant', 'tool'].includes(role) ? role : 'other'}` },
    h('span', { class: 'role' }, h('bdi', { text: role })),
    modelText(String(content ?? ''), { limit: 1200 }),
  );
}

function prompt(messages) {
  return h(
    'details',
    { class: 'block', open: messages.length <= 3 },
    h(
      'summary',
      null,
      h('h4', { text: 'Prompt' }),
      h('span', { class: 'hint', text: many(messages.length, 'message') }),
    ),
    h('ol', { class: 'messages' }, messages.map(message)),
  );
}

function show(id, group) {
  forget();
  const members = [...(group.members ?? [])].sort(
    (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity) || a.member - b.member,
  );
  const rewards = members.map((m) => m.reward).filter(Number.isFinite);
  const scale = [Math.min(0, ...rewards), Math.max(0, ...rewards)];
  if (scale[0] === scale[1]) scale[1] = scale[0] + 1;
  const spread = Math.max(1e-9, ...members.map((m) => Math.abs(m.advantage ?? 0)));
  const body = h(
    'div',
    { class: 'group-body', 'data-view': view },
    h('div', { id: 'group-notes' }),
    prompt(group.prompt ?? []),
    h(
      'div',
      { class: 'block-head' },
      h('h4', { text: 'Members' }),
      h('span', { class: 'hint', text: 'by reward, its bar on the scale of this group; then the advantage' }),
      h('span', { class: 'push' }),
      views(),
    ),
    legend(),
    h(
      'div',
      { class: 'members' },
      members.map((m, i) => member(m, scale, spread, i === 0)),
    ),
  );
  pane().replaceChildren(head(id), body);
  shown = { id, group };
  annotate();
}

/** Facts from the list of groups, which may arrive after the group. */
function annotate() {
  if (shown === null || shown.id !== selection.id) return;
  const { id, group } = shown;
  const summary = summaryOf(id);
  const notes = [];
  if (summary?.missing)
    notes.push(
      h('p', {
        class: 'notice warn',
        text: `${many(summary.missing, 'member')} without a reward: computing it failed, so training skipped ${summary.missing === 1 ? 'it' : 'them'}.`,
      }),
    );
  if (summary?.constant)
    notes.push(h('p', { class: 'notice info', text: 'All rewards are equal: the group has no gradient.' }));
  $('group-notes').replaceChildren(...notes);
  const facts = [
    group.environment,
    `step ${count(group.step)}`,
    `item ${count(group.item)}`,
    summary ? stalenessText(summary) : null,
  ].filter(Boolean);
  $('group-facts').replaceChildren(h('bdi', { text: facts.join(' · ') }));
}

async function open(id) {
  const fresh = selection.id !== id;
  selection.id = id;
  $('inspector').classList.add('open');
  document.documentElement.classList.add('inspecting');
  pane().hidden = false;
  cover();
  if (fresh) shown = null;
  if (fresh) pane().replaceChildren(head(id), h('p', { class: 'empty', text: 'Asking for the group…' }));
  select(id);
  try {
    const group = await get(`/api/groups/${encodeURIComponent(id)}`);
    if (selection.id !== id) return;
    show(id, group);
  } catch (error) {
    if (selection.id !== id) return;
    pane().replaceChildren(
      head(id),
      h(
        'div',
        { class: 'empty' },
        h('strong', { text: 'This group cannot be shown' }),
        h('span', { text: `${error.message}.` }),
      ),
    );
  }
  $('rollouts').scrollIntoView({ block: 'start', behavior: linked ? 'instant' : 'auto' });
  if (!linked) $('group-title').focus({ preventScroll: true });
  linked = false;
}

function close() {
  if (selection.id === null) return;
  history.replaceState(null, '', '#rollouts');
  hide();
  focusList();
}

function hide() {
  select(null);
  forget();
  $('inspector').classList.remove('open');
  document.documentElement.classList.remove('inspecting');
  pane().hidden = true;
  pane().replaceChildren();
  shown = null;
  cover();
}

const covering = matchMedia('(max-width: 1080px)');

/** Where the group covers the page, what is behind it cannot be reached by keyboard either. */
function cover() {
  const covered = selection.id !== null && covering.matches;
  for (const node of document.querySelectorAll(
    '.skip, #top, main > section:not(#rollouts), #rollouts > .head, #groups, #foot',
  ))
    node.inert = covered;
}

function route() {
  const found = HASH.exec(location.hash);
  if (found) {
    let id = found[1];
    try {
      id = decodeURIComponent(id);
    } catch {
      // a mistyped address names no group; the server's answer reports that
    }
    if (id !== selection.id) void open(id);
  } else if (selection.id !== null) hide();
}

function keys(event) {
  if (event.key === 'Escape' && selection.id !== null && !event.target.value) {
    event.preventDefault();
    close();
    return;
  }
  const busy = event.target.closest?.('input, select, textarea, .tokens, .list, .plot');
  if (selection.id === null || busy || event.ctrlKey || event.metaKey || event.altKey) return;
  const by = { j: 1, k: -1 }[event.key];
  const next = by && neighbour(selection.id, by);
  if (next) {
    event.preventDefault();
    location.replace(`#group=${encodeURIComponent(next)}`);
  }
}

export function start() {
  onOpen((id) => {
    if (selection.id === id) $('group-title')?.focus();
    else location.hash = `group=${encodeURIComponent(id)}`;
  });
  covering.addEventListener('change', cover);
  addEventListener('hashchange', route);
  document.addEventListener('keydown', keys);
  linked = HASH.test(location.hash);
  if (linked) on('run', once(route));
  on('listed', () => {
    if (selection.id === null) return;
    select(selection.id);
    annotate();
  });
}

function once(act) {
  let done = false;
  return () => {
    if (done) return;
    done = true;
    act();
  };
}
