// The page's pure pieces, run in the browser that has loaded them: numbers as text, marks for strange characters, the
// verdict on what limits the pipeline, smoothing. Each case is [what, what came out, what should have].

/** All cases that came out wrong, as text. */
export async function wrongPieces(page) {
  const cases = await page.evaluate(async () => {
    const [format, marked, limit, series] = await Promise.all(
      ['format', 'marked', 'limit', 'series'].map((name) => import(`/assets/${name}.js`)),
    );
    const plain = (text) => text.replaceAll('\u202f', ' ').replaceAll('\u2212', '-');
    const shown = (text) => marked.appendMarked(document.createElement('p'), text).textContent;
    const out = [];
    const numbers = [
      [0.53, '0.530'],
      [1234567, '1 234 567'],
      [-12.345, '-12.3'],
      [0.00004217, '4.2×10⁻⁵'],
      [8, '8'],
      [1234.56, '1 235'],
      [null, '–'],
      [NaN, '–'],
      [Infinity, '–'],
    ];
    for (const [x, text] of numbers) out.push([`num ${x}`, plain(format.num(x)), text]);
    const times = [
      [0.0000294, '29.4 µs'],
      [0.23, '230 ms'],
      [4.1, '4.10 s'],
      [59.96, '1 min 00 s'],
      [252, '4 min 12 s'],
      [11100, '3 h 05 min'],
      [187200, '2 d 4 h'],
    ];
    for (const [x, text] of times) out.push([`seconds ${x}`, plain(format.seconds(x)), text]);
    const rates = [
      [6.4, '6.4 /s'],
      [0.02, '1.2 /min'],
      [0.001, '3.6 /h'],
    ];
    for (const [x, text] of rates) out.push([`rate ${x}`, plain(format.rate(x)), text]);
    out.push(['trimmed', format.trimmed('0.00400 s'), '0.004 s'], ['signed', format.signed(0.12), '+0.120']);

    const strange = [
      ['plain <b> & "text"\n\tas it is', 'plain <b> & "text"\n\tas it is'],
      ['\u001b[31mred\u001b[0m', 'ESC[31mredESC[0m'],
      ['a\u202eb\u202c', 'aRLObPDF'],
      ['a\u200b\u200b\u200bb', 'aZWSP×3b'],
      ['\r\nkept, \rmarked', '\r\nkept, CRmarked'],
      ['👩\u200d👧', '👩\u200d👧'],
      ['\u{e0041}', 'TAG'],
      ['x' + '\u0301'.repeat(40), 'x40 accents'],
      ['\u0301a\u0301', '\u25cc\u0301a\u0301'],
    ];
    for (const [text, seen] of strange) out.push([`marked ${JSON.stringify(text)}`, shown(text), seen]);

    // Sixty of sixty seconds, by what the trainer did and which mailbox was full.
    const seen = (trainer, fullMailbox, busy = {}) =>
      Array.from({ length: 60 }, (_, at) => ({
        at,
        trainer,
        busy,
        state: 'running',
        counts: { opened: 8 },
        mailboxes: ['groups', 'rollouts', 'scored', 'batches'].map((name) => ({
          name,
          capacity: 4,
          depth: name === fullMailbox ? 4 : 1,
        })),
      }));
    const verdicts = [
      ['trains', 'batches', 'trainer'],
      ['waits for sampling', null, 'sampler'],
      ['waits for scoring', null, 'scorer'],
      ['waits for sampling', 'rollouts', 'scorer'],
      ['waits for the export', 'groups', 'trainer'],
      ['waits', 'groups', 'sampler'],
      ['waits', null, undefined],
    ];
    for (const [trainer, mailbox, stage] of verdicts)
      out.push([`limit: ${trainer}, ${mailbox} full`, limit.limitOf(seen(trainer, mailbox))?.stage, stage]);
    const ended = seen('waits for sampling').map((state) => ({ ...state, state: 'done' }));
    out.push(['limit of a run that has ended', limit.limitOf(ended), null]);

    // Weights 1, then 0.5 + 1 = 1.5: the mean is 2, then 2 + (5 - 2)/1.5 = 4. A gap stays one.
    out.push(['smooth', JSON.stringify(series.smooth([2, null, 5], 0.5)), '[2,null,4]']);
    const rows = [{ x: 1 }, { x: null }, { x: 4 }, {}, { x: 7 }];
    const pooled = (pool) =>
      series.spans(5, 3).map((span) => series.pooled(rows, span, { value: (row) => row.x, pool }));
    out.push(
      ['pooled by three', JSON.stringify(pooled()), '[2.5,7]'],
      ['most of three', JSON.stringify(pooled('max')), '[4,7]'],
    );
    return out;
  });
  return cases
    .filter(([, got, wanted]) => got !== wanted)
    .map(([what, got, wanted]) => `${what}: ${got}, not ${wanted}`);
}
