// The geometry of the pipeline's picture: where boxes, mailboxes and texts stand, in a row on wide screens and in a column on
// narrow ones. Pure: a width goes in, places come out; pipeline.js draws them.

export const STAGES = ['feeder', 'sampler', 'scorer', 'batcher', 'trainer'];
export const MAILBOXES = ['groups', 'rollouts', 'scored', 'batches'];

const at = (x, y, anchor = 'start') => ({ x, y, 'text-anchor': anchor });

/** Below this width the pipeline runs from top to bottom. */
export const NARROW = 820;

export function geometry(width, shadow) {
  return width < NARROW ? column(width, shadow) : row(width, shadow);
}

function row(width, shadow) {
  const box = Math.min(160, Math.max(124, Math.round(width * 0.115)));
  const gap = (width - 2 - 5 * box) / 4;
  const top = 30;
  const height = 116;
  const stages = {};
  const mailboxes = {};
  STAGES.forEach((key, i) => {
    const x = 1 + i * (box + gap);
    stages[key] = {
      box: { x, y: top, width: box, height },
      title: at(x + 14, top + 24),
      big: at(x + 14, top + 56),
      small: at(x + 14, top + 78),
      fail: { x: x + box - (box < 150 ? -6 : 8), y: top + height },
      bar: { x: x + 14, y: top + height - 18, width: box - 28, height: 4 },
      tag: { x: x + box / 2, y: top - 10 },
      short: box < 150,
    };
  });
  MAILBOXES.forEach((key, i) => {
    const x = 1 + (i + 1) * box + i * gap;
    const middle = top + height / 2;
    const pipe = { x: x + 10, y: middle - 12, width: gap - 32, height: 24 };
    mailboxes[key] = {
      pipe,
      name: at(x + gap / 2 - 6, middle - 24, 'middle'),
      depth: at(x + gap / 2 - 6, middle + 32, 'middle'),
      rate: at(x + gap / 2 - 6, middle + 48, 'middle'),
      arrow: arrowRight(x + gap - 6, middle),
      travel: { x: pipe.x, y: middle, dx: pipe.width, dy: 0 },
    };
  });
  let y = top + height;
  if (shadow) {
    const { x } = stages.scorer.box;
    const middle = x + box / 2;
    stages.shadow_trainer = {
      box: { x, y: y + 48, width: box, height: 74 },
      title: at(x + 14, y + 70),
      big: at(x + 14, y + 96),
      small: at(x + box - 14, y + 96, 'end'),
      fail: { x: x + box - 8, y: y + 122 },
      bar: { x: x + 14, y: y + 108, width: box - 28, height: 4 },
      tag: { x: x + box + 64, y: y + 88 },
      short: box < 150,
    };
    mailboxes.measures = {
      pipe: { x: middle + 12, y: y + 19, width: 56, height: 10 },
      name: at(middle - 12, y + 28, 'end'),
      depth: at(middle + 76, y + 28),
      rate: null,
      arrow: `${arrowDown(middle, y + 47)} ${arrowUp(middle, y + 1)} M${middle} ${y + 8}V${y + 40}`,
      travel: { x: middle, y: y + 6, dx: 0, dy: 36 },
    };
    y += 122;
  }
  const back = y + 34;
  const [from, to] = [stages.trainer.box.x + box / 2, stages.feeder.box.x + box / 2];
  const bottom = top + height;
  const credits = {
    path: `M${from} ${bottom}V${back - 10}q0 10 -10 10H${to + 10}q-10 0 -10 -10V${bottom + 8} ${arrowUp(to, bottom + 1)}`,
    // The cells end a little left of the middle, and their words begin there.
    cells: { x: width / 2 - 10, y: back - 6, size: 12, gap: 4, centre: true, room: width * 0.34 },
    label: at(width / 2 + 2, back + 4),
  };
  return { vertical: false, width, height: back + 14, stages, mailboxes, credits };
}

function column(width, shadow) {
  const height = 66;
  const gap = 58;
  const stages = {};
  const mailboxes = {};
  let y = 1;
  const credits = {
    path: '',
    cells: { x: 14, y: y + 24, size: 10, gap: 3, centre: false, room: width - 28 },
    label: at(14, y + 14),
  };
  y += 50;
  const stage = (key, indent = 0) => {
    const x = 1 + indent;
    const w = width - 2 - indent;
    stages[key] = {
      box: { x, y, width: w, height },
      title: at(x + 14, y + 24),
      big: at(x + w - 14, y + 26, 'end'),
      small: at(x + 14, y + 44),
      fail: { x: x + w - 12, y: y + height },
      bar: { x: x + 14, y: y + height - 11, width: w - 28, height: 4 },
      tag: { x: x + w / 2, y: y + 2 },
      short: false,
    };
    y += height;
  };
  const mailbox = (key, indent = 0) => {
    const x = 22 + indent;
    mailboxes[key] = {
      pipe: { x: x + 20, y: y + 30, width: width - x - 36, height: 12 },
      name: at(x + 20, y + 22),
      depth: at(width - 16, y + 22, 'end'),
      rate: null,
      arrow: `M${x} ${y + 3}V${y + gap - 9} ${arrowDown(x, y + gap - 2)}`,
      travel: { x, y: y + 4, dx: 0, dy: gap - 16 },
    };
    y += gap;
  };
  stage('feeder');
  mailbox('groups');
  stage('sampler');
  mailbox('rollouts');
  stage('scorer');
  if (shadow) {
    mailbox('measures', 24);
    stage('shadow_trainer', 24);
  }
  mailbox('scored');
  stage('batcher');
  mailbox('batches');
  stage('trainer');
  if (shadow) {
    // The scored go past the ShadowTrainer, on the left of it.
    const { scored } = mailboxes;
    const bottom = stages.scorer.box.y + height;
    scored.arrow = `M12 ${bottom + 3}V${mailboxes.scored.travel.y + gap - 13} ${arrowDown(12, mailboxes.scored.travel.y + gap - 6)}`;
    scored.travel = { x: 12, y: bottom + 4, dx: 0, dy: scored.travel.y + gap - 18 - bottom };
  }
  return { vertical: true, width, height: y + 1, stages, mailboxes, credits };
}

const arrowRight = (x, y) => `M${x - 8} ${y - 6}L${x} ${y}L${x - 8} ${y + 6}`;
const arrowDown = (x, y) => `M${x - 6} ${y - 8}L${x} ${y}L${x + 6} ${y - 8}`;
const arrowUp = (x, y) => `M${x - 6} ${y + 8}L${x} ${y}L${x + 6} ${y + 8}`;
