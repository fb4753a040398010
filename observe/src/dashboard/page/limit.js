// Which stage limits the pipeline, and the evidence. Pure: readings in, the limiting stage out.

/** Mailboxes from the end of the pipeline to its start: the last full one is the bottleneck. The one of batches says nothing
    that the trainer does not say itself, and the one of groups is full whenever all credits are in sampling. */
const RECEIVERS = [
  ['measures', 'shadow_trainer'],
  ['scored', 'batcher'],
  ['rollouts', 'scorer'],
];

export const TITLES = {
  feeder: 'Feeder',
  sampler: 'Sampler',
  scorer: 'Scorer',
  batcher: 'AdvantageBatcher',
  trainer: 'Trainer',
  shadow_trainer: 'ShadowTrainer',
};

/** What the trainer did in the last `span` seconds: shares by activity, the largest first. */
export function trainerShares(history, span = 30) {
  const now = history.at(-1)?.at ?? 0;
  const seen = history.filter((state) => now - state.at <= span);
  const counts = new Map();
  for (const { trainer } of seen) counts.set(trainer, (counts.get(trainer) ?? 0) + 1);
  return [...counts].map(([what, n]) => ({ what, share: n / seen.length })).sort((a, b) => b.share - a.share);
}

const full = (state, name) => {
  const mailbox = state.mailboxes.find((mailbox) => mailbox.name === name);
  return mailbox !== undefined && mailbox.capacity > 0 && mailbox.depth >= mailbox.capacity;
};

/** `{ stage, why }`, or null where nothing limits: before the start, after the end, or when all is in balance. */
export function limitOf(history) {
  const state = history.at(-1);
  if (!state || state.state !== 'running' || !state.counts.opened) return null;
  const span = Math.min(30, Math.round(state.at - history[0].at) + 1);
  const shares = trainerShares(history);
  // One or two readings are not enough; until there are more, the server's shares of the last half minute are used.
  const looked = span >= 8;
  const waits = (words) => (looked && shares.find(({ what }) => what === words)?.share) || 0;
  const pct = (x) => `${Math.round(100 * x)}\u202f%`;
  const busy = state.busy ?? {};

  if (waits('trains') >= 0.85 || busy.training >= 0.92) {
    return {
      stage: 'trainer',
      why: `training is busy ${pct(Math.max(waits('trains'), busy.training ?? 0))} of the time`,
    };
  }
  const recent = history.slice(-6);
  const stuck = (mailbox) => recent.filter((seen) => full(seen, mailbox)).length > recent.length / 2;
  for (const [mailbox, stage] of RECEIVERS)
    if (stuck(mailbox)) return { stage, why: `the mailbox of ${mailbox} in front of it is full` };
  const sampling = waits('waits for sampling');
  const scoring = waits('waits for scoring');
  if (Math.max(sampling, scoring) >= 0.2) {
    const [stage, share] = sampling >= scoring ? ['sampler', sampling] : ['scorer', scoring];
    return { stage, why: `the trainer waited for it ${pct(share)} of the last ${span}\u202fs` };
  }
  const exporting = waits('waits for the export');
  if (exporting >= 0.3)
    return { stage: 'trainer', why: `it waits for the export of the weights ${pct(exporting)} of the time` };
  if (stuck('groups')) return { stage: 'sampler', why: 'the mailbox of groups in front of it is full' };
  if (!looked) {
    const [stage, share] = [
      ['sampler', busy.sampling],
      ['scorer', busy.scoring],
      ['trainer', busy.training],
    ].sort((a, b) => (b[1] ?? 0) - (a[1] ?? 0))[0];
    if (share >= 0.85) return { stage, why: `it is busy ${pct(share)} of the time, more than the other stages` };
  }
  return null;
}
