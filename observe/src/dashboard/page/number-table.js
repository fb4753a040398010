// Tables of numbers that are built once and then only changed, so that a second costs a few texts.

import { h, setText } from './dom.js';

const bodies = new Map();

function table(place, caption, heads) {
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
  place.append(root);
  return body;
}

/** Shows rows of text under these heads. The caption names the table, which is made on the first call. */
export function put(place, caption, heads, rows) {
  if (!bodies.has(caption)) bodies.set(caption, table(place, caption, heads));
  const body = bodies.get(caption);
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
