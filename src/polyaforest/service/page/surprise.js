// The joint surprise of several records: among many, some are rare by chance.

const RATE = 1e-3; // of ordinary records that are flagged by chance
const FLAGGED = 7; // least bits of a cell with a flagged record

/** Return the surprise of a number of flags among n records, in bits. */
export function ofFlags(flagged, n) {
  const mean = n * RATE;
  if (!flagged || flagged <= mean) return 0;
  let term = 1;
  let sum = 1; // tail of a Poisson distribution, in units of its first term
  for (let k = flagged + 1; term > 1e-9; k++) {
    term *= mean / k;
    sum += term;
  }
  return -(flagged * Math.log(mean) - mean - logFactorial(flagged) + Math.log(sum)) / Math.LN2;
}

/** Return the surprise of a cell: of its lowest p-value among n, or of its flags; what is flagged is never pale. */
export function ofCell(lowest, flagged, n) {
  if (lowest === null) return null;
  const chance = -Math.expm1(n * Math.log1p(-Math.min(1 - 1e-12, 2 ** -lowest)));
  const rarest = n < 2 || chance <= 0 ? lowest : -Math.log2(chance);
  return Math.max(rarest, ofFlags(flagged, n), flagged ? FLAGGED : 0);
}

function logFactorial(n) {
  if (n > 50) return (n + 0.5) * Math.log(n) - n + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * n);
  let sum = 0;
  for (let k = 2; k <= n; k++) sum += Math.log(k);
  return sum;
}
