// TOML with its comments, tables, keys and values told apart. Only colours depend on it: all text is kept as it is.

import { h } from './dom.js';

const VALUE = /("(?:[^"\\]|\\.)*"|'[^']*')|\b(true|false|[+-]?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b|(#.*)$/g;

function value(text, out) {
  let from = 0;
  for (const match of text.matchAll(VALUE)) {
    out.append(
      text.slice(from, match.index),
      h('span', { class: match[1] ? 'string' : match[2] ? 'number' : 'comment', text: match[0] }),
    );
    from = match.index + match[0].length;
  }
  out.append(text.slice(from));
}

/** The text as a fragment of spans. */
export function highlight(text) {
  const out = document.createDocumentFragment();
  for (const line of text.split('\n')) {
    const key = /^(\s*)([\w."'-]+)(\s*=)(.*)$/.exec(line);
    if (/^\s*#/.test(line)) out.append(h('span', { class: 'comment', text: line }));
    else if (/^\s*\[/.test(line)) out.append(h('span', { class: 'section', text: line }));
    else if (key) {
      out.append(key[1], h('span', { class: 'key-name', text: key[2] }), key[3]);
      value(key[4], out);
    } else value(line, out);
    out.append('\n');
  }
  return out;
}
