// Light or dark, chosen before anything is painted: what was chosen here before, else what the system says.
// A plain script, loaded in the head; the button's behaviour follows when the page is there.
'use strict';
(() => {
  const KEY = 'minds-theme';
  const root = document.documentElement;
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const remembered = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden; the system's choice then holds
    }
  };
  const icons = {
    light:
      'M12 4V2M12 22v-2M4 12H2M22 12h-2M6.3 6.3 4.9 4.9M19.1 19.1l-1.4-1.4M6.3 17.7l-1.4 1.4M19.1 4.9l-1.4 1.4M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8z',
    dark: 'M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z',
    auto: 'M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18',
  };
  const order = ['auto', 'light', 'dark'];
  let choice = order.includes(remembered()) ? remembered() : 'auto';

  function apply() {
    const theme = choice === 'auto' ? (dark.matches ? 'dark' : 'light') : choice;
    if (root.dataset.theme !== theme) {
      root.dataset.theme = theme;
      dispatchEvent(new Event('themechange'));
    }
  }

  function label(button) {
    const next = order[(order.indexOf(choice) + 1) % order.length];
    const words = { auto: 'as the system', light: 'light', dark: 'dark' };
    button.setAttribute('aria-label', `Theme: ${words[choice]}. Change to ${words[next]}`);
    button.title = `Theme: ${words[choice]}`;
    const ns = 'http://www.w3.org/2000/svg';
    const svg = document.createElementNS(ns, 'svg');
    svg.setAttribute('viewBox', '0 0 24 24');
    svg.setAttribute('aria-hidden', 'true');
    const path = document.createElementNS(ns, 'path');
    path.setAttribute('d', icons[choice]);
    svg.append(path);
    button.replaceChildren(svg);
  }

  apply();
  dark.addEventListener('change', apply);
  addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    label(button);
    button.addEventListener('click', () => {
      choice = order[(order.indexOf(choice) + 1) % order.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // not remembered, but in force until the page is left
      }
      apply();
      label(button);
    });
  });
})();
